// matmul_rows.cu - products of quantised matrices with 2 to 16 rows of activations, weights read once.   Y = W norm(X)
// Shapes   up to three packed matrices (N, K) of at most two types; X (M, K), prepared as NOTE [Rows input] says;
//          out (M, N) or (M, N/2). sm_90.
// Mapping  two blocks a multiprocessor. A block walks K for up to four strips at once (NOTE [Rows stream]), two where
//          M > 8. Warp w of eight takes the tiles t = w (mod 8), hence the partials 4w .. 4w+3, of all of them; lane
//          (g, c) those of row g of each strip and of columns 2c and 2c+1 (rows_product.cuh). At the end they meet in
//          shared memory (rows_finish.cuh).
// Bound    memory: packed_bytes(N, K), once. For M <= 8 a lane needs 30 instructions for each integer product of
//          16 x 8 x 32, half of them for floats; for more rows twice those.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>
#include <climits>

#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/rows_finish.cuh"
#include "cuda/kernels/rows_product.cuh"
#include "cuda/kernels/rows_stream.cuh"
#include "cuda/launch.h"
#include "engine/error.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = kRowsThreads + kWarpLanes;
constexpr int kBlocksPerSm = 2;
constexpr int kMaxRegisters = 96;       // of two blocks a quarter of a multiprocessor has five warps
constexpr int kMaxRoundOutputs = 128;   // rows_finish.cuh
constexpr int kWeightSlots = 3;         // at least
constexpr int kMaxSlots = 8;            // of each ring
constexpr int kFirstBytes = 24 * 1024;  // on their way until the input is there
constexpr int kSlotBarriers = 2 * static_cast<int>(sizeof(SharedBarrier));

constexpr int groups_for(int row_count) { return row_count > kGroupColumns ? 2 : 1; }
constexpr int pass_pairs(int groups) { return 3 - groups; }

template <DType kType, int kGroups>
__device__ __forceinline__ void compute_pass(const RowsProduct& product, const StreamOutput& output,
                                             const RowsPass& pass, RowsRing& weights, RowsRing& input,
                                             unsigned char* shared, int warp, int lane) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  constexpr int kPairs = pass_pairs(kGroups);
  const ColumnPlaces<kGroups> places(product.input, warp, lane);
  OutputTerms* terms = reinterpret_cast<OutputTerms*>(shared + product.terms);
  request_terms<kGroups>(product, output, pass, terms);
  PairPartials<kGroups> partials[kPairs] = {};
  for (int left = product.shape.tile_count; left > 0; left -= kChunkTiles) {
    const unsigned char* chunk = input.wait_full();
    const TileBytes* stage = weights.wait_full() + warp * kTileBytes;
    if (warp < left) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        if (2 * pair >= pass.strips) break;
        TilePair<kType> tiles;
        tiles.load(stage + 2 * pair * TilePair<kType>::kStripStride, 2 * pair + 1 == pass.strips, lane);
        accumulate_tiles<kType, kGroups>(tiles, product.input, chunk, places, partials[pair]);
      }
    }
    __syncwarp();
    weights.release(lane);
    input.release(lane);
  }
  finish_pass<kGroups, kPairs>(product, output, pass, reinterpret_cast<float*>(shared + product.exchange), terms,
                               partials);
}

template <DType kType, int kGroups>
__device__ __forceinline__ void compute_share(const RowsProduct& product, const RowsShare& share, RowsRing weights,
                                              RowsRing input, unsigned char* shared, int warp, int lane) {
  const StreamOutput& output = product.shape.outputs[share.output];
  for (int strip = share.first; strip < share.end; strip += share.pass_strips)
    compute_pass<kType, kGroups>(product, output, {strip, min(share.pass_strips, share.end - strip)}, weights, input,
                                 shared, warp, lane);
}

template <DType kFirst, DType kSecond, int kGroups>
__global__ void __maxnreg__(kMaxRegisters) matmul_rows_kernel(const __grid_constant__ RowsProduct product) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  unsigned char* shared = keep_shared(dynamic_shared);
  const int warp = keep(static_cast<int>(threadIdx.x) / kWarpLanes);
  const int lane = keep(static_cast<int>(threadIdx.x) % kWarpLanes);
  RowsShare& share = *reinterpret_cast<RowsShare*>(shared + product.share);
  RowsRing weights = {product.weight_ring, shared};
  RowsRing input = {product.input_ring, shared};
  if (threadIdx.x < product.weight_ring.slot_count + product.input_ring.slot_count) {
    SharedBarrier* barriers = weights.full() + 2 * threadIdx.x;  // those of the rings follow one another
    init_barrier(barriers, 1);
    init_barrier(barriers + 1, kRowsWarps * kWarpArrivals);
    publish_barriers();
  }
  if (warp == 1 && lane == 0) share = block_share(product);
  __syncthreads();
  const bool second = kFirst != kSecond && product.shape.outputs[share.output].second_type;
  if (warp == kRowsWarps) {
    if (lane == 0) {
      if (second)
        produce_rows<kSecond>(product, share, weights, input);
      else
        produce_rows<kFirst>(product, share, weights, input);
    }
    return;
  }
  prepare_input(product, reinterpret_cast<float*>(shared + product.exchange));
  if (second)
    compute_share<kSecond, kGroups>(product, share, weights, input, shared, warp, lane);
  else
    compute_share<kFirst, kGroups>(product, share, weights, input, shared, warp, lane);
}

using RowsKernel = void (*)(RowsProduct);

template <DType kFirst, DType kSecond>
RowsKernel rows_kernel_for(int row_count) {
  return groups_for(row_count) > 1 ? matmul_rows_kernel<kFirst, kSecond, 2> : matmul_rows_kernel<kFirst, kSecond, 1>;
}

// Null where no kernel was built for the pair.
RowsKernel rows_kernel(DType first, DType second, int row_count) {
  if (first == second) {
    switch (first) {
      case DType::Q4_0:
        return rows_kernel_for<DType::Q4_0, DType::Q4_0>(row_count);
      case DType::Q4_1:
        return rows_kernel_for<DType::Q4_1, DType::Q4_1>(row_count);
      case DType::Q5_0:
        return rows_kernel_for<DType::Q5_0, DType::Q5_0>(row_count);
      case DType::Q5_1:
        return rows_kernel_for<DType::Q5_1, DType::Q5_1>(row_count);
      case DType::Q8_0:
        return rows_kernel_for<DType::Q8_0, DType::Q8_0>(row_count);
      case DType::Q4_K:
        return rows_kernel_for<DType::Q4_K, DType::Q4_K>(row_count);
      case DType::Q5_K:
        return rows_kernel_for<DType::Q5_K, DType::Q5_K>(row_count);
      case DType::Q6_K:
        return rows_kernel_for<DType::Q6_K, DType::Q6_K>(row_count);
      default:
        return nullptr;
    }
  }
  if (first == DType::Q4_K && second == DType::Q6_K) return rows_kernel_for<DType::Q4_K, DType::Q6_K>(row_count);
  if (first == DType::Q5_K && second == DType::Q6_K) return rows_kernel_for<DType::Q5_K, DType::Q6_K>(row_count);
  return nullptr;
}

// Lays out shared memory; the bytes it takes.
int lay_out(RowsProduct* product) {
  const UnitShape unit(product->input.columns);
  const int groups = groups_for(product->row_count);
  const int units = groups * pass_pairs(groups);
  RingShape& weights = product->weight_ring;
  RingShape& input = product->input_ring;
  product->round_units = std::clamp(kMaxRoundOutputs / unit.outputs(), 1, units);
  weights.slots = 0;
  input.slots = weights.slot_count * weights.slot_bytes;
  product->exchange = input.slots + input.slot_count * input.slot_bytes;
  product->terms = product->exchange + product->round_units * unit.exchange_bytes();
  weights.barriers = product->terms + units * unit.outputs() * static_cast<int>(sizeof(OutputTerms));
  input.barriers = weights.barriers + weights.slot_count * kSlotBarriers;
  product->share = input.barriers + input.slot_count * kSlotBarriers;
  return product->share + static_cast<int>(sizeof(RowsShare));
}

// Everything but outputs and chunks. Of the shared memory, weights first get a few slots, then activations as many as
// there are chunks, then weights again. False where it is too small.
bool plan_rows(const DeviceTraits& traits, const MatmulArgs& args, RowsProduct* product) {
  RingShape& weights = product->weight_ring;
  RingShape& input = product->input_ring;
  bool needs_sums = false;
  int tile_bytes = 0;
  int least_tile_bytes = INT_MAX;
  std::int64_t all_bytes = 0;  // of one tile of every strip
  for (int i = 0; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    if (is_float(dtype)) return false;
    needs_sums = needs_sums || has_minimum(dtype);
    tile_bytes = std::max(tile_bytes, tile_layout(dtype).tile_bytes);
    least_tile_bytes = std::min(least_tile_bytes, tile_layout(dtype).tile_bytes);
    all_bytes += strip_count(args.outputs[i].matrix.rows) * tile_layout(dtype).tile_bytes;
  }
  // A stage has room for no more strips than a block can own of one output.
  const std::int64_t share = std::int64_t{kBlocksPerSm} * traits.sm_count * least_tile_bytes;
  const int most_strips = static_cast<int>(
      std::clamp<std::int64_t>((all_bytes + share - 1) / share, 1, 2 * pass_pairs(groups_for(args.row_count))));
  product->shape.tile_count = static_cast<int>(padded_width(args.outputs[0].matrix.cols) / kTileWidth);
  product->input.columns = rows_columns(args.row_count);
  product->row_count = args.row_count;
  product->epilogue = args.epilogue;
  product->soft_cap = args.soft_cap;
  product->division.pass_strips = most_strips;
  weights.slot_bytes = product->division.pass_strips * kChunkTiles * tile_bytes;
  input.slot_bytes = needs_sums ? product->input.chunk_bytes() : product->input.sums();
  const int chunks = chunk_count(product->shape.tile_count);
  const int room = neighbour_shared_bytes(traits);
  const auto fits = [&] { return lay_out(product) <= room; };
  const auto grow = [&](int& slot_count, int most) {
    while (slot_count < most) {
      ++slot_count;
      if (fits()) continue;
      --slot_count;
      return;
    }
  };
  input.slot_count = std::min(chunks, 2);
  for (weights.slot_count = kWeightSlots; !fits(); --weights.slot_count)
    if (weights.slot_count == 2) return false;
  grow(input.slot_count, std::min(chunks, kMaxSlots));
  grow(weights.slot_count, kMaxSlots);
  input.stays = input.slot_count == chunks;
  product->first_stages = std::max(kFirstBytes / weights.slot_bytes, 1);
  return true;
}

void launch_outputs(const LaunchTarget& target, RowsProduct product, RowsKernel kernel, DType second,
                    const MatmulOutput* outputs, int output_count) {
  std::int64_t strips = 0;
  for (int i = 0; i < output_count; ++i) {
    product.shape.outputs[i] = stream_output(outputs[i], second);
    strips += product.shape.outputs[i].strip_count;
  }
  if (strips == 0) return;
  product.shape.output_count = output_count;
  const std::size_t shared_bytes = static_cast<std::size_t>(lay_out(&product));
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(strips, kBlocksPerSm * target.traits.sm_count));
  divide_rows(product.shape, outputs, static_cast<int>(blocks), &product.division);
  launch_kernel("matmul_rows_kernel", kernel, {dim3(blocks), dim3(kThreads), shared_bytes}, target, product);
}

}  // namespace

bool matmul_rows_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  RowsProduct product = {};
  return traits.compute_capability >= 90 && args.row_count >= 2 && args.row_count <= kMaxRows &&
         plan_rows(traits, args, &product);
}

void prepare_matmul_rows(const DeviceTraits& traits) {
  for (const DTypeInfo& first : kDTypes)
    for (const DTypeInfo& second : kDTypes)
      for (const int row_count : {kGroupColumns, kMaxRows})
        if (const RowsKernel kernel = rows_kernel(first.dtype, second.dtype, row_count); kernel != nullptr)
          CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          neighbour_shared_bytes(traits)));
}

// One launch for all outputs where a kernel reads their types, else one an output.
void launch_matmul_rows(const LaunchTarget& target, const MatmulArgs& args, bool input_prepared) {
  RowsProduct product = {};
  GENAI_EXPECT(plan_rows(target.traits, args, &product), "matmul_rows_serves said so");
  product.source = rows_source(args);
  product.input.chunks = reinterpret_cast<unsigned char*>(args.scratch.address());
  if (!input_prepared && args.handover)
    product.counters =
        RowsCounters::at(HandoverMemory{reinterpret_cast<unsigned char*>(args.handover.address())}.counters());
  else if (!input_prepared)
    launch_prepare_rows(target, product.source, product.input, args.row_count);
  const TypePair types = type_pair(args);
  if (types.count <= 2) {
    if (const RowsKernel kernel = rows_kernel(types.first, types.second, args.row_count); kernel != nullptr)
      return launch_outputs(target, product, kernel, types.second, args.outputs, args.output_count);
    if (const RowsKernel kernel = rows_kernel(types.second, types.first, args.row_count); kernel != nullptr)
      return launch_outputs(target, product, kernel, types.first, args.outputs, args.output_count);
  }
  for (int i = 0; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    launch_outputs(target, product, rows_kernel(dtype, dtype, args.row_count), dtype, args.outputs + i, 1);
    product.counters = {};  // once is enough
  }
}

}  // namespace genai::cuda
