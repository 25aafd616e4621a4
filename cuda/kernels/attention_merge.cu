// attention_merge.cu - what chunks of positions left behind, merged in ascending order.
//          m' = max(m, mc)   a = exp(m - m')   b = exp(mc - m')   l = lc*b + l*a   o = oc*b + o*a   out = o / l
// Shapes   scratch as SplitScratch says; out (M, H, D) f32.
// Mapping  blocks of 128 threads, an item a slice of the dimensions of one head of a row. oc comes to shared memory by
//          asynchronous copies, two stages of chunks at a time. The largest score so far is a running maximum, which
//          needs no order, so the weights of a stage are computed at once, one chunk a thread; only the two sums are a
//          chain, one dimension a thread.
// Bound    latency: eight cycles a chunk; scratch is read from the cache that it was written to a moment ago.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include <cuda_pipeline_primitives.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kStages = 2;
// Of a stage. The few make a block so small that it fits beside one of attention_decode.cu and one of the next product;
// long contexts need more on their way at once, and have a lone block on every multiprocessor (NOTE [Neighbours]).
constexpr int kFewStageFloats = 512;
constexpr int kManyStageFloats = 4096;
constexpr int kFewChunks = 64;
constexpr int kMinSlice = 32;  // dimensions
constexpr int kMaxSlice = kThreads;
static_assert(kManyStageFloats / kMinSlice <= kThreads, "a thread a chunk of a stage");
static_assert(4 * kStages * kFewStageFloats + 16 * (kThreads + 1) <= kMergeShared);
static_assert(kMaxSlice == 4 * kMinSlice);

// A slice of at most kSlice dimensions of one head of one row, as it lies in scratch.
template <int kSlice, int kStageFloats>
struct Slice {
  static constexpr int kStageChunks = kStageFloats / kSlice;
  const float* outputs;  // of the first chunk
  int chunk_stride;      // floats
  int dims;
  int chunk_count;

  __device__ __forceinline__ int chunks_in(int stage) const {
    return min(chunk_count - stage * kStageChunks, kStageChunks);
  }
};

// Always one group of copies, if an empty one.
template <int kSlice, int kStageFloats>
__device__ __forceinline__ void request_stage(const Slice<kSlice, kStageFloats>& slice, int stage, float* tile) {
  constexpr int kGranules = kSlice / 4;
  const float* source = slice.outputs + static_cast<std::int64_t>(stage) * slice.kStageChunks * slice.chunk_stride;
  const int count = slice.chunks_in(stage) * kGranules;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int chunk = i / kGranules;
    const int dim = i % kGranules * 4;
    if (dim < slice.dims)
      __pipeline_memcpy_async(tile + chunk * kSlice + dim, source + chunk * slice.chunk_stride + dim, 16);
  }
  __pipeline_commit();
}

__device__ __forceinline__ ChunkSum load_sum(const ChunkSum* sums, int chunk, int chunk_count) {
  if (chunk >= chunk_count) return {bits_float(0xff800000u), 0.0f};
  const float2 sum = __ldcg(reinterpret_cast<const float2*>(sums + chunk));
  return {sum.x, sum.y};
}

// The weights of this thread's chunk: (a, b, lc, -). `before` is m ahead of the stage, and behind it in the end. Has a
// barrier inside.
__device__ __forceinline__ float4 merge_weights(ChunkSum sum, float& before, float* warp_highest) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  float highest = sum.highest;  // of this chunk and those before it
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const float other = __shfl_up_sync(kFullWarp, highest, distance);
    if (lane >= distance) highest = fmaxf(highest, other);
  }
  if (lane == kWarpLanes - 1) warp_highest[warp] = highest;
  __syncthreads();
  float ahead = before;  // of all chunks before this warp's
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    before = fmaxf(before, warp_highest[other]);
    if (other < warp) ahead = before;
  }
  highest = fmaxf(highest, ahead);
  const float left = __shfl_up_sync(kFullWarp, highest, 1);
  const float previous = lane == 0 ? ahead : left;
  return make_float4(exp_of_negative(previous - highest), exp_of_negative(sum.highest - highest), sum.total, 0.0f);
}

struct MergeState {
  float output;  // o
  float total;   // l
};

__device__ __forceinline__ void merge_chunk(MergeState& state, float output, const float4& weight) {
  state.output = exact_fma(output, weight.y, state.output * weight.x);
  state.total = exact_fma(weight.z, weight.y, state.total * weight.x);
}

struct MergeShared {
  float4 weights[kThreads];
  float warp_highest[kWarps];
};

template <int kSlice, int kStageFloats>
__device__ __forceinline__ void merge_item(const AttentionArgs& args, const SplitScratch& scratch, int slice_count,
                                           int item, float (&tiles)[kStages][kStageFloats], MergeShared& shared) {
  const int head_dim = args.cache.head_dim;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_dim = item % slice_count * kSlice;
  const int head = item / slice_count % args.head_count;
  const int row = item / slice_count / args.head_count;
  const std::int64_t m = scratch.first_row + row;
  const unsigned cell = scratch.cell(row, args.head_count, head, 0);
  const ChunkSum* sums = scratch.sums + cell;
  Slice<kSlice, kStageFloats> slice;
  slice.outputs = scratch.outputs + std::uint64_t{cell} * static_cast<unsigned>(head_dim) + first_dim;
  slice.chunk_stride = head_dim;
  slice.dims = min(head_dim - first_dim, kSlice);
  slice.chunk_count = chunk_span(raw(args.rows)[m].position, args.window).count;

  for (int stage = 0; stage < kStages; ++stage) request_stage(slice, stage, tiles[stage]);
  constexpr int kStageChunks = Slice<kSlice, kStageFloats>::kStageChunks;
  const int chunk_count = thread < kStageChunks ? slice.chunk_count : 0;  // threads beyond the stage have none
  ChunkSum sum = load_sum(sums, thread, chunk_count);
  float before = bits_float(0xff800000u);
  MergeState state = {0.0f, 0.0f};
  for (int stage = 0; stage * kStageChunks < slice.chunk_count; ++stage) {
    const ChunkSum next = load_sum(sums, (stage + 1) * kStageChunks + thread, chunk_count);
    shared.weights[thread] = merge_weights(sum, before, shared.warp_highest);
    sum = next;
    __pipeline_wait_prior(kStages - 1);
    __syncthreads();
    const int count = slice.chunks_in(stage);
    if (thread < slice.dims) {
      const float* own = tiles[stage % kStages] + thread;
      constexpr int kBatch = 16;
      int chunk = 0;
      for (; chunk + kBatch <= count; chunk += kBatch) {
#pragma unroll
        for (int k = 0; k < kBatch; ++k) merge_chunk(state, own[(chunk + k) * kSlice], shared.weights[chunk + k]);
      }
      for (; chunk < count; ++chunk) merge_chunk(state, own[chunk * kSlice], shared.weights[chunk]);
    }
    __syncthreads();
    request_stage(slice, stage + kStages, tiles[stage % kStages]);
  }
  if (thread < slice.dims)
    raw(args.out)[(m * args.head_count + head) * head_dim + first_dim + thread] = state.output * (1.0f / state.total);
}

template <int kSlice, int kStageFloats>
__global__ void __maxnreg__(40)
    attention_merge_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ SplitScratch scratch,
                           int slice_count, int item_count) {
  __shared__ __align__(16) float tiles[kStages][kStageFloats];
  __shared__ MergeShared shared;
  start_in_order();
  for (int item = static_cast<int>(blockIdx.x); item < item_count; item += static_cast<int>(gridDim.x))
    merge_item<kSlice>(args, scratch, slice_count, item, tiles, shared);
}

using MergeKernel = void (*)(AttentionArgs, SplitScratch, int, int);

template <int kStageFloats>
MergeKernel merge_kernel(int slice_dims) {
  return slice_dims == kMinSlice   ? attention_merge_kernel<kMinSlice, kStageFloats>
         : slice_dims == kMaxSlice ? attention_merge_kernel<kMaxSlice, kStageFloats>
                                   : attention_merge_kernel<2 * kMinSlice, kStageFloats>;
}

// What makes a block with the larger stages a lone one.
int padding_bytes(const DeviceTraits& traits) {
  constexpr int kStatic =
      static_cast<int>(sizeof(float)) * kStages * kManyStageFloats + static_cast<int>(sizeof(MergeShared));
  return traits.compute_capability < 90 ? 0 : std::max(lone_shared_bytes(traits) - kStatic, 0);
}

}  // namespace

// As much as for_each_row_group uses for arguments within the limits.
std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  const std::int64_t row_bytes = split_row_bytes(std::max(head_count, 1), std::max(head_dim, 8), max_positions);
  return static_cast<std::size_t>(
      std::min(std::clamp(row_count, 1, kMaxSplitRows) * row_bytes, std::max(kScratchBudgetBytes, row_bytes)));
}

void prepare_attention_merge(const DeviceTraits& traits) {
  for (const int slice_dims : {kMinSlice, 2 * kMinSlice, kMaxSlice})
    CUDA_CHECK(cudaFuncSetAttribute(merge_kernel<kManyStageFloats>(slice_dims),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, padding_bytes(traits)));
}

void launch_attention_merge(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch) {
  int slice_dims = kMinSlice;
  const auto slices = [&] { return (args.cache.head_dim + slice_dims - 1) / slice_dims; };
  const auto items = [&] { return scratch.row_count * args.head_count * slices(); };
  while (slice_dims < kMaxSlice && items() > target.traits.sm_count) slice_dims *= 2;
  const bool few = scratch.chunk_capacity <= kFewChunks;
  const bool lone = !few && padding_bytes(target.traits) > 0;
  const LaunchShape shape = {dim3(static_cast<unsigned>(lone ? target.traits.sm_count : items())), dim3(kThreads),
                             static_cast<std::size_t>(lone ? padding_bytes(target.traits) : 0)};
  launch_kernel("attention_merge_kernel",
                few ? merge_kernel<kFewStageFloats>(slice_dims) : merge_kernel<kManyStageFloats>(slice_dims), shape,
                target, args, scratch, slices(), items());
}

}  // namespace genai::cuda
