// attention_plain.cu - attention for any device, head size and context.   out = softmax(scale * q k^T) v
// Shapes   q, out (M, H, D) f32; cache as CacheView says.
// Mapping  Blocks of 256 threads take the chunks of one unit (up to eight query heads of one key-value head) of one row
//          in turn: a score a thread, then a head a warp, then a dimension of a head a thread. They leave (mc, lc, oc)
//          in scratch (attention_merge.cu). The grid depends on capacity, the work on the length.
// Bound    memory: the visible part of the cache once a unit.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include <algorithm>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kBlocksPerSm = 4;

// Floats of shared memory: queries [kMaxUnitHeads][D], then scores and weights [kMaxUnitHeads][64].
constexpr int shared_floats(int head_dim) { return kMaxUnitHeads * (head_dim + kChunkPositions); }

// The score of one query and one key: tree_8.
template <class T>
__device__ __forceinline__ float score_position(const AttentionArgs& args, const float* query, const T* keys,
                                                int position) {
  float partial[8] = {};
  for (int octet = 0; octet < args.cache.head_dim / 8; ++octet) {
    const T* key = keys + (octet * kChunkPositions + position) * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) partial[i] = exact_fma(query[octet * 8 + i], from_cache(key[i]), partial[i]);
  }
  const float dot =
      ((partial[0] + partial[4]) + (partial[2] + partial[6])) + ((partial[1] + partial[5]) + (partial[3] + partial[7]));
  return apply_soft_cap(args.scale * dot, args.soft_cap);
}

// One warp turns the scores of one head, -inf where nothing is visible, into e, and returns mc and lc.
__device__ __forceinline__ ChunkSum soften(float* scores, int first, int last) {
  const int low = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int high = low + kWarpLanes;
  const float low_score = scores[low];
  const float high_score = scores[high];
  float highest = fmaxf(low_score, high_score);
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, stride));
  const float low_weight = low >= first && low <= last ? exact_exp(low_score - highest) : 0.0f;
  const float high_weight = high >= first && high <= last ? exact_exp(high_score - highest) : 0.0f;
  scores[low] = low_weight;
  scores[high] = high_weight;
  return {highest, warp_tree<16>(low_weight + high_weight)};
}

// oc of one dimension, whose values are `head_dim` apart: tree_4.
template <class T>
__device__ __forceinline__ float weigh_values(const T* values, int head_dim, const float* weights, int first,
                                              int last) {
  float partial[4] = {};
  for (int base = first / 4 * 4; base <= last; base += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = base + i;
      if (position >= first && position <= last)
        partial[i] = exact_fma(weights[position], from_cache(values[position * head_dim]), partial[i]);
    }
  }
  return (partial[0] + partial[2]) + (partial[1] + partial[3]);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_plain_kernel(const AttentionArgs args, const HeadUnits units, int slots, const SplitScratch scratch) {
  start_in_order();
  extern __shared__ __align__(16) float shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int head_dim = args.cache.head_dim;
  float* queries = shared;
  float* scores = queries + kMaxUnitHeads * head_dim;
  const int unit_count = args.cache.kv_head_count * units.units_per_kv;
  const int slot = static_cast<int>(blockIdx.x) % slots;
  const Unit unit = unit_at(units, static_cast<int>(blockIdx.x) / slots % unit_count);
  const int local_row = static_cast<int>(blockIdx.x) / slots / unit_count;
  const std::int64_t m = scratch.first_row + local_row;
  const StepRow row = raw(args.rows)[m];
  const ChunkSpan span = chunk_span(row.position, args.window);

  const float* q = raw(args.q) + (m * args.head_count + unit.first_head) * head_dim;
  for (int i = thread; i < unit.head_count * head_dim; i += kThreads) queries[i] = q[i];
  for (int chunk = slot; chunk < span.count; chunk += slots) {
    __syncthreads();
    const CacheHead<T> cache = cache_head<T>(args.cache, row.sequence, span.first_chunk + chunk, unit.kv_head);
    const int first = span.first_in(chunk);
    const int last = span.last_in(chunk);
    const std::uint64_t cell = scratch.cell(local_row, args.head_count, unit.first_head, chunk);
    for (int i = thread; i < unit.head_count * kChunkPositions; i += kThreads) {
      const int position = i % kChunkPositions;
      scores[i] = position >= first && position <= last
                      ? score_position(args, queries + i / kChunkPositions * head_dim, cache.keys, position)
                      : bits_float(0xff800000u);
    }
    __syncthreads();
    for (int head = thread / kWarpLanes; head < unit.head_count; head += kWarps) {
      const ChunkSum sum = soften(scores + head * kChunkPositions, first, last);
      if (thread % kWarpLanes == 0) scratch.sums[cell + head * scratch.chunk_capacity] = sum;
    }
    __syncthreads();
    for (int i = thread; i < unit.head_count * head_dim; i += kThreads) {
      const int head = i / head_dim;
      const int dim = i % head_dim;
      *scratch.output(local_row, args.head_count, unit.first_head + head, chunk, dim) =
          weigh_values(cache.values + dim, head_dim, scores + head * kChunkPositions, first, last);
    }
  }
}

template <class T>
void launch_for_type(const LaunchTarget& target, const AttentionArgs& args) {
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(shared_floats(args.cache.head_dim));
  if (bytes > kWithoutAsking)
    CUDA_CHECK(cudaFuncSetAttribute(attention_plain_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)));
  for_each_row_group(args, [&](const SplitScratch& scratch) {
    const int work = scratch.row_count * args.cache.kv_head_count * units.units_per_kv;
    const int wanted = (kBlocksPerSm * target.traits.sm_count + work - 1) / work;
    const int slots = std::clamp(wanted, 1, scratch.chunk_capacity);
    launch_kernel("attention_plain_kernel", attention_plain_kernel<T>,
                  {dim3(static_cast<unsigned>(slots * work)), dim3(kThreads), bytes}, target, args, units, slots,
                  scratch);
    launch_attention_merge(target, args, scratch, RowsInput{});
  });
}

}  // namespace

void launch_attention_plain(const LaunchTarget& target, const AttentionArgs& args) {
  if (args.cache.type == CacheType::f16)
    launch_for_type<std::uint16_t>(target, args);
  else
    launch_for_type<float>(target, args);
}

}  // namespace genai::cuda
