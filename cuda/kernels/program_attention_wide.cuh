// program_attention_wide.cuh - attention as an operation of a program for heads of 128 elements (attention_wide.cuh),
// where a block's items are of two units at most: the same items, stages and words handed over as in
// program_attention.cuh.
//
// All warps of a block prepare what its items need, each a head: queries after norm and rotation, and the key and the
// value of the row's own position where an item has that. Done by the items themselves it makes the blocks in which a
// unit ends and the next one begins slower than others, and everybody waits for the last block.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_wide.cuh"
#include "cuda/kernels/program_attention.cuh"

namespace genai::cuda {

inline constexpr int kWideSlices = kWideHead / kSliceDims;
inline constexpr int kWideUnits = 2;  // of a block

// What a block has prepared of a unit.
struct alignas(16) WideUnit {
  float queries[kMaxUnitHeads * kWideQueryFloats];
  std::uint16_t own[2][kWideHead];  // OwnPart: of the row's own position, as the cache has it
  unsigned* outputs;                // words of its first head's first slice and chunk
  unsigned* sums;
  int chunk_capacity;
  int head_count;
};

// Shared memory of half of the groups, a half of the area, as the merge has it; a unit lies in each.
struct WideHalf {
  WideUnit unit;
  float weights[kProgramGroups / kWideUnits][kMaxUnitHeads * kChunkPositions];
  unsigned char rest[kAttentionAreaBytes / kWideUnits - sizeof(WideUnit) - sizeof(weights)];
};
static_assert(kWideUnits == 2 && kWideUnits * sizeof(WideHalf) == kAttentionAreaBytes);
static_assert(kGroupWarps * kWideHead <= kMaxUnitHeads * kChunkPositions, "a head a warp, in the place of weights");

struct WideAttention {
  const ProgramAttention& op;
  const AttentionStep& step;
  const ProgramRing& ring;
  const AttentionItems& items;

  __device__ __forceinline__ WideHalf& half(int index) const { return reinterpret_cast<WideHalf*>(step.area)[index]; }
  __device__ __forceinline__ WideUnit& unit(int index) const { return half(index).unit; }
  // Where all items are of one unit, each half has all of it: the second place of what is prepared of unit `index`, and
  // the place from which the thread's group takes a unit.
  __device__ __forceinline__ int second_place(int index) const { return unit_count() == 1 ? 1 : index; }
  __device__ __forceinline__ int place_of(int unit) const {
    return unit_count() == 1 ? ConsumerThread().group / (kProgramGroups / kWideUnits) : unit - first_unit();
  }
  __device__ __forceinline__ float* weights() const {
    constexpr int kHalfGroups = kProgramGroups / kWideUnits;
    const int group = ConsumerThread().group;
    return half(group / kHalfGroups).weights[group % kHalfGroups];
  }
  __device__ __forceinline__ void barrier() const { program_group_barrier(ConsumerThread().group); }
  __device__ __forceinline__ int first_unit() const { return items.first / items.span.count; }
  __device__ __forceinline__ int unit_count() const {
    return (items.first + items.count - 1) / items.span.count - first_unit() + 1;
  }
  // Whether the item with the row's own position, a unit's last one, is the block's.
  __device__ __forceinline__ bool has_own(int unit) const {
    return (unit + 1) * items.span.count <= items.first + items.count;
  }
};

// A query of the block's unit `index`. By a warp, in whose `staged` a head has room.
__device__ __forceinline__ void prepare_query(const WideAttention& attention, int index, int head, float* staged) {
  const ProgramAttention& op = attention.op;
  const Unit unit = unit_at(op.kind.units_of(attention.items.small), attention.first_unit() + index);
  if (head >= unit.head_count) return;
  const int lane = own_lane();
  const HeadTurn turn(op, op.call.q_norm, attention.step.row.position);
  const int first = (unit.first_head + head) * kWideHead;
  take_heads<1>(attention.step.words() + op.call.q_words, first, 0, 1, kWideHead, staged, 0);
  turn(op, staged);
  __syncwarp();
  float* query = attention.unit(index).queries + head * kWideQueryFloats;
  float* second_query = attention.unit(attention.second_place(index)).queries + head * kWideQueryFloats;
  const bool stores = op.call.stores_q && attention.has_own(attention.first_unit() + index);
#pragma unroll
  for (int k = 0; k < kHeadElements; ++k) {
    const int element = head_element(lane, k);
    query[wide_query_place(element)] = staged[element];
    second_query[wide_query_place(element)] = staged[element];
    if (stores) op.kind.q_out[first + element] = staged[element];
  }
}

// The key or the value of the row's own position, also into the cache.
__device__ __forceinline__ void prepare_own(const WideAttention& attention, int index, OwnPart part, float* staged) {
  const ProgramAttention& op = attention.op;
  if (!attention.has_own(attention.first_unit() + index)) return;
  const Unit unit = unit_at(op.kind.units_of(attention.items.small), attention.first_unit() + index);
  const bool is_key = part == OwnPart::key;
  const int position = attention.step.row.position;
  const HeadTurn turn(op, is_key ? op.call.k_norm : nullptr, position);
  take_heads<1>(attention.step.words() + (is_key ? op.call.k_words : op.call.v_words), unit.kv_head * kWideHead, 0, 1,
                kWideHead, staged, 0);
  if (is_key) turn(op, staged);
  __syncwarp();
  const CacheHead<std::uint16_t> cache =
      program_cache_head(op, attention.step.row.sequence, position / kChunkPositions, unit.kv_head);
  std::uint16_t* cached = is_key ? cache.keys : cache.values;
  const int slot = position % kChunkPositions;
  const bool stores = leads_kv_head(op.kind.units, unit);
#pragma unroll
  for (int k = 0; k < kHeadElements; ++k) {
    const int element = head_element(own_lane(), k);
    const std::uint16_t half = float_to_half(staged[element]);
    attention.unit(index).own[is_key ? 0 : 1][element] = half;
    attention.unit(attention.second_place(index)).own[is_key ? 0 : 1][element] = half;
    if (stores) cached[position_place(is_key, slot, kWideHead, element)] = half;
  }
}

// All that the block's items need, by all warps; a barrier of these must follow.
template <int kHeads>
__device__ __forceinline__ void prepare_items(const WideAttention& attention) {
  constexpr int kUnitTasks = kHeads + 2;
  const int warp = own_warp();
  float* staged = attention.weights() + warp % kGroupWarps * kWideHead;
#pragma unroll 1
  for (int task = warp; task < attention.unit_count() * kUnitTasks; task += kConsumerWarps) {
    const int index = task / kUnitTasks;
    const int head = task - index * kUnitTasks;
    if (head < kHeads)
      prepare_query(attention, index, head, staged);
    else
      prepare_own(attention, index, head == kHeads ? OwnPart::key : OwnPart::value, staged);
  }
  if (warp == kConsumerWarps - 1 && own_lane() < kWideUnits) {
    const ProgramAttention& op = attention.op;
    const int index = min(own_lane(), attention.unit_count() - 1);
    const Unit unit = unit_at(op.kind.units_of(attention.items.small), attention.first_unit() + index);
    const ChunkWords words(op, attention.step.handover);
    WideUnit& prepared = attention.unit(own_lane());
    prepared.outputs = words.output(unit.first_head, 0, 0);
    prepared.sums = words.sum(unit.first_head, 0, 0);
    prepared.chunk_capacity = words.capacity;
    prepared.head_count = unit.head_count;
  }
}

// The row's own key or value into its place among the item's, by the warp that reads that place.
__device__ __forceinline__ void put_own(const std::uint16_t* own, std::uint16_t* place, int stride) {
  if (own_lane() < kWideOctets)
    *reinterpret_cast<uint4*>(place + own_lane() * stride) = *reinterpret_cast<const uint4*>(own + own_lane() * 8);
  order_before_bulk_loads();
  __syncwarp();
}

// By all warps of the group: the weights of the item's chunk, where its dots are.
template <int kHeads>
__device__ __forceinline__ void weigh_wide_scores(const WideAttention& attention, const WideUnit& unit, int chunk,
                                                  int first, int last) {
  const GroupThread own = ConsumerThread().own;
  if (2 * own.warp >= kHeads) return;
  const ChunkSum sum =
      soften<kHeads>(own, attention.op.kind.scale, attention.op.kind.soft_cap, first, last, attention.weights());
  const int head = 2 * own.warp + own.lane / 16;
  const int slice = own.lane % 16;  // a lane a copy
  if (slice < kWideSlices && head < unit.head_count)
    hand_over_sum(unit.sums + ((head * kWideSlices + slice) * unit.chunk_capacity + chunk) * kSumWords, sum);
}

// oc of all heads into the chunk's words, and the stage of its values back to the ring.
template <int kHeads>
__device__ __forceinline__ void weigh_wide_item(const WideAttention& attention, const WideUnit& unit, int chunk,
                                                int first, int last, int stage) {
  std::uint16_t* values = reinterpret_cast<std::uint16_t*>(attention.ring.slot(stage));
  weigh_wide_values<kHeads>(ConsumerThread().own, values, attention.weights(), first, last);
  order_before_bulk_loads();
  attention.barrier();
  const GroupThread own = ConsumerThread().own;
  const int dim = 4 * own.lane;
  unsigned* place = unit.outputs + (dim / kSliceDims * unit.chunk_capacity + chunk) * kSliceDims + dim % kSliceDims;
  const int stride = kWideSlices * kSliceDims * unit.chunk_capacity;
  add_wide_partials<kHeads>(
      own, reinterpret_cast<const float*>(values), unit.head_count,
      [place, stride](int head, const float4& sums) { hand_over_four(place + head * stride, sums); });
  release_stage(attention.ring, stage);
}

template <int kHeads>
__device__ __forceinline__ void attend_wide_items(const WideAttention& attention, int first_stage) {
  prepare_items<kHeads>(attention);
  consumer_barrier();
  const AttentionItems& items = attention.items;
  const int slot = attention.step.row.position % kChunkPositions;
  AttentionItem item = items.at(ConsumerThread().group);
#pragma unroll 1
  for (int index = ConsumerThread().group; index < items.count; index += kProgramGroups) {
    const WideUnit& unit = attention.unit(attention.place_of(item.unit));
    const bool has_own = item.chunk + 1 == items.span.count;
    const ItemStages stages(keep(first_stage), index, items.count);
    const int first = items.span.first_in(item.chunk);
    const int last = items.span.last_in(item.chunk);
    attention.ring.wait_full(stages.keys);
    std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(attention.ring.slot(stages.keys));
    if (has_own && ConsumerThread().own.warp == slot / 16) put_own(unit.own[0], keys + slot * 8, kChunkPositions * 8);
    dot_wide_keys<kHeads>(ConsumerThread().own, keys, unit.queries, attention.weights());
    release_stage(attention.ring, stages.keys);
    attention.barrier();
    weigh_wide_scores<kHeads>(attention, unit, item.chunk, first, last);
    attention.barrier();
    attention.ring.wait_full(stages.values);
    std::uint16_t* values = reinterpret_cast<std::uint16_t*>(attention.ring.slot(stages.values));
    if (has_own && ConsumerThread().own.warp == slot % 4) put_own(unit.own[1], values + slot * kWideHead, 8);
    weigh_wide_item<kHeads>(attention, unit, item.chunk, first, last, stages.values);
    for (item.chunk += kProgramGroups; item.chunk >= items.span.count; item.chunk -= items.span.count) ++item.unit;
  }
  // A half of the groups that is done would merge where the other one still reads.
  if (attention.unit_count() > 1) consumer_barrier();
}

// All threads that consume; the block's area is free before, and each half's is again behind it. `first_stage` as for
// attention_stages.
__device__ __forceinline__ void attend(const ProgramAttention& op, const AttentionStep& step, const ProgramRing& ring,
                                       int first_stage) {
  const AttentionItems items(op, step.row);
  if (items.count == 0) return;
  const WideAttention attention = {op, step, ring, items};
  if (op.kind.cache.head_dim != kWideHead || attention.unit_count() > kWideUnits)
    return attend_any({op, step, ring, items.small}, first_stage);
  switch (op.kind.units_of(items.small).unit_heads) {
    case 1:
    case 2:
    case 3:
    case 4:
      return attend_wide_items<4>(attention, first_stage);
    case 5:
      return attend_wide_items<5>(attention, first_stage);
    case 6:
    case 7:
      return attend_wide_items<7>(attention, first_stage);
    default:
      return attend_wide_items<8>(attention, first_stage);
  }
}

}  // namespace genai::cuda
