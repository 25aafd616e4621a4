// tile_launch.cu - see tile_launch.cuh.
#include <algorithm>

#include "cuda/kernels/tile_launch.cuh"
#include "engine/error.h"

namespace genai::cuda {
namespace {

// How the outputs of one type are computed.
struct TilesPlan {
  TilesChoice choice;
  TileShares shares;
  std::int64_t cost;
  int blocks;
};

TilesPlan plan_tiles(const DeviceTraits& traits, const MatmulArgs& args, DType dtype, const TilesChoice& choice) {
  std::int64_t items = 0;
  for (int i = 0; i < args.output_count; ++i)
    if (args.outputs[i].matrix.dtype == dtype)
      items += (strip_count(args.outputs[i].matrix.rows) + choice.block_strips - 1) / choice.block_strips;
  items *= (args.row_count + choice.columns - 1) / choice.columns;
  const int sms = std::min(traits.sm_count, kMaxTileSms);
  const int grid = sms * choice.blocks_per_sm;
  const int tile_count = static_cast<int>(padded_width(args.outputs[0].matrix.cols) / kTileWidth);
  const TileShares shares = tile_shares(items, grid, tile_count, args.row_count >= kMinHandoverRows);
  const std::int64_t item_cost = items <= sms ? choice.alone_cost : choice.cost;
  return {choice, shares, item_cost * tile_count * longest_units(shares, grid) / kUnits, working_blocks(shares, grid)};
}

TilesPlan best_plan(const DeviceTraits& traits, const MatmulArgs& args, DType dtype, const TilesChoices& choices) {
  TilesPlan best = plan_tiles(traits, args, dtype, choices.of(dtype, 0));
  for (int shape = 1; shape < choices.shape_count; ++shape) {
    const TilesPlan plan = plan_tiles(traits, args, dtype, choices.of(dtype, shape));
    if (plan.cost < best.cost) best = plan;
  }
  return best;
}

// Whether no output before this one has its type.
bool is_first_of_type(const MatmulArgs& args, int index) {
  for (int i = 0; i < index; ++i)
    if (args.outputs[i].matrix.dtype == args.outputs[index].matrix.dtype) return false;
  return true;
}

// Null where the driver is older than the tensor copy engine.
decltype(&::cuTensorMapEncodeTiled) map_encoder() {
  static const auto encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess) (void)cudaGetLastError();
    return reinterpret_cast<decltype(&::cuTensorMapEncodeTiled)>(
        status == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : nullptr);
  }();
  return encoder;
}

// A matrix as rows of strips, of which a box is one tile of `block_strips` strips.
CUtensorMap weight_map(const MatrixView& matrix, int block_strips) {
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(strip_bytes(matrix.dtype, matrix.cols));
  const cuuint64_t sizes[2] = {row_bytes / kMapElement, static_cast<cuuint64_t>(strip_count(matrix.rows))};
  const cuuint64_t strides[1] = {row_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(tile_layout(matrix.dtype).tile_bytes / kMapElement),
                             static_cast<cuuint32_t>(block_strips)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map = {};
  const CUresult status =
      map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT64, 2, reinterpret_cast<void*>(matrix.data.address()), sizes,
                    strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  GENAI_EXPECT(status == CUDA_SUCCESS, "a packed matrix is a tensor that the copy engine accepts");
  return map;
}

}  // namespace

void allow_shared_bytes(const TilesChoices& choices) {
  for (const DTypeInfo& info : kDTypes)
    for (int shape = 0; shape < choices.shape_count; ++shape)
      if (const TilesChoice choice = choices.of(info.dtype, shape); choice.kernel != nullptr)
        CUDA_CHECK(cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        std::max(choice.shared_bytes, choice.lone_shared_bytes)));
}

bool has_box_copies() { return map_encoder() != nullptr; }

std::int64_t tiles_cost(const DeviceTraits& traits, const MatmulArgs& args, const TilesChoices& choices) {
  std::int64_t cost = 0;
  for (int i = 0; i < args.output_count; ++i)
    if (is_first_of_type(args, i)) cost += best_plan(traits, args, args.outputs[i].matrix.dtype, choices).cost;
  return cost;
}

void launch_tiles(const char* kernel_name, const LaunchTarget& target, const MatmulArgs& args, TileInput input,
                  const TilesChoices& choices) {
  for (int first = 0; first < args.output_count; ++first) {
    if (!is_first_of_type(args, first)) continue;
    const DType dtype = args.outputs[first].matrix.dtype;
    const TilesPlan plan = best_plan(target.traits, args, dtype, choices);
    if (plan.shares.item_count == 0) continue;
    TilesProduct product = {};
    for (int i = first; i < args.output_count; ++i) {
      if (args.outputs[i].matrix.dtype != dtype || args.outputs[i].matrix.rows == 0) continue;
      product.weights[product.shape.output_count] = weight_map(args.outputs[i].matrix, plan.choice.block_strips);
      product.shape.outputs[product.shape.output_count++] = stream_output(args.outputs[i], dtype);
    }
    product.shape.tile_count = input.tile_count;
    product.input = input;
    product.shares = plan.shares;
    product.column_groups = (args.row_count + plan.choice.columns - 1) / plan.choice.columns;
    product.row_count = args.row_count;
    product.epilogue = args.epilogue;
    product.soft_cap = args.soft_cap;
    const bool lone = plan.blocks <= target.traits.sm_count;
    launch_kernel(kernel_name, plan.choice.kernel,
                  {dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.choice.threads)),
                   static_cast<std::size_t>(lone ? plan.choice.lone_shared_bytes : plan.choice.shared_bytes)},
                  target, product);
    if (input.handed_flags != nullptr) input.handed_flags += kLaunchFlags;
  }
}

}  // namespace genai::cuda
