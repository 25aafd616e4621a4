// attention_rows.cuh - what the blocks of attention_decode.cu work through: the items of a launch, each a chunk of 64
// positions for one unit of one row, and a group's part of shared memory, into which they are copied.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_finish.cuh"
#include "cuda/kernels/attention_group.cuh"
#include "cuda/kernels/attention_rotate.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kMaxDecodeGroups = 3;
inline constexpr int kMaxDecodeHeadDim = 256;
inline constexpr int kPassDims = 128;  // of values at once
static_assert(kMaxSplitRows <= kWarpLanes, "a lane a row");
static_assert(kMaxDecodeHeadDim <= kMaxTurnedDims);

struct DecodePlan {
  HeadUnits units;
  int unit_count;  // of a row
  int groups;
  bool reads_early;  // rows, and keys and values of earlier passes, ahead of the wait (NOTE [Early reads])
  RotationPlan rotation;
  FinishPlan finish;
};

// One group's part of dynamic shared memory, in this order; the exchange takes the place of values where these are read
// in one pass. Where weights will be, a key is turned first.
template <class T, int kHeads>
struct GroupShared {
  static constexpr int kWeights = 128;  // bytes; the barriers are at 0
  unsigned char* base;
  int head_dim;

  __host__ __device__ static constexpr bool one_pass(int head_dim) { return head_dim <= kPassDims; }
  __host__ __device__ static constexpr int keys_offset(int head_dim) {
    return kWeights + (kHeads * kChunkPositions > head_dim ? kHeads * kChunkPositions : head_dim) * 4;
  }
  __host__ __device__ static constexpr int bytes(int head_dim) {
    const int chunks = 2 * kChunkPositions * head_dim * static_cast<int>(sizeof(T));
    return keys_offset(head_dim) + chunks + kHeads * head_dim * 4 +
           (one_pass(head_dim) ? 0 : 4 * kHeads * kPassDims * 4);
  }
  static_assert(4 * kHeads * 4 <= kChunkPositions * sizeof(T), "the exchange fits in the place of values");

  __device__ SharedBarrier* keys_full() const { return reinterpret_cast<SharedBarrier*>(base); }
  __device__ SharedBarrier* values_full() const { return reinterpret_cast<SharedBarrier*>(base) + 1; }
  __device__ float* weights() const { return reinterpret_cast<float*>(base + kWeights); }    // [head][64]
  __device__ T* keys() const { return reinterpret_cast<T*>(base + keys_offset(head_dim)); }  // [D/8][64][8]
  __device__ T* values() const { return keys() + kChunkPositions * head_dim; }               // [64][D]
  __device__ float* queries() const { return reinterpret_cast<float*>(values() + kChunkPositions * head_dim); }
  __device__ float* exchange() const {
    return one_pass(head_dim) ? reinterpret_cast<float*>(values()) : queries() + kHeads * head_dim;
  }
};

// The same value, but what is computed from it is computed here, not earlier and then kept in registers.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ void decode_group_barrier() {
  static_assert(kMaxDecodeGroups == 3);
  const int group = afresh(static_cast<int>(threadIdx.x)) / kGroupThreads;
  if (group == 0)
    named_barrier<1, kGroupThreads>();
  else if (group == 1)
    named_barrier<2, kGroupThreads>();
  else
    named_barrier<3, kGroupThreads>();
}

__device__ __forceinline__ GroupThread thread_afresh() {
  const unsigned thread = static_cast<unsigned>(afresh(static_cast<int>(threadIdx.x)));
  return {static_cast<int>(thread / kWarpLanes % kGroupWarps), static_cast<int>(thread % kWarpLanes)};
}

// What the items of one row are; they end before index items_end.
struct RowItems {
  ChunkSpan span;
  int sequence;
  int items_end;

  __device__ __forceinline__ int position() const { return span.visible.last; }
};

struct DecodeItem {
  int row;  // of the launch
  int unit;
  int chunk;
};

// One warp: row_count rows from scratch.first_row on, one a lane.
__device__ __forceinline__ void list_items(const AttentionArgs& args, const SplitScratch& scratch, int unit_count,
                                           RowItems* rows) {
  const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
  RowItems own = {};
  if (lane < scratch.row_count) {
    const StepRow* row = raw(args.rows) + scratch.first_row + lane;
    own.span = chunk_span(__ldcg(&row->position), args.window);
    own.sequence = __ldcg(&row->sequence);
    own.items_end = unit_count * own.span.count;
  }
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int before = __shfl_up_sync(kFullWarp, own.items_end, distance);
    if (lane >= distance) own.items_end += before;
  }
  if (lane < scratch.row_count) rows[lane] = own;
}

__device__ __forceinline__ DecodeItem item_at(const RowItems* rows, int index) {
  int row = 0;
  while (index >= rows[row].items_end) ++row;
  const int local = row == 0 ? index : index - rows[row - 1].items_end;
  const int unit = local / rows[row].span.count;
  return {row, unit, local - unit * rows[row].span.count};
}

// The item `distance` further on, which exists.
__device__ __forceinline__ DecodeItem item_after(const RowItems* rows, DecodeItem item, int distance, int unit_count) {
  item.chunk += distance;
  while (item.chunk >= rows[item.row].span.count) {
    item.chunk -= rows[item.row].span.count;
    if (++item.unit < unit_count) continue;
    item.unit = 0;
    ++item.row;
  }
  return item;
}

// What the threads of a launch have in common, and what they ask for: one thread a group.
template <class T, int kHeads>
struct DecodeLaunch {
  const AttentionArgs& args;
  const DecodePlan& plan;
  const SplitScratch& scratch;
  const RowItems* rows;

  __device__ __forceinline__ unsigned chunk_bytes() const {
    return static_cast<unsigned>(kChunkPositions * args.cache.head_dim * static_cast<int>(sizeof(T)));
  }
  __device__ __forceinline__ Unit unit(int index) const { return unit_at(plan.units, index); }
  __device__ __forceinline__ CacheHead<T> cache(const DecodeItem& item, int kv_head) const {
    return cache_head<T>(args.cache, rows[item.row].sequence, rows[item.row].span.first_chunk + item.chunk, kv_head);
  }
  __device__ __forceinline__ unsigned query_bytes(const DecodeItem& item) const {
    return static_cast<unsigned>(unit(item.unit).head_count * args.cache.head_dim * 4);
  }

  // Keys of an item. The same barrier waits for the queries of its unit, where they are to come with them.
  __device__ __forceinline__ void request_keys(const DecodeItem& item, bool with_queries,
                                               const GroupShared<T, kHeads>& shared) const {
    arrive_expecting(shared.keys_full(), chunk_bytes() + (with_queries ? query_bytes(item) : 0u));
    bulk_load(shared.keys(), cache(item, unit(item.unit).kv_head).keys, chunk_bytes(), shared.keys_full(),
              read_once_policy());
  }
  __device__ __forceinline__ void request_queries(const DecodeItem& item, const GroupShared<T, kHeads>& shared) const {
    const std::int64_t m = scratch.first_row + item.row;
    bulk_load(shared.queries(), raw(args.q) + (m * args.head_count + unit(item.unit).first_head) * args.cache.head_dim,
              query_bytes(item), shared.keys_full(), read_often_policy());
  }
  __device__ __forceinline__ void request_values(const DecodeItem& item, const GroupShared<T, kHeads>& shared) const {
    arrive_expecting(shared.values_full(), chunk_bytes());
    bulk_load(shared.values(), cache(item, unit(item.unit).kv_head).values, chunk_bytes(), shared.values_full(),
              read_once_policy());
  }
};

}  // namespace genai::cuda
