// attention_merge.cu - what chunks of positions left behind, merged in ascending order.
//          m' = max(m, mc)   a = exp(m - m')   b = exp(mc - m')   l = lc*b + l*a   o = oc*b + o*a   out = o / l
// Shapes   scratch as SplitScratch says; out (M, H, D) f32, and the same as int8 where a product reads it next.
// Mapping  an item is a slice of the dimensions of one head of a row, a dimension a lane of one warp; warps never meet.
//          The largest score so far is a running maximum, which needs no order, so the weights of a group of chunks are
//          computed at once, a chunk or two a lane; only the two sums are a chain. What a lane needs of oc is on its
//          way to registers some batches of chunks ahead.
// Bound    latency: eight cycles a chunk; scratch is read from the cache that it was written to a moment ago.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/rows_block.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kGroupBatches = 4;
static_assert(kSliceDims == kWarpLanes);

// Chunks of a batch, batches on their way, chunks asked for before it is known how many there are, and registers of a
// thread. The items of a decode step have a lone block on every multiprocessor (NOTE [Neighbours]) and much on its way;
// of those of many rows as many as can be should run at once.
struct FewItems {
  static constexpr bool kLone = true;
  static constexpr int kBatch = 16;
  static constexpr int kBatches = 4;
  static constexpr int kGuessedChunks = 32;
  static constexpr int kMaxRegisters = 128;
};
struct ManyItems {
  static constexpr bool kLone = false;
  static constexpr int kBatch = 8;
  static constexpr int kBatches = 2;
  static constexpr int kGuessedChunks = 16;
  static constexpr int kMaxRegisters = 40;
};

template <class Size>
constexpr int group_chunks() {
  return kGroupBatches * Size::kBatch;
}

// oc of a batch of chunks, of which the first lies at `source`, at the lane's dimension.
template <int kChunks>
__device__ __forceinline__ void load_batch(const float* source, float (&outputs)[kChunks]) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) outputs[k] = __ldcg(source + k * kSliceDims);
}

// Sums of a lane's chunks of a group, which follow each other.
template <int kCount>
__device__ __forceinline__ void load_sums(const ChunkSum* sums, int chunk_count, ChunkSum (&lane_sums)[kCount]) {
  const int first = static_cast<int>(threadIdx.x) % kWarpLanes * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    lane_sums[i] = {bits_float(0xff800000u), 0.0f};
    if (first + i >= chunk_count) continue;
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(sums + first + i));
    lane_sums[i] = {pair.x, pair.y};
  }
}

template <class Size>
__device__ __forceinline__ void merge_item(const AttentionArgs& args, const SplitScratch& scratch,
                                           const RowsInput& prepared, int item, float4* weights) {
  constexpr int kBatch = Size::kBatch;
  constexpr int kBatches = Size::kBatches;
  constexpr int kGroup = group_chunks<Size>();
  static_assert(4 * Size::kGuessedChunks * kSliceDims <= kScratchSlackBytes && kBatch <= Size::kGuessedChunks);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int slice = item % scratch.slice_count;
  const int head = item / scratch.slice_count % args.head_count;
  const int row = item / scratch.slice_count / args.head_count;
  const std::int64_t m = scratch.first_row + row;
  const float* source = scratch.output(row, args.head_count, head, 0, slice * kSliceDims) + lane;
  const ChunkSum* sums = scratch.sums + scratch.cell(row, args.head_count, head, 0);

  float batches[kBatches][kBatch];
  ChunkSum lane_sums[kGroup / kWarpLanes];
#pragma unroll
  for (int i = 0; i * kBatch < Size::kGuessedChunks; ++i) load_batch(source + i * kBatch * kSliceDims, batches[i]);
  load_sums(sums, scratch.chunk_capacity, lane_sums);
  const int chunk_count = chunk_span(raw(args.rows)[m].position, args.window).count;
#pragma unroll
  for (int i = Size::kGuessedChunks / kBatch; i < kBatches; ++i)
    if (i * kBatch < chunk_count) load_batch(source + i * kBatch * kSliceDims, batches[i]);
  source += kBatches * kBatch * kSliceDims;

  float before = bits_float(0xff800000u);
  MergeState state = {0.0f, 0.0f};
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kGroup) {
    merge_weights(lane_sums, before, weights);
    load_sums(sums + first + kGroup, chunk_count - first - kGroup, lane_sums);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kGroupBatches; ++i) {
      const int left = chunk_count - first - i * kBatch;
      merge_batch(state, batches[i % kBatches], weights + i * kBatch, left);
      if (left > kBatches * kBatch) load_batch(source + i * kBatch * kSliceDims, batches[i % kBatches]);
    }
    source += kGroup * kSliceDims;
    __syncwarp();
  }
  const float out = state.output * (1.0f / state.total);
  const int head_dim = args.cache.head_dim;
  const int first_dim = slice * kSliceDims;
  if (first_dim + lane < head_dim) raw(args.out)[(m * args.head_count + head) * head_dim + first_dim + lane] = out;
  if (prepared.chunks != nullptr) prepare_block(prepared, static_cast<int>(m), head * head_dim + first_dim, out);
}

template <class Size>
__global__ void __maxnreg__(Size::kMaxRegisters)
    attention_merge_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ SplitScratch scratch,
                           const __grid_constant__ RowsInput prepared, int item_count) {
  __shared__ float4 weights[kWarps][group_chunks<Size>()];
  start_in_order();
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int item = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
  if constexpr (Size::kLone) {
    for (; item < item_count; item += kWarps * static_cast<int>(gridDim.x))
      merge_item<Size>(args, scratch, prepared, item, weights[warp]);
  } else {
    if (item < item_count) merge_item<Size>(args, scratch, prepared, item, weights[warp]);
  }
}

// What makes a block a lone one.
int padding_bytes(const DeviceTraits& traits) {
  constexpr int kStatic = static_cast<int>(sizeof(float4)) * kWarps * group_chunks<FewItems>();
  return traits.compute_capability < 90 ? 0 : std::max(lone_shared_bytes(traits) - kStatic, 0);
}

}  // namespace

// As much as for_each_row_group uses for arguments within the limits.
std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  const std::int64_t row_bytes = split_row_bytes(std::max(head_count, 1), std::max(head_dim, 8), max_positions);
  return static_cast<std::size_t>(
      std::min(std::clamp(row_count, 1, kMaxSplitRows) * row_bytes, std::max(kScratchBudgetBytes, row_bytes)) +
      kScratchSlackBytes);
}

void prepare_attention_merge(const DeviceTraits& traits) {
  CUDA_CHECK(cudaFuncSetAttribute(attention_merge_kernel<FewItems>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  padding_bytes(traits)));
}

void launch_attention_merge(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch,
                            const RowsInput& prepared) {
  const int items = scratch.row_count * args.head_count * scratch.slice_count;
  const int padding = padding_bytes(target.traits);
  // With several rows a product's two blocks want the room (NOTE [Rows stream]): only long chains are worth it.
  const bool few = items <= target.traits.sm_count * kWarps && scratch.chunk_capacity > group_chunks<FewItems>();
  if (padding > 0 && (scratch.row_count == 1 || few))
    return launch_kernel("attention_merge_kernel", attention_merge_kernel<FewItems>,
                         {dim3(static_cast<unsigned>(target.traits.sm_count)), dim3(kWarps * kWarpLanes),
                          static_cast<std::size_t>(padding)},
                         target, args, scratch, prepared, items);
  launch_kernel("attention_merge_kernel", attention_merge_kernel<ManyItems>,
                {dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kWarps * kWarpLanes)}, target, args,
                scratch, prepared, items);
}

}  // namespace genai::cuda
