// matmul_tiles.cu - products of quantised matrices with many rows of activations on tensor cores: W norm(X)
// Shapes   packed matrices (N, K) of one type; X (M, K), prepared as tile_input.cuh says; out (M, N) or (M, N/2); only
//          compute capability 9.0
// Mapping  a persistent grid takes items of 128 rows of weights times 64 or 32 columns (rows of activations) and parts
//          of items (tile_schedule.cuh). The specification sums 32 strided partials, one after the other, so K is
//          walked by tiles t = q (mod 8) for q = 0 .. 7: two groups of four warps, 64 rows each, have the partials 4q
//          .. 4q + 3 in registers (tile_product.cuh), and after each q add them to the running sum (tile_finish.cuh).
//          A warp more keeps steps, one tile each, on their way into shared memory (tile_copy.cuh).
// Bound    issue: 8 float instructions of a warp for each 16 x 8 outputs and block of 32, of which there are 256 a
//          step; this code issues 14.7 (Q4_0) to 23 (Q6_K) in all. Products of four warps (wgmma) run beside float
//          instructions in part; those of single warps (mma.sync) would stop them for six clocks each, and give
//          integers that have to be converted.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <cuda.h>

#include <algorithm>

#include "cuda/kernels/tile_copy.cuh"
#include "cuda/kernels/tile_finish.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_schedule.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "cuda/launch.h"
#include "engine/error.h"

namespace genai::cuda {
namespace {

using Wide = TileShape<64>;
using Small = TileShape<32>;

constexpr int kProductThreads = kTileWarps * kWarpLanes;
constexpr int kThreads = kProductThreads + kGroupWarps * kWarpLanes;  // registers move between groups of four warps
constexpr int kProductRegisters = 240;
constexpr int kCopyRegisters = 24;
constexpr int kMaxSlots = 8;
constexpr int kMaxSharedBytes = 227 * 1024;

// Shared memory: slots, then the sums of each lane, then barriers of slots.
template <DType kType, class Shape>
struct Memory {
  static constexpr int kStageBytes = Stage<kType, Shape>::kBytes;
  static constexpr int kFit = (kMaxSharedBytes - TileFinish<Shape>::kBytes - 2 * kMaxSlots * 8) / kStageBytes;
  static constexpr int kSlots = kFit < kMaxSlots ? kFit : kMaxSlots;
  static constexpr int kSums = kSlots * kStageBytes;
  static constexpr int kBarriers = kSums + TileFinish<Shape>::kBytes;
  static constexpr int kBytes = kBarriers + 2 * kSlots * 8;
  static_assert(kSlots >= 3);
};

// A place in the ring of slots. Barriers of a slot: `full` when its step is there, `empty` when all warps have read it.
template <DType kType, class Shape>
struct Ring {
  using Shared = Memory<kType, Shape>;
  unsigned char* shared;
  int slot;
  unsigned parity;  // of the slot's uses so far

  __device__ __forceinline__ unsigned char* stage() const { return shared + slot * Shared::kStageBytes; }
  __device__ __forceinline__ SharedBarrier* full() const {
    return reinterpret_cast<SharedBarrier*>(shared + Shared::kBarriers) + slot;
  }
  __device__ __forceinline__ SharedBarrier* empty() const { return full() + Shared::kSlots; }
  __device__ __forceinline__ void advance() {
    if (++slot == Shared::kSlots) {
      slot = 0;
      parity ^= 1u;
    }
  }
};

// By one thread: weights of the first steps before the previous grid has ended, all else after it.
template <DType kType, class Shape>
__device__ __forceinline__ void copy_steps(const TilesProduct& product, unsigned char* shared) {
  Ring<kType, Shape> ahead = {shared, 0, 0};
  StepWalk walk = {};
  int early = 0;
  for (; early < Memory<kType, Shape>::kSlots && walk.next(product); ++early) {
    copy_weights<kType, Shape>(product, walk, ahead.stage(), ahead.full());
    ahead.advance();
  }
  wait_for_previous_grid();
  Ring<kType, Shape> ring = {shared, 0, 0};
  walk = {};
  for (int step = 0; walk.next(product); ++step) {
    if (step >= early) {
      wait_phase(ring.empty(), ring.parity ^ 1u);
      copy_weights<kType, Shape>(product, walk, ring.stage(), ring.full());
    }
    copy_input<kType, Shape>(product, walk, ring.stage(), ring.full());
    ring.advance();
  }
}

template <DType kType, class Shape>
__device__ __forceinline__ void multiply_steps(const TilesProduct& product, unsigned char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int tile_count = product.shape.tile_count;
  int steps_left = steps_of_block(product.shares, tile_count);
  if (steps_left == 0) return;
  wait_for_previous_grid();
  float4* sums =
      reinterpret_cast<float4*>(shared + Memory<kType, Shape>::kSums) + warp * TileFinish<Shape>::kWarpSums + lane;
  Ring<kType, Shape> ring = {shared, 0, 0};
  Ring<kType, Shape> following = ring;
  const auto peek = [&] {
    following.advance();
    return --steps_left <= 0 || phase_is_over(following.full(), following.parity);
  };
  const auto turn = [&](bool seen) -> const unsigned char* {
    if (!seen) wait_phase(following.full(), following.parity);
    return following.stage();
  };
  const auto done = [&] {
    __syncwarp();
    if (lane == 0) arrive(ring.empty());
    ring = following;
  };
  WarpTile<kType, Shape> tile(warp, lane);
  wait_phase(ring.full(), ring.parity);
  tile.begin(ring.stage());
  for (TilePieces pieces = {}; pieces.next(product.shares);) {
    const TilePiece piece = pieces.piece;
    const int end_q = min(piece.end_q, tile_count);
    for (int q = piece.first_q; q < end_q; ++q) {
      tile.template step<true>(ring.stage(), peek, turn, done);
      for (int i = q + kUnits; i < tile_count; i += kUnits) tile.template step<false>(ring.stage(), peek, turn, done);
      TileFinish<Shape>::add_remainder(product, piece, q, q + 1 == end_q, warp, lane, sums, tile.partials);
    }
    TileFinish<Shape>::finish(product, piece, warp, lane, sums);
  }
}

template <DType kType, class Shape>
__global__ void __launch_bounds__(kThreads, 1) matmul_tiles_kernel(const __grid_constant__ TilesProduct product) {
  using Shared = Memory<kType, Shape>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_grid();
  if (threadIdx.x == 0) {
    SharedBarrier* full = reinterpret_cast<SharedBarrier*>(shared + Shared::kBarriers);
    for (int slot = 0; slot < Shared::kSlots; ++slot) {
      init_barrier(full + slot, 1);
      init_barrier(full + Shared::kSlots + slot, kTileWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpLanes, 0) >= kTileWarps) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x == kProductThreads) copy_steps<kType, Shape>(product, shared);
  } else {
    take_registers<kProductRegisters>();
    multiply_steps<kType, Shape>(product, shared);
  }
}

// ---- launch --------------------------------------------------------------------------------------------------------

using TilesKernel = void (*)(TilesProduct);

struct TilesChoice {
  TilesKernel kernel;
  int shared_bytes;
  int columns;
  int cost;  // time of an item, in clocks a step
};

template <DType kType, class Shape>
TilesChoice tiles_choice(int cost) {
  return {matmul_tiles_kernel<kType, Shape>, Memory<kType, Shape>::kBytes, Shape::kColumns, cost};
}

constexpr int kShapes = 2;

template <DType kType>
TilesChoice tiles_choice(int shape) {
  return shape == 0 ? tiles_choice<kType, Wide>(1000) : tiles_choice<kType, Small>(600);
}

TilesChoice tiles_choice(DType dtype, int shape) {
  switch (dtype) {
    case DType::Q4_0:
      return tiles_choice<DType::Q4_0>(shape);
    case DType::Q4_1:
      return tiles_choice<DType::Q4_1>(shape);
    case DType::Q5_0:
      return tiles_choice<DType::Q5_0>(shape);
    case DType::Q5_1:
      return tiles_choice<DType::Q5_1>(shape);
    case DType::Q8_0:
      return tiles_choice<DType::Q8_0>(shape);
    case DType::Q4_K:
      return tiles_choice<DType::Q4_K>(shape);
    case DType::Q5_K:
      return tiles_choice<DType::Q5_K>(shape);
    case DType::Q6_K:
      return tiles_choice<DType::Q6_K>(shape);
    default:
      return {};
  }
}

// How the outputs of one type are computed.
struct TilesPlan {
  TilesChoice choice;
  TileShares shares;
  int grid;
  std::int64_t cost;
};

TilesPlan plan_tiles(const LaunchTarget& target, const MatmulArgs& args, DType dtype, int shape, bool may_cut) {
  const TilesChoice choice = tiles_choice(dtype, shape);
  std::int64_t items = 0;
  for (int i = 0; i < args.output_count; ++i)
    if (args.outputs[i].matrix.dtype == dtype)
      items += (strip_count(args.outputs[i].matrix.rows) + kBlockStrips - 1) / kBlockStrips;
  items *= (args.row_count + choice.columns - 1) / choice.columns;
  const int grid = std::min(target.traits.sm_count, kMaxTileBlocks);
  const int tile_count = static_cast<int>(padded_width(args.outputs[0].matrix.cols) / kTileWidth);
  const TileShares shares = tile_shares(items, grid, tile_count, may_cut);
  const std::int64_t cost = std::int64_t{choice.cost} * longest_units(shares, grid);
  return {choice, shares, grid, cost};
}

TilesPlan best_plan(const LaunchTarget& target, const MatmulArgs& args, DType dtype, bool may_cut) {
  TilesPlan best = plan_tiles(target, args, dtype, 0, may_cut);
  for (int shape = 1; shape < kShapes; ++shape) {
    const TilesPlan plan = plan_tiles(target, args, dtype, shape, may_cut);
    if (plan.cost < best.cost) best = plan;
  }
  return best;
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

// A matrix as rows of strips, of which a box is one tile of kBlockStrips strips.
CUtensorMap weight_map(const MatrixView& matrix) {
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(strip_bytes(matrix.dtype, matrix.cols));
  const cuuint64_t sizes[2] = {row_bytes / kMapElement, static_cast<cuuint64_t>(strip_count(matrix.rows))};
  const cuuint64_t strides[1] = {row_bytes};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(tile_layout(matrix.dtype).tile_bytes / kMapElement),
                             static_cast<cuuint32_t>(kBlockStrips)};
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

bool matmul_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (!traits.has_tile_products) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  return true;
}

bool prepare_matmul_tiles() {
  if (map_encoder() == nullptr) return false;
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, tiles_choice<DType::Q4_0>(0).kernel) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  for (const DTypeInfo& info : kDTypes)
    for (int shape = 0; shape < kShapes; ++shape)
      if (const TilesChoice choice = tiles_choice(info.dtype, shape); choice.kernel != nullptr)
        CUDA_CHECK(
            cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes));
  return true;
}

// One launch a weight type.
void launch_matmul_tiles(const LaunchTarget& target, const MatmulArgs& args) {
  TileInput input = launch_prepare_tiles(target, args);
  for (int first = 0; first < args.output_count; ++first) {
    const DType dtype = args.outputs[first].matrix.dtype;
    bool done = false;
    for (int i = 0; i < first; ++i) done = done || args.outputs[i].matrix.dtype == dtype;
    if (done) continue;
    const TilesPlan plan = best_plan(target, args, dtype, input.handed_sums != nullptr);
    if (plan.shares.item_count == 0) continue;
    TilesProduct product = {};
    for (int i = first; i < args.output_count; ++i) {
      if (args.outputs[i].matrix.dtype != dtype || args.outputs[i].matrix.rows == 0) continue;
      product.weights[product.shape.output_count] = weight_map(args.outputs[i].matrix);
      product.shape.outputs[product.shape.output_count++] = stream_output(args.outputs[i], dtype);
    }
    product.shape.tile_count = input.tile_count;
    product.input = input;
    product.shares = plan.shares;
    product.column_groups = (args.row_count + plan.choice.columns - 1) / plan.choice.columns;
    product.row_count = args.row_count;
    product.epilogue = args.epilogue;
    product.soft_cap = args.soft_cap;
    const int blocks = working_blocks(plan.shares, plan.grid);
    launch_kernel(
        "matmul_tiles_kernel", plan.choice.kernel,
        {dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<std::size_t>(plan.choice.shared_bytes)},
        target, product);
    if (input.handed_flags != nullptr) input.handed_flags += kMaxTileBlocks * kHandedFlags;
  }
}

}  // namespace genai::cuda
