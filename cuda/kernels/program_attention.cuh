// program_attention.cuh - attention as an operation of a program (NOTE [Program]), with the rotation ahead of it: what
// a block copies, and the chunks of positions that its groups of warps work through. What these leave behind is merged
// by program_merge.cuh.
//
// Items are those of attention_decode.cu: a chunk for one unit of query heads, in the order (unit, chunk); a block
// takes an equal part of them, its groups take turns. An item is two stages of the ring, its keys and its values, whose
// place serves the exchange of partial sums when they are read. The keys of an item for each group come first, then
// their values: while groups read the ones, the others arrive. A group that begins a unit turns the unit's queries
// itself. A unit's last chunk holds the position of the row, which nobody has written to the cache yet when it is
// copied: whoever has that item puts it in its place, and one of them into the cache. Heads of 128 elements attend by
// program_attention_wide.cuh where they can.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_group.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/program_partials.cuh"
#include "cuda/kernels/program_ring.cuh"
#include "cuda/kernels/program_rotate.cuh"

namespace genai::cuda {

inline constexpr int kItemStages = 2;
inline constexpr int kAttentionWindow = 4;  // stages on their way: smaller copies than those of weights

// Shared memory of a group: queries [head][D], weights [head][64].
inline constexpr int kGroupWeights = kMaxUnitHeads * kMaxProgramHeadDim * 4;
inline constexpr int kGroupAreaBytes = kGroupWeights + kMaxUnitHeads * kChunkPositions * 4;
inline constexpr int kAttentionAreaBytes = kProgramGroups * kGroupAreaBytes;
static_assert(kGroupThreads == kProgramGroupThreads && 2 * kMaxProgramHeadDim <= kMaxUnitHeads * kChunkPositions);

// The calls that one operation serves together. Queries, keys and values must be handed over; which words are read and
// written is left to the caller.
bool program_attention_serves(const RotateArgs& rotate, const AttentionArgs& attention);
AttentionKind attention_kind(const RotateArgs& rotate, const AttentionArgs& attention);
AttentionCall attention_call(const RotateArgs& rotate);

// Where a head of the layer lies.
__device__ __forceinline__ CacheHead<std::uint16_t> program_cache_head(const ProgramAttention& op, int sequence,
                                                                       int chunk, int kv_head) {
  CacheView cache = op.kind.cache;
  cache.layer_offset_bytes = op.call.layer_offset_bytes;
  return cache_head<std::uint16_t>(cache, sequence, chunk, kv_head);
}

// A slot of the ring must hold the keys, or the values, of a chunk.
constexpr int attention_slot_bytes(int head_dim) { return kChunkPositions * head_dim * 2; }

// What the threads of an operation know beside its arguments.
struct AttentionStep {
  HandoverMemory handover;
  StepRow row;
  unsigned launch;
  unsigned char* area;  // kAttentionAreaBytes of shared memory

  __device__ __forceinline__ unsigned* words() const { return handover.words(launch); }
};

struct AttentionItem {
  int unit;
  int chunk;
};

// A block's items.
struct AttentionItems {
  ChunkSpan span;
  bool small;  // units
  int first;
  int count;

  __device__ __forceinline__ AttentionItems(const ProgramAttention& op, const StepRow& row)
      : span(chunk_span(row.position, op.kind.window)), small(span.count <= op.kind.most_small_chunks) {
    const int units_per_kv = op.kind.units_of(small).units_per_kv;
    const unsigned all = static_cast<unsigned>(op.kind.cache.kv_head_count * units_per_kv * span.count);
    first = first_item(all, blockIdx.x);
    count = first_item(all, blockIdx.x + 1) - first;
  }
  __device__ __forceinline__ AttentionItem at(int index) const {
    const int unit = (first + index) / span.count;
    return {unit, first + index - unit * span.count};
  }
};

// The stages of the ring in which the keys and the values of item `index` of `item_count` come, from `first_stage` on:
// the keys of one item for each group, then their values.
struct ItemStages {
  int keys;
  int values;

  __device__ __forceinline__ ItemStages(int first_stage, int index, int item_count) {
    const int of_groups = index % kProgramGroups;
    keys = first_stage + kItemStages * (index - of_groups) + of_groups;
    values = keys + min(item_count - (index - of_groups), kProgramGroups);
  }
};

// Stages that the operation takes in this block, from the next one on.
__device__ __forceinline__ int attention_stages(const ProgramAttention& op, const StepRow& row) {
  return kItemStages * AttentionItems(op, row).count;
}

// Where the keys, or the values, of one item after the other lie.
class ItemCopies {
 public:
  __device__ __forceinline__ ItemCopies(const ProgramAttention& op, const StepRow& row, const AttentionItems& items,
                                        bool of_values)
      : op_(op), items_(items), sequence_(row.sequence), of_values_(of_values), item_(items.at(0)), source_(place()) {}

  __device__ __forceinline__ const unsigned char* next() {
    const unsigned char* source = source_;
    source_ += op_.kind.cache.chunk_bytes;
    if (++item_.chunk == items_.span.count) {
      item_ = {item_.unit + 1, 0};
      source_ = place();
    }
    return source;
  }

 private:
  __device__ __forceinline__ const unsigned char* place() const {
    const CacheHead<std::uint16_t> cache =
        program_cache_head(op_, sequence_, items_.span.first_chunk + item_.chunk,
                           unit_at(op_.kind.units_of(items_.small), item_.unit).kv_head);
    return reinterpret_cast<const unsigned char*>(of_values_ ? cache.values : cache.keys);
  }

  const ProgramAttention& op_;
  const AttentionItems& items_;
  int sequence_;
  bool of_values_;
  AttentionItem item_;
  const unsigned char* source_;
};

// The warp that copies, of which one lane acts: what a copy takes from one place in the ring being free to the next
// request is time in which the memory does less. The cache must have what earlier launches wrote.
__device__ __forceinline__ void feed_attention(const ProgramAttention& op, const StepRow& row, int product_window,
                                               RingFeeder& feeder) {
  const AttentionItems items(op, row);
  const unsigned bytes = static_cast<unsigned>(kChunkPositions * op.kind.cache.head_dim * 2);
  feeder.set_window(kAttentionWindow);
  if (own_lane() == 0) {
    ItemCopies keys(op, row, items, false);
    ItemCopies values(op, row, items, true);
#pragma unroll 1
    for (int first = 0; first < items.count; first += kProgramGroups) {
      const int count = min(items.count - first, kProgramGroups);
#pragma unroll 1
      for (int i = 0; i < kItemStages * count; ++i) feeder.copy_one(i < count ? keys.next() : values.next(), bytes);
    }
  } else {
    feeder.pass(kItemStages * items.count);
  }
  __syncwarp();
  feeder.set_window(product_window);
}

// By a warp that has read what the stage holds.
__device__ __forceinline__ void release_stage(const ProgramRing& ring, int stage) {
  __syncwarp();
  if (arrives_for_warp(own_lane())) ring.release(stage);
}

enum class OwnPart : int { key, value };

// The key or the value of the row's position: into its place in the stage, and into the cache where the block `stores`.
// One warp; `staged` holds a head.
__device__ __forceinline__ void put_own_position(const ProgramAttention& op, const AttentionStep& step,
                                                 const ProgramRing& ring, OwnPart part, int stage, int kv_head,
                                                 bool stores, float* staged) {
  const bool is_key = part == OwnPart::key;
  const int head_dim = op.kind.cache.head_dim;
  const int slot = step.row.position % kChunkPositions;
  const HeadTurn turn(op, is_key ? op.call.k_norm : nullptr, step.row.position);
  take_heads<1>(step.words() + (is_key ? op.call.k_words : op.call.v_words), kv_head * head_dim, 0, 1, head_dim, staged,
                0);
  if (is_key) turn(op, staged);
  __syncwarp();
  const CacheHead<std::uint16_t> cache =
      program_cache_head(op, step.row.sequence, step.row.position / kChunkPositions, kv_head);
  std::uint16_t* global = is_key ? cache.keys : cache.values;
  std::uint16_t* shared = reinterpret_cast<std::uint16_t*>(ring.slot(stage));
  ring.wait_full(stage);
  put_position(staged, is_key, slot, head_dim, stores, shared, global);
}

// The unit's queries, after norm and rotation, a warp a head.
template <int kHeads>
__device__ __forceinline__ void turn_queries(const ProgramAttention& op, const AttentionStep& step, const Unit& unit,
                                             int warp, float* queries) {
  constexpr int kRounds = (kHeads + kGroupWarps - 1) / kGroupWarps;
  const int stride = kGroupWarps * op.kind.cache.head_dim;
  const int count = (unit.head_count - warp + kGroupWarps - 1) / kGroupWarps;
  const HeadTurn turn(op, op.call.q_norm, step.row.position);
  float* own = queries + warp * op.kind.cache.head_dim;
  take_heads<kRounds>(step.words() + op.call.q_words, (unit.first_head + warp) * op.kind.cache.head_dim, stride, count,
                      op.kind.cache.head_dim, own, stride);
#pragma unroll 1
  for (int round = 0; round < count; ++round) turn(op, own + round * stride);
}

// A thread of a group. Like all that follows from little, computed where it is needed: sums take the registers.
struct ConsumerThread {
  int group;
  GroupThread own;

  __device__ __forceinline__ ConsumerThread() {
    const int thread = own_thread();
    group = thread / kGroupThreads;
    own = {thread / kWarpLanes % kGroupWarps, thread % kWarpLanes};
  }
};

// What is the same for all items.
struct Attention {
  const ProgramAttention& op;
  const AttentionStep& step;
  const ProgramRing& ring;
  bool small;  // units

  __device__ __forceinline__ ChunkSpan span() const { return chunk_span(keep(step.row.position), op.kind.window); }
  __device__ __forceinline__ Unit unit(int index) const { return unit_at(op.kind.units_of(small), keep(index)); }
  __device__ __forceinline__ ChunkWords words() const { return ChunkWords(op, step.handover); }
  __device__ __forceinline__ void barrier() const { program_group_barrier(ConsumerThread().group); }
  __device__ __forceinline__ float* queries() const {
    return reinterpret_cast<float*>(step.area + ConsumerThread().group * kGroupAreaBytes);
  }
  __device__ __forceinline__ float* weights() const {
    return reinterpret_cast<float*>(step.area + ConsumerThread().group * kGroupAreaBytes + kGroupWeights);
  }
};

// Begins an item: queries where it is the group's first one of its unit, the row's own position where it has that.
template <int kHeads>
__device__ __forceinline__ void begin_item(const Attention& attention, const AttentionItem& item, bool begins_unit,
                                           int keys_stage, int values_stage) {
  constexpr int kKeyWarp = 3;  // these two put the row's position in its place: they have the fewest queries
  constexpr int kValueWarp = 2;
  const ProgramAttention& op = attention.op;
  const bool has_own = item.chunk + 1 == attention.span().count;
  if (!has_own && !begins_unit) return;
  const GroupThread own = ConsumerThread().own;
  const Unit unit = attention.unit(item.unit);
  // Others may still add up the last item's partials; they are done with queries and weights.
  if (has_own && (own.warp == kKeyWarp || own.warp == kValueWarp)) {
    const bool is_key = own.warp == kKeyWarp;
    put_own_position(op, attention.step, attention.ring, is_key ? OwnPart::key : OwnPart::value,
                     is_key ? keys_stage : values_stage, unit.kv_head, leads_kv_head(op.kind.units, unit),
                     attention.weights() + (is_key ? 0 : kMaxProgramHeadDim));
  }
  float* queries = attention.queries();
  if (begins_unit) turn_queries<kHeads>(op, attention.step, unit, own.warp, queries);
  attention.barrier();
  if (!has_own || !op.call.stores_q) return;
  const int elements = unit.head_count * op.kind.cache.head_dim;
  float* out = op.kind.q_out + unit.first_head * op.kind.cache.head_dim;
  for (int i = own.warp * kWarpLanes + own.lane; i < elements; i += kGroupThreads) out[i] = queries[i];
}

// The weights of the item's chunk, where its dots are.
template <int kHeads>
__device__ __forceinline__ void weigh_scores(const Attention& attention, const AttentionItem& item) {
  const GroupThread own = ConsumerThread().own;
  if (2 * own.warp >= kHeads) return;
  const ChunkSpan span = attention.span();
  const ChunkSum sum = soften<kHeads>(own, attention.op.kind.scale, attention.op.kind.soft_cap,
                                      span.first_in(item.chunk), span.last_in(item.chunk), attention.weights());
  const int head = 2 * own.warp + own.lane / 16;
  const Unit unit = attention.unit(item.unit);
  const ChunkWords words = attention.words();
  const int slice = own.lane % 16;  // a lane a copy
  if (slice < words.slices && head < unit.head_count)
    hand_over_sum(words.sum(unit.first_head + head, slice, item.chunk), sum);
}

// oc of all heads into the chunk's words, and the stages of its values back to the ring.
template <int kHeads>
__device__ __forceinline__ void weigh_values(const Attention& attention, const AttentionItem& item, int stage) {
  constexpr int kDims = kMaxProgramHeadDim / kWarpLanes;
  const int head_dim = attention.op.kind.cache.head_dim;
  float sum[kHeads][kDims] = {};
  attention.ring.wait_full(stage);
  if (const GroupThread own = ConsumerThread().own; own.lane * kDims < head_dim) {
    const ChunkSpan span = attention.span();
    const std::uint16_t* values = reinterpret_cast<const std::uint16_t*>(attention.ring.slot(stage));
    weigh_quarter<std::uint16_t, kHeads, kDims>(values + own.warp * head_dim + own.lane * kDims, head_dim,
                                                attention.weights(), own.warp, span.first_in(item.chunk),
                                                span.last_in(item.chunk), sum);
  }
  attention.barrier();  // all have read the values
  const GroupThread own = ConsumerThread().own;
  const int dim = own.lane * kDims;
  float* exchange = reinterpret_cast<float*>(attention.ring.slot(stage));
  if (dim < head_dim) put_partials<kHeads, kDims>(own, head_dim, sum, exchange);
  order_before_bulk_loads();
  attention.barrier();
  const Unit unit = attention.unit(item.unit);
  const ChunkWords words = attention.words();
  unsigned* place = words.output(unit.first_head, dim / kSliceDims, item.chunk) + dim % kSliceDims;
  const std::int64_t stride = words.output(1, 0, 0) - words.output(0, 0, 0);
  add_partials<kHeads>(own, exchange, head_dim, head_dim, unit.head_count,
                       [place, stride](int head, const float4& sums) { hand_over_four(place + head * stride, sums); });
  release_stage(attention.ring, stage);
}

template <int kHeads>
__device__ __forceinline__ void attend_units(const Attention& attention, int first_stage) {
  const AttentionItems items(attention.op, attention.step.row);
  int index = ConsumerThread().group;
  AttentionItem item = items.at(index);
  bool begins_unit = true;
#pragma unroll 1
  for (; index < items.count; index += kProgramGroups) {
    const ItemStages stages(keep(first_stage), index, items.count);
    begin_item<kHeads>(attention, item, begins_unit, stages.keys, stages.values);
    attention.ring.wait_full(stages.keys);
    dot_keys<std::uint16_t, kHeads>(ConsumerThread().own,
                                    reinterpret_cast<const std::uint16_t*>(attention.ring.slot(stages.keys)),
                                    attention.queries(), attention.op.kind.cache.head_dim, attention.weights());
    release_stage(attention.ring, stages.keys);
    attention.barrier();
    weigh_scores<kHeads>(attention, item);
    attention.barrier();
    weigh_values<kHeads>(attention, item, stages.values);
    begins_unit = false;
    const int count = attention.span().count;
    for (item.chunk += kProgramGroups; item.chunk >= count; item.chunk -= count) {
      ++item.unit;
      begins_unit = true;
    }
  }
}

__device__ __forceinline__ void attend_any(const Attention& attention, int first_stage) {
  const int heads = attention.op.kind.units_of(attention.small).unit_heads;
  if (heads <= 4) return attend_units<4>(attention, first_stage);
  if (heads <= 7) return attend_units<7>(attention, first_stage);
  attend_units<8>(attention, first_stage);
}

}  // namespace genai::cuda
