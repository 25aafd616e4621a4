// attention_plain.cu - attention for any device, head size and context.   out = softmax(scale * q k^T) v
// Shapes   q, out (M, H, D) f32; cache as CacheView says.
// Mapping  A unit is up to eight query heads of one key-value head. Few rows: blocks take chunks of a unit in turn and
//          leave (mc, lc, oc) in scratch; a second kernel merges them in ascending order. Many rows: one block walks
//          all chunks of a unit and merges as it goes, without scratch. The grid depends on capacity, the work on the
//          length.
// Bound    memory: the visible part of the cache once a unit.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include <algorithm>

#include "cuda/kernels/attention_chunk.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxSplitRows = 16;
constexpr std::int64_t kScratchBudgetBytes = std::int64_t{64} << 20;
constexpr int kBlocksPerSm = 4;

struct SplitScratch {
  float* outputs;  // [m][head][chunk][D]
  ChunkSum* sums;  // [m][head][chunk]
  int chunk_capacity;
};

struct SharedPlan {
  float* queries;  // [kMaxUnitHeads][D]
  float* scores;   // [kMaxUnitHeads][64]
  ChunkSum* sums;  // [kMaxUnitHeads]
  float* outputs;  // [kMaxUnitHeads][D], when walking
};

__device__ __forceinline__ SharedPlan shared_plan(float* shared, int head_dim) {
  SharedPlan plan;
  plan.queries = shared;
  plan.scores = plan.queries + kMaxUnitHeads * head_dim;
  plan.sums = reinterpret_cast<ChunkSum*>(plan.scores + kMaxUnitHeads * kChunkPositions);
  plan.outputs = reinterpret_cast<float*>(plan.sums + kMaxUnitHeads);
  return plan;
}

std::size_t shared_bytes(int head_dim, bool walking) {
  const std::size_t heads = kMaxUnitHeads;
  const std::size_t floats = heads * static_cast<std::size_t>(head_dim) + heads * kChunkPositions + 2 * heads;
  return sizeof(float) * (floats + (walking ? heads * static_cast<std::size_t>(head_dim) : 0));
}

__device__ __forceinline__ void load_queries(const AttentionArgs& args, std::int64_t m, const Unit& unit,
                                             float* queries) {
  const float* q = raw(args.q) + (m * args.head_count + unit.first_head) * args.cache.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < unit.head_count * args.cache.head_dim; i += kThreads)
    queries[i] = q[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_split_kernel(const AttentionArgs args, int first_row, int slots, const SplitScratch scratch) {
  start_in_order();
  extern __shared__ __align__(16) float shared[];
  const int head_dim = args.cache.head_dim;
  const SharedPlan plan = shared_plan(shared, head_dim);
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const int unit_count = args.cache.kv_head_count * units.units_per_kv;
  const int slot = static_cast<int>(blockIdx.x) % slots;
  const Unit unit = unit_at(units, static_cast<int>(blockIdx.x) / slots % unit_count);
  const int local_row = static_cast<int>(blockIdx.x) / slots / unit_count;
  const std::int64_t m = first_row + local_row;
  const StepRow row = raw(args.rows)[m];
  const VisibleRange visible = visible_range(row.position, args.window);
  const int last_chunk = visible.last / kChunkPositions;

  load_queries(args, m, unit, plan.queries);
  for (int chunk = visible.first / kChunkPositions + slot; chunk <= last_chunk; chunk += slots) {
    __syncthreads();
    const CacheHead<T> cache = cache_head<T>(args.cache, row.sequence, chunk, unit.kv_head);
    const int first = max(visible.first - chunk * kChunkPositions, 0);
    const int last = min(visible.last - chunk * kChunkPositions, kChunkPositions - 1);
    score_chunk<T, kThreads>(cache.keys, head_dim, plan.queries, unit.head_count, first, last, args.scale,
                             args.soft_cap, plan.scores, plan.sums);
    for (int index = static_cast<int>(threadIdx.x); index < unit.head_count * head_dim; index += kThreads) {
      const int head = index / head_dim;
      const std::int64_t cell =
          (static_cast<std::int64_t>(local_row) * args.head_count + unit.first_head + head) * scratch.chunk_capacity +
          chunk;
      scratch.outputs[cell * head_dim + index % head_dim] =
          weigh_values(cache.values, head_dim, plan.scores + head * kChunkPositions, first, last, index % head_dim);
      if (index % head_dim == 0) scratch.sums[cell] = plan.sums[head];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    attention_merge_kernel(const AttentionArgs args, int first_row, const SplitScratch scratch) {
  start_in_order();
  const int head_dim = args.cache.head_dim;
  const std::int64_t cell = static_cast<std::int64_t>(blockIdx.x) * scratch.chunk_capacity;
  const std::int64_t m = first_row + static_cast<int>(blockIdx.x) / args.head_count;
  const int head = static_cast<int>(blockIdx.x) % args.head_count;
  const VisibleRange visible = visible_range(raw(args.rows)[m].position, args.window);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kThreads) {
    MergeState state = {bits_float(0xff800000u), 0.0f};
    float output = 0.0f;
    for (int chunk = visible.first / kChunkPositions; chunk <= visible.last / kChunkPositions; ++chunk) {
      const MergeWeights weights = merge_chunk(state, scratch.sums[cell + chunk]);
      output = exact_fma(scratch.outputs[(cell + chunk) * head_dim + i], weights.chunk, output * weights.before);
    }
    raw(args.out)[(m * args.head_count + head) * head_dim + i] = output * (1.0f / state.total);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) attention_walk_kernel(const AttentionArgs args) {
  start_in_order();
  extern __shared__ __align__(16) float shared[];
  __shared__ MergeState states[kMaxUnitHeads];
  __shared__ MergeWeights weights[kMaxUnitHeads];
  const int head_dim = args.cache.head_dim;
  const SharedPlan plan = shared_plan(shared, head_dim);
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const int unit_count = args.cache.kv_head_count * units.units_per_kv;
  const Unit unit = unit_at(units, static_cast<int>(blockIdx.x % static_cast<unsigned>(unit_count)));
  const std::int64_t m = blockIdx.x / static_cast<unsigned>(unit_count);
  const StepRow row = raw(args.rows)[m];
  const VisibleRange visible = visible_range(row.position, args.window);

  load_queries(args, m, unit, plan.queries);
  for (int index = static_cast<int>(threadIdx.x); index < unit.head_count * head_dim; index += kThreads)
    plan.outputs[index] = 0.0f;
  if (threadIdx.x < kMaxUnitHeads) states[threadIdx.x] = {bits_float(0xff800000u), 0.0f};
  for (int chunk = visible.first / kChunkPositions; chunk <= visible.last / kChunkPositions; ++chunk) {
    __syncthreads();
    const CacheHead<T> cache = cache_head<T>(args.cache, row.sequence, chunk, unit.kv_head);
    const int first = max(visible.first - chunk * kChunkPositions, 0);
    const int last = min(visible.last - chunk * kChunkPositions, kChunkPositions - 1);
    score_chunk<T, kThreads>(cache.keys, head_dim, plan.queries, unit.head_count, first, last, args.scale,
                             args.soft_cap, plan.scores, plan.sums);
    if (static_cast<int>(threadIdx.x) < unit.head_count)
      weights[threadIdx.x] = merge_chunk(states[threadIdx.x], plan.sums[threadIdx.x]);
    __syncthreads();
    for (int index = static_cast<int>(threadIdx.x); index < unit.head_count * head_dim; index += kThreads) {
      const int head = index / head_dim;
      const float output =
          weigh_values(cache.values, head_dim, plan.scores + head * kChunkPositions, first, last, index % head_dim);
      plan.outputs[index] = exact_fma(output, weights[head].chunk, plan.outputs[index] * weights[head].before);
    }
  }
  __syncthreads();
  float* out = raw(args.out) + (m * args.head_count + unit.first_head) * head_dim;
  for (int index = static_cast<int>(threadIdx.x); index < unit.head_count * head_dim; index += kThreads)
    out[index] = plan.outputs[index] * (1.0f / states[index / head_dim].total);
}

int chunk_capacity(int max_positions) { return std::max((max_positions + kChunkPositions - 1) / kChunkPositions, 1); }

std::int64_t split_row_bytes(int head_count, int head_dim, int max_positions) {
  return static_cast<std::int64_t>(head_count) * chunk_capacity(max_positions) *
         static_cast<std::int64_t>(sizeof(float) * static_cast<std::size_t>(head_dim) + sizeof(ChunkSum));
}

// How many rows fit one split launch: those of the scratch budget, but always one.
int split_rows(int row_count, std::int64_t row_bytes) {
  const std::int64_t fitting = std::max<std::int64_t>(kScratchBudgetBytes / row_bytes, 1);
  return static_cast<int>(std::min<std::int64_t>({fitting, row_count, kMaxSplitRows}));
}

template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (bytes > kWithoutAsking)
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

template <class T>
void launch_for_type(const LaunchTarget& target, const AttentionArgs& args) {
  const int head_dim = args.cache.head_dim;
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const int unit_count = args.cache.kv_head_count * units.units_per_kv;
  if (args.row_count > kMaxSplitRows) {
    const std::size_t bytes = shared_bytes(head_dim, true);
    allow_shared(attention_walk_kernel<T>, bytes);
    launch_kernel(
        "attention_walk_kernel", attention_walk_kernel<T>,
        {dim3(static_cast<unsigned>(args.row_count) * static_cast<unsigned>(unit_count)), dim3(kThreads), bytes},
        target, args);
    return;
  }
  const int capacity = chunk_capacity(args.max_positions);
  const std::int64_t row_bytes = split_row_bytes(args.head_count, head_dim, args.max_positions);
  const int rows_at_once = split_rows(args.row_count, row_bytes);
  SplitScratch scratch = {};
  scratch.chunk_capacity = capacity;
  scratch.outputs = reinterpret_cast<float*>(args.scratch.address());
  scratch.sums = reinterpret_cast<ChunkSum*>(scratch.outputs + static_cast<std::int64_t>(rows_at_once) *
                                                                   args.head_count * capacity * head_dim);
  const std::size_t bytes = shared_bytes(head_dim, false);
  allow_shared(attention_split_kernel<T>, bytes);
  for (int first_row = 0; first_row < args.row_count; first_row += rows_at_once) {
    const int rows = std::min(rows_at_once, args.row_count - first_row);
    const int wanted = (kBlocksPerSm * target.traits.sm_count + rows * unit_count - 1) / (rows * unit_count);
    const int slots = std::clamp(wanted, 1, capacity);
    launch_kernel("attention_split_kernel", attention_split_kernel<T>,
                  {dim3(static_cast<unsigned>(slots * unit_count * rows)), dim3(kThreads), bytes}, target, args,
                  first_row, slots, scratch);
    launch_kernel("attention_merge_kernel", attention_merge_kernel,
                  {dim3(static_cast<unsigned>(rows * args.head_count)), dim3(kThreads)}, target, args, first_row,
                  scratch);
  }
}

}  // namespace

std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  const std::int64_t row_bytes = split_row_bytes(std::max(head_count, 1), std::max(head_dim, 8), max_positions);
  return static_cast<std::size_t>(split_rows(std::max(row_count, 1), row_bytes) * row_bytes);
}

void launch_attention_plain(const LaunchTarget& target, const AttentionArgs& args) {
  if (args.cache.type == CacheType::f16)
    launch_for_type<std::uint16_t>(target, args);
  else
    launch_for_type<float>(target, args);
}

}  // namespace genai::cuda
