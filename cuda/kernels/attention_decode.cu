// attention_decode.cu - attention over any context, without scratch; best for a few rows.   out = softmax(scale * q
// k^T) v Shapes   q, out (M, H, D) f32; cache as CacheView says; D a multiple of 8. sm_90. Mapping  A cluster of blocks
// works on one unit (up to eight query heads that share a key-value head) of one row. Block r
//          takes chunks r, r + C, ... : keys and values of a chunk come by one bulk copy each into a ring in shared
//          memory. Scores: four threads a position, two of the eight partials each. Values: four threads a pair of
//          dimensions, one of the four partials each. (mc, lc, oc) of a block's chunks stay in its shared memory; after
//          a wave of chunks each block merges a slice of the dimensions in ascending order, reading the other blocks'
//          parts. The largest scores so far are a running maximum, which needs no order, so all weights of a wave are
//          computed at once and only the two sums are a chain. The grid depends on capacity, the work on the length.
// Bound    memory: the visible chunks of the cache once a unit.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include <algorithm>

#include "cuda/kernels/attention_chunk.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kMaxCluster = 8;  // what every device with clusters allows
constexpr int kMaxWaveSlots = 8;
constexpr int kMaxStages = 2;
constexpr int kMaxHeadDim = 256;
static_assert(kWarps >= kMaxUnitHeads, "a warp a head");
static_assert(kThreads == 4 * kChunkPositions, "four threads a position");

struct DecodePlan {
  int unit_heads;  // query heads of a unit; the last unit of a key-value head may have fewer
  int units_per_kv;
  int cluster;
  int wave_slots;  // chunks of one block between two merges
  int stages;
};

// Offsets in dynamic shared memory, bytes.
struct DecodeLayout {
  int keys;      // [stage][64 * D] elements
  int values;    // the same
  int queries;   // [head][4][query_stride]
  int weights;   // e: [head][4][16], by position mod 4
  int exchange;  // [4][head][D] while a chunk is computed; merge weights [head][wave chunks] float4 in a merge
  int slots;     // oc: [slot][head][D]
  int sums;      // ChunkSum [slot][head]
  int outputs;   // o and l of the merge: float2 [head][slice]
  int highest;   // m of the merge: [head]
  int barriers;
  int total;
};

// Floats from one of a head's four quarters of a query to the next: not a multiple of 32, so that quarters are in
// different banks.
__host__ __device__ constexpr int query_stride(int head_dim) { return head_dim / 4 + 4; }

__host__ __device__ constexpr int slice_dims(int head_dim, int cluster) { return (head_dim + cluster - 1) / cluster; }

__host__ __device__ constexpr DecodeLayout decode_layout(const DecodePlan& plan, int head_dim, int element_bytes) {
  const int chunk_bytes = kChunkPositions * head_dim * element_bytes;
  const int sum_bytes = plan.unit_heads * head_dim * 4;
  const int exchange = 4 * sum_bytes;
  const int merge = plan.unit_heads * plan.cluster * plan.wave_slots * 16;
  DecodeLayout layout = {};
  layout.values = layout.keys + plan.stages * chunk_bytes;
  layout.queries = layout.values + plan.stages * chunk_bytes;
  layout.weights = layout.queries + plan.unit_heads * 4 * query_stride(head_dim) * 4;
  layout.exchange = layout.weights + plan.unit_heads * kChunkPositions * 4;
  layout.slots = layout.exchange + (exchange > merge ? exchange : merge);
  layout.sums = layout.slots + plan.wave_slots * sum_bytes;
  layout.outputs = layout.sums + plan.wave_slots * plan.unit_heads * static_cast<int>(sizeof(ChunkSum));
  layout.highest = layout.outputs + plan.unit_heads * slice_dims(head_dim, plan.cluster) * 8;
  layout.barriers = (layout.highest + plan.unit_heads * 4 + 15) / 16 * 16;
  layout.total = layout.barriers + 2 * plan.stages * 8;
  return layout;
}

__device__ __forceinline__ float2 widen_pair(const float* pair) { return *reinterpret_cast<const float2*>(pair); }
__device__ __forceinline__ float2 widen_pair(const std::uint16_t* pair) {
  const unsigned both = *reinterpret_cast<const unsigned*>(pair);
  return make_float2(widen_half(static_cast<std::uint16_t>(both)), widen_half(static_cast<std::uint16_t>(both >> 16)));
}

// Which chunks the cluster sees and which of them are this block's.
struct ChunkList {
  int first_chunk;
  int count;  // of the cluster
  int rank;
  int cluster;
  __device__ int own_count() const { return count > rank ? (count - rank - 1) / cluster + 1 : 0; }
  __device__ int own_chunk(int index) const { return first_chunk + index * cluster + rank; }
};

template <class T>
struct DecodeShared {
  T* keys;
  T* values;
  float* queries;
  float* weights;
  float* exchange;
  float* slots;
  ChunkSum* sums;
  float2* outputs;
  float* highest;
  SharedBarrier* keys_full;
  SharedBarrier* values_full;
};

template <class T>
__device__ __forceinline__ void request_chunk(const AttentionArgs& args, const DecodeShared<T>& shared, int sequence,
                                              int chunk, int kv_head, int stage) {
  const CacheHead<T> cache = cache_head<T>(args.cache, sequence, chunk, kv_head);
  const int elements = kChunkPositions * args.cache.head_dim;
  const unsigned bytes = static_cast<unsigned>(elements * static_cast<int>(sizeof(T)));
  const std::uint64_t policy = read_once_policy();
  arrive_expecting(shared.keys_full + stage, bytes);
  bulk_load(shared.keys + stage * elements, cache.keys, bytes, shared.keys_full + stage, policy);
  arrive_expecting(shared.values_full + stage, bytes);
  bulk_load(shared.values + stage * elements, cache.values, bytes, shared.values_full + stage, policy);
}

// Scores of all heads at the thread's position; valid in the first of its four threads.
template <class T, int kHeads>
__device__ __forceinline__ void score_position(const T* keys, const float* queries, int head_dim,
                                               float (&score)[kHeads]) {
  const int position = static_cast<int>(threadIdx.x) / 4;
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const float* own_queries = queries + quarter * query_stride(head_dim);
  float partial[kHeads][2] = {};
#pragma unroll 4
  for (int octet = 0; octet < head_dim / 8; ++octet) {
    const float2 key = widen_pair(keys + (octet * kChunkPositions + position) * 8 + 2 * quarter);
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const float2 query =
          *reinterpret_cast<const float2*>(own_queries + head * 4 * query_stride(head_dim) + 2 * octet);
      partial[head][0] = exact_fma(query.x, key.x, partial[head][0]);
      partial[head][1] = exact_fma(query.y, key.y, partial[head][1]);
    }
  }
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {  // tree_8: strides 4, 2, 1; this thread has partials 2q and 2q + 1
    float low = partial[head][0] + __shfl_xor_sync(kFullWarp, partial[head][0], 2);
    float high = partial[head][1] + __shfl_xor_sync(kFullWarp, partial[head][1], 2);
    low = low + __shfl_xor_sync(kFullWarp, low, 1);
    high = high + __shfl_xor_sync(kFullWarp, high, 1);
    score[head] = low + high;
  }
}

// Place of a position's weight: positions of one remainder mod 4 lie together.
__device__ __forceinline__ int weight_place(int position) { return position % 4 * 16 + position / 4; }

// mc, lc and e of one head by one warp. `row` holds the head's scores and then e.
__device__ __forceinline__ ChunkSum soften(float* row, int first, int last) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int low_place = weight_place(lane);
  const int high_place = weight_place(lane + kWarpLanes);
  const bool low_visible = lane >= first && lane <= last;
  const bool high_visible = lane + kWarpLanes >= first && lane + kWarpLanes <= last;
  const float low_score = row[low_place];
  const float high_score = row[high_place];
  const float lowest = bits_float(0xff800000u);
  float highest = fmaxf(low_visible ? low_score : lowest, high_visible ? high_score : lowest);
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, stride));
  const float low = low_visible ? exact_exp(low_score - highest) : 0.0f;
  const float high = high_visible ? exact_exp(high_score - highest) : 0.0f;
  row[low_place] = low;
  row[high_place] = high;
  return {highest, warp_tree<16>(low + high)};
}

// Partial sums of the values of positions that are `quarter` mod 4, for one pair of dimensions.
template <class T, int kHeads>
__device__ __forceinline__ void weigh_pair(const T* values, const float* weights, int head_dim, int pair, int quarter,
                                           int first, int last, float2 (&sum)[kHeads]) {
  const T* column = values + quarter * head_dim + 2 * pair;
  if (first == 0 && last == kChunkPositions - 1) {
#pragma unroll
    for (int four = 0; four < 4; ++four) {
      float2 value[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) value[k] = widen_pair(column + (four * 4 + k) * 4 * head_dim);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float4 e = *reinterpret_cast<const float4*>(weights + head * kChunkPositions + quarter * 16 + four * 4);
        sum[head].x = exact_fma(e.x, value[0].x, sum[head].x);
        sum[head].y = exact_fma(e.x, value[0].y, sum[head].y);
        sum[head].x = exact_fma(e.y, value[1].x, sum[head].x);
        sum[head].y = exact_fma(e.y, value[1].y, sum[head].y);
        sum[head].x = exact_fma(e.z, value[2].x, sum[head].x);
        sum[head].y = exact_fma(e.z, value[2].y, sum[head].y);
        sum[head].x = exact_fma(e.w, value[3].x, sum[head].x);
        sum[head].y = exact_fma(e.w, value[3].y, sum[head].y);
      }
    }
    return;
  }
  for (int step = 0; step < kChunkPositions / 4; ++step) {
    const int position = 4 * step + quarter;
    if (position < first || position > last) continue;  // what lies there may never have been written
    const float2 value = widen_pair(column + step * 4 * head_dim);
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const float e = weights[head * kChunkPositions + quarter * 16 + step];
      sum[head].x = exact_fma(e, value.x, sum[head].x);
      sum[head].y = exact_fma(e, value.y, sum[head].y);
    }
  }
}

// One chunk of this block into slot `slot`. Begins and ends with all threads past a barrier of the block.
template <class T, int kHeads>
__device__ __forceinline__ void attend_chunk(const AttentionArgs& args, const DecodeShared<T>& shared, int stage,
                                             unsigned parity, int first, int last, int slot) {
  const int head_dim = args.cache.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int elements = kChunkPositions * head_dim;
  wait_phase(shared.keys_full + stage, parity);
  float score[kHeads];
  score_position<T, kHeads>(shared.keys + stage * elements, shared.queries, head_dim, score);
  if (threadIdx.x % 4 == 0) {
    const int place = weight_place(static_cast<int>(threadIdx.x) / 4);
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
      shared.weights[head * kChunkPositions + place] = apply_soft_cap(args.scale * score[head], args.soft_cap);
  }
  __syncthreads();
  if (warp < kHeads) {
    const ChunkSum sum = soften(shared.weights + warp * kChunkPositions, first, last);
    if (threadIdx.x % kWarpLanes == 0) shared.sums[slot * kHeads + warp] = sum;
  }
  wait_phase(shared.values_full + stage, parity);
  __syncthreads();
  for (int item = static_cast<int>(threadIdx.x); item < 2 * head_dim; item += kThreads) {
    const int quarter = item / (head_dim / 2);
    const int pair = item % (head_dim / 2);
    float2 sum[kHeads] = {};
    weigh_pair<T, kHeads>(shared.values + stage * elements, shared.weights, head_dim, pair, quarter, first, last, sum);
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
      *reinterpret_cast<float2*>(shared.exchange + (quarter * kHeads + head) * head_dim + 2 * pair) = sum[head];
  }
  __syncthreads();
  const int width = kHeads * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const float* part = shared.exchange + i;
    shared.slots[slot * width + i] = (part[0] + part[2 * width]) + (part[width] + part[3 * width]);
  }
}

// Adds the wave's chunks, `chunk_count` of the cluster, to this block's slice of the outputs.
template <class T, int kHeads>
__device__ __forceinline__ void merge_wave(const DecodeShared<T>& shared, int head_dim, int wave_chunks,
                                           int chunk_count, int cluster, int rank) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float4* weights = reinterpret_cast<float4*>(shared.exchange);  // (a, b, lc, -)
  if (warp < kHeads) {
    float before = shared.highest[warp];
    for (int base = 0; base < chunk_count; base += kWarpLanes) {
      const int index = base + lane;
      ChunkSum sum = {bits_float(0xff800000u), 0.0f};
      if (index < chunk_count) sum = *in_block(shared.sums + index / cluster * kHeads + warp, index % cluster);
      float highest = sum.highest;  // of this chunk and all before it
#pragma unroll
      for (int distance = 1; distance < kWarpLanes; distance *= 2) {
        const float other = __shfl_up_sync(kFullWarp, highest, distance);
        if (lane >= distance) highest = fmaxf(highest, other);
      }
      highest = fmaxf(highest, before);
      const float left = __shfl_up_sync(kFullWarp, highest, 1);
      const float previous = lane == 0 ? before : left;
      if (index < chunk_count)
        weights[warp * wave_chunks + index] =
            make_float4(exact_exp(previous - highest), exact_exp(sum.highest - highest), sum.total, 0.0f);
      before = __shfl_sync(kFullWarp, highest, kWarpLanes - 1);
    }
    __syncwarp();
    if (lane == 0) shared.highest[warp] = before;
  }
  __syncthreads();
  const int slice = slice_dims(head_dim, cluster);
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * slice; i += kThreads) {
    const int head = i / slice;
    const int dim = rank * slice + i % slice;
    if (dim >= head_dim) continue;
    float2 state = shared.outputs[i];
    const float4* own_weights = weights + head * wave_chunks;
    const float* own_slots = shared.slots + head * head_dim + dim;
    constexpr int kAhead = 8;
    for (int base = 0; base < chunk_count; base += kAhead) {
      float part[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int index = min(base + k, chunk_count - 1);
        part[k] = *in_block(own_slots + index / cluster * (kHeads * head_dim), index % cluster);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (base + k >= chunk_count) break;
        const float4 weight = own_weights[base + k];
        state.x = exact_fma(part[k], weight.y, state.x * weight.x);
        state.y = exact_fma(weight.z, weight.y, state.y * weight.x);
      }
    }
    shared.outputs[i] = state;
  }
}

template <class T>
__device__ __forceinline__ DecodeShared<T> carve(unsigned char* shared, const DecodeLayout& layout, int stages) {
  DecodeShared<T> parts;
  parts.keys = reinterpret_cast<T*>(shared + layout.keys);
  parts.values = reinterpret_cast<T*>(shared + layout.values);
  parts.queries = reinterpret_cast<float*>(shared + layout.queries);
  parts.weights = reinterpret_cast<float*>(shared + layout.weights);
  parts.exchange = reinterpret_cast<float*>(shared + layout.exchange);
  parts.slots = reinterpret_cast<float*>(shared + layout.slots);
  parts.sums = reinterpret_cast<ChunkSum*>(shared + layout.sums);
  parts.outputs = reinterpret_cast<float2*>(shared + layout.outputs);
  parts.highest = reinterpret_cast<float*>(shared + layout.highest);
  parts.keys_full = reinterpret_cast<SharedBarrier*>(shared + layout.barriers);
  parts.values_full = parts.keys_full + stages;
  return parts;
}

template <class T, int kHeads>
__global__ void __launch_bounds__(kThreads, 2)
    attention_decode_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const int head_dim = args.cache.head_dim;
  const DecodeShared<T> shared =
      carve<T>(shared_bytes, decode_layout(plan, head_dim, static_cast<int>(sizeof(T))), plan.stages);
  const int heads_per_kv = args.head_count / args.cache.kv_head_count;
  const int unit_count = args.cache.kv_head_count * plan.units_per_kv;
  const int rank = cluster_rank();
  const int work = static_cast<int>(blockIdx.x) / plan.cluster;
  const std::int64_t m = work / unit_count;
  const int kv_head = work % unit_count / plan.units_per_kv;
  const int first_of_kv = work % plan.units_per_kv * kHeads;
  const int first_head = kv_head * heads_per_kv + first_of_kv;
  const int head_count = min(kHeads, heads_per_kv - first_of_kv);  // the rest repeat the last one and are not stored

  allow_next_grid();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * plan.stages; ++i) init_barrier(shared.keys_full + i, 1);
    publish_barriers();
  }
  wait_for_previous_grid();
  const StepRow row = raw(args.rows)[m];
  const VisibleRange visible = visible_range(row.position, args.window);
  ChunkList chunks;
  chunks.first_chunk = visible.first / kChunkPositions;
  chunks.count = visible.last / kChunkPositions - chunks.first_chunk + 1;
  chunks.rank = rank;
  chunks.cluster = plan.cluster;
  const int own_count = chunks.own_count();
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < min(plan.stages, own_count); ++i)
      request_chunk(args, shared, row.sequence, chunks.own_chunk(i), kv_head, i);

  for (int i = static_cast<int>(threadIdx.x); i < kHeads * head_dim; i += kThreads) {
    const int head = i / head_dim;
    const int dim = i % head_dim;
    const float* q = raw(args.q) + (m * args.head_count + first_head + min(head, head_count - 1)) * head_dim;
    shared.queries[(head * 4 + dim % 8 / 2) * query_stride(head_dim) + dim / 8 * 2 + dim % 2] = __ldcg(q + dim);
  }
  const int slice = slice_dims(head_dim, plan.cluster);
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * slice; i += kThreads)
    shared.outputs[i] = make_float2(0.0f, 0.0f);
  if (threadIdx.x < kHeads) shared.highest[threadIdx.x] = bits_float(0xff800000u);
  __syncthreads();

  const int wave_chunks = plan.cluster * plan.wave_slots;
  int own = 0;
  for (int wave = 0; wave * wave_chunks < chunks.count; ++wave) {
    for (int slot = 0; slot < plan.wave_slots && own < own_count; ++slot, ++own) {
      const int base = chunks.own_chunk(own) * kChunkPositions;
      attend_chunk<T, kHeads>(args, shared, own % plan.stages, static_cast<unsigned>(own / plan.stages) & 1u,
                              max(visible.first - base, 0), min(visible.last - base, kChunkPositions - 1), slot);
      if (threadIdx.x == 0 && own + plan.stages < own_count)
        request_chunk(args, shared, row.sequence, chunks.own_chunk(own + plan.stages), kv_head, own % plan.stages);
    }
    cluster_barrier();
    merge_wave<T, kHeads>(shared, head_dim, wave_chunks, min(wave_chunks, chunks.count - wave * wave_chunks),
                          plan.cluster, rank);
    cluster_barrier();
  }
  for (int i = static_cast<int>(threadIdx.x); i < head_count * slice; i += kThreads) {
    const int dim = rank * slice + i % slice;
    if (dim >= head_dim) continue;
    const float2 state = shared.outputs[i];
    raw(args.out)[(m * args.head_count + first_head + i / slice) * head_dim + dim] = state.x * (1.0f / state.y);
  }
}

using DecodeKernel = void (*)(AttentionArgs, DecodePlan);

template <class T>
DecodeKernel decode_kernel(int heads) {
  switch (heads) {
    case 1:
      return attention_decode_kernel<T, 1>;
    case 2:
      return attention_decode_kernel<T, 2>;
    case 3:
      return attention_decode_kernel<T, 3>;
    case 4:
      return attention_decode_kernel<T, 4>;
    case 5:
      return attention_decode_kernel<T, 5>;
    case 6:
      return attention_decode_kernel<T, 6>;
    case 7:
      return attention_decode_kernel<T, 7>;
    default:
      return attention_decode_kernel<T, 8>;
  }
}

DecodeKernel decode_kernel(CacheType type, int heads) {
  return type == CacheType::f16 ? decode_kernel<std::uint16_t>(heads) : decode_kernel<float>(heads);
}

int element_bytes(CacheType type) { return type == CacheType::f16 ? 2 : 4; }

// Fills the multiprocessors once where there is enough work; a unit of fewer heads reads the cache more often, which
// pays where there are few units.
DecodePlan decode_plan(const DeviceTraits& traits, const AttentionArgs& args) {
  const int heads_per_kv = args.head_count / args.cache.kv_head_count;
  DecodePlan plan = {};
  plan.units_per_kv = (heads_per_kv + kMaxUnitHeads - 1) / kMaxUnitHeads;
  const auto blocks = [&](int cluster) {
    return args.row_count * args.cache.kv_head_count * plan.units_per_kv * cluster;
  };
  while (2 * plan.units_per_kv <= heads_per_kv && 2 * blocks(kMaxCluster) <= traits.sm_count / 2)
    plan.units_per_kv *= 2;
  plan.unit_heads = (heads_per_kv + plan.units_per_kv - 1) / plan.units_per_kv;
  plan.units_per_kv = (heads_per_kv + plan.unit_heads - 1) / plan.unit_heads;
  plan.cluster = 1;
  while (plan.cluster < kMaxCluster && blocks(2 * plan.cluster) <= traits.sm_count) plan.cluster *= 2;
  return plan;
}

// Two blocks a multiprocessor if possible, so that the next kernel's blocks find room beside these.
bool fit_shared(const DeviceTraits& traits, int head_dim, int bytes, DecodePlan* plan) {
  constexpr int kReserved = 1024;
  for (const int room : {traits.shared_bytes_per_sm / 2 - kReserved, traits.shared_bytes_per_block})
    for (plan->stages = kMaxStages; plan->stages >= 1; --plan->stages)
      for (plan->wave_slots = kMaxWaveSlots; plan->wave_slots >= 1; plan->wave_slots /= 2)
        if (decode_layout(*plan, head_dim, bytes).total <= room) return true;
  return false;
}

}  // namespace

bool attention_decode_serves(const DeviceTraits& traits, const AttentionArgs& args) {
  if (traits.compute_capability < 90 || args.cache.head_dim > kMaxHeadDim) return false;
  DecodePlan plan = decode_plan(traits, args);
  return fit_shared(traits, args.cache.head_dim, element_bytes(args.cache.type), &plan);
}

void prepare_attention_decode(const DeviceTraits& traits) {
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (int heads = 1; heads <= kMaxUnitHeads; ++heads)
      CUDA_CHECK(cudaFuncSetAttribute(decode_kernel(type, heads), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      traits.shared_bytes_per_block));
}

void launch_attention_decode(const LaunchTarget& target, const AttentionArgs& args) {
  DecodePlan plan = decode_plan(target.traits, args);
  const int bytes = element_bytes(args.cache.type);
  GENAI_EXPECT(fit_shared(target.traits, args.cache.head_dim, bytes, &plan), "attention does not fit");
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(args.row_count * args.cache.kv_head_count * plan.units_per_kv * plan.cluster));
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<std::size_t>(decode_layout(plan, args.cache.head_dim, bytes).total);
  shape.cluster_blocks = static_cast<unsigned>(plan.cluster);
  launch_kernel("attention_decode_kernel", decode_kernel(args.cache.type, plan.unit_heads), shape, target, args, plan);
}

}  // namespace genai::cuda
