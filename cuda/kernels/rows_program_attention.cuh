// rows_program_attention.cuh - attention ahead of a product of a chain (NOTE [Rows attention]), with the rotation ahead
// of it.
//
// NOTE [Rows attention]
// An item is a chunk for one unit of query heads of one row, in the order (row, unit, chunk); where there are few
// chunks units are small, so that all have something to do. A block takes an equal part of all items, its three groups
// of four warps take turns; four more warps only merge (rows_program_merge.cuh), and the result is handed over as
// slices of the next product's input. Keys and values lie where the last input and the exchange were, queries and
// weights where nothing of the projections is, so that queries are taken while other warps still finish those. The
// copying threads hold the next product's weights back until the first keys and values are on their way. A chunk may
// hold positions of several rows of the pass: nobody has written these to the cache when it is copied, so whoever has
// an item takes them all as they are handed over and puts them in their places, and one of them puts the row's own into
// the cache. All of this code runs once a layer and is fetched anew each time, which takes longer than to run it: there
// is one copy of everything but sums, one thread works out what an item is ahead of it, and loops are less unrolled
// than elsewhere (measured on an H200, 14B: a copy for each number of heads makes a step of four rows 2 % longer).
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/kernels/attention_group.cuh"
#include "cuda/kernels/program_attention.cuh"
#include "cuda/kernels/program_rotate.cuh"
#include "cuda/kernels/rows_program.cuh"

namespace genai::cuda {

inline constexpr int kMaxRowsUnitHeads = 5;  // with more, sums take the registers of what is on its way

// A group's queries [head][D] and weights [head][64], and where these are not there, a head a warp.
inline constexpr int kRowsGroupWeights = kMaxRowsUnitHeads * kMaxProgramHeadDim * 4;
inline constexpr int kRowsGroupBytes =
    kRowsGroupWeights + std::max(kMaxRowsUnitHeads * kChunkPositions, kGroupWarps* kMaxProgramHeadDim) * 4;
inline constexpr int kRowsQueryBytes = (kRowsGroups + 1) * kRowsGroupBytes;  // and of the warps that only merge
// Its keys, then its values; partial sums take the place of values.
inline constexpr int kRowsChunkBytes = kChunkPositions * kMaxProgramHeadDim * 2;
static_assert(kGroupWarps * kMaxRowsUnitHeads * kMaxProgramHeadDim * 4 <= kRowsChunkBytes);

// Whether the calls can be ahead of the product, and the product reads what they leave.
bool rows_attention_serves(const RotateArgs& rotate, const AttentionArgs& attention, const MatmulArgs& product);

__device__ __forceinline__ SharedBarrier* attention_barrier(const RowsProgram& program, int index,
                                                            unsigned char* shared) {
  return reinterpret_cast<SharedBarrier*>(shared + program.attention_barriers) + index;
}

// What the threads of an attention know.
struct PassAttention {
  const RowsProgram& program;
  const ProgramAttention& op;
  int kind;
  unsigned char* shared;

  __device__ __forceinline__ int own_group() const { return keep(static_cast<int>(threadIdx.x)) / kGroupThreads; }
  __device__ __forceinline__ GroupThread own() const {
    const int thread = keep(static_cast<int>(threadIdx.x));
    return {thread / kWarpLanes % kGroupWarps, thread % kWarpLanes};
  }
  __device__ __forceinline__ bool leads() const {
    return keep(static_cast<int>(threadIdx.x)) % kGroupThreads == kGroupThreads - kWarpLanes;
  }
  __device__ __forceinline__ void barrier() const { numbered_barrier<kGroupThreads>(kFirstGroupBarrier + own_group()); }
  __device__ __forceinline__ RowPosition row(int m) const {
    return reinterpret_cast<const RowPosition*>(shared + program.positions)[m];
  }
  __device__ __forceinline__ ChunkSpan span(int m) const { return chunk_span(row(m).position, op.kind.window); }
  __device__ __forceinline__ RowsPlan& plan(int group) const {
    return reinterpret_cast<RowsPlan*>(shared + program.plans)[kind * kRowsGroups + group];
  }
  __device__ __forceinline__ const RowsPlan& plan() const { return plan(own_group()); }
  // Where the group's items behind the first are worked out, in turn.
  __device__ __forceinline__ RowsItem& next_item(int turn) const {
    return reinterpret_cast<RowsItem*>(shared + program.items)[kItemPlaces * own_group() + turn];
  }
  __device__ __forceinline__ unsigned* words() const { return launch_words(program, shared); }
  __device__ __forceinline__ ChunkWords chunk_words() const {
    return ChunkWords(op, program.handover, program.row_count);
  }
  __device__ __forceinline__ std::uint16_t* keys() const {
    const int group = own_group();
    return reinterpret_cast<std::uint16_t*>(shared + group * 2 * kRowsChunkBytes +
                                            (group > 0 ? program.queries - 2 * kRowsChunkBytes + kRowsQueryBytes : 0));
  }
  __device__ __forceinline__ std::uint16_t* values() const { return keys() + kRowsChunkBytes / 2; }
  __device__ __forceinline__ float* queries() const {
    return reinterpret_cast<float*>(shared + program.queries + own_group() * kRowsGroupBytes);
  }
  __device__ __forceinline__ float* weights() const { return queries() + kRowsGroupWeights / 4; }
  __device__ __forceinline__ SharedBarrier* keys_full() const {
    return attention_barrier(program, 2 * own_group(), shared);
  }
  __device__ __forceinline__ SharedBarrier* values_full() const { return keys_full() + 1; }
  __device__ __forceinline__ unsigned& phase() const {
    return reinterpret_cast<unsigned*>(shared + program.phases)[own_group()];
  }
};

// All about an item.
__device__ __forceinline__ void describe_item(const PassAttention& attention, const HeadUnits& units, int row,
                                              int unit_index, int chunk, RowsItem& item) {
  const AttentionKind& kind = attention.op.kind;
  const Unit unit = unit_at(units, unit_index);
  const RowPosition own = attention.row(row);
  const ChunkSpan span = attention.span(row);
  item.row = static_cast<std::int16_t>(row);
  item.unit = unit_index;
  item.chunk = chunk;
  item.kv_head = static_cast<std::int16_t>(unit.kv_head);
  item.first_head = row * kind.head_count + unit.first_head;
  item.head_count = static_cast<std::int16_t>(unit.head_count);
  item.first_in = static_cast<std::int16_t>(span.first_in(chunk));
  item.last_in = static_cast<std::int16_t>(span.last_in(chunk));
  item.ends_row = chunk + 1 == span.count;
  item.leads_kv_head = leads_kv_head(units, unit);
  unsigned rows = 0;
#pragma unroll 1
  for (int m = 0; m < attention.program.row_count; ++m) {
    const RowPosition other = attention.row(m);
    if (other.sequence == own.sequence && other.position / kChunkPositions == span.first_chunk + chunk) rows |= 1u << m;
  }
  item.rows = static_cast<std::uint8_t>(rows);
  item.keys = reinterpret_cast<std::uint64_t>(
      cache_head<std::uint16_t>(kind.cache, own.sequence, span.first_chunk + chunk, unit.kv_head).keys);
}

// The items of a group, by one thread, at the beginning of a launch.
__device__ __forceinline__ void plan_items(const PassAttention& attention, int group) {
  const AttentionKind& kind = attention.op.kind;
  const int row_count = attention.program.row_count;
  RowsPlan& plan = attention.plan(group);
  int chunks = 0;
#pragma unroll 1
  for (int m = 0; m < row_count; ++m) chunks += attention.span(m).count;
  // As many units as groups have at once, if not too many heads are in one.
  const int heads = kind.units.heads_per_kv;
  const int kv_heads = kind.cache.kv_head_count;
  const int groups = kRowsGroups * static_cast<int>(gridDim.x);
  const int units = min(max(groups / (chunks * kv_heads), (heads + kMaxRowsUnitHeads - 1) / kMaxRowsUnitHeads), heads);
  const int unit_heads = (heads + units - 1) / units;
  plan.units = {heads, (heads + unit_heads - 1) / unit_heads, unit_heads};
  const int row_units = kv_heads * plan.units.units_per_kv;
  const unsigned all = static_cast<unsigned>(chunks * row_units);
  int index = first_item(all, blockIdx.x) + group;
  plan.count = first_item(all, blockIdx.x + 1) - index;
  if (plan.count <= 0) return;
  int row = 0;
#pragma unroll 1
  for (; index >= attention.span(row).count * row_units; ++row) index -= attention.span(row).count * row_units;
  const int count = attention.span(row).count;
  describe_item(attention, plan.units, row, index / count, index % count, plan.item);
}

// The item kRowsGroups further on, which exists, by one thread.
__device__ __forceinline__ void follow_item(const PassAttention& attention, const RowsItem& item, RowsItem& next) {
  const HeadUnits units = attention.plan().units;
  int row = item.row;
  int unit = item.unit;
  int chunk = item.chunk + kRowsGroups;
#pragma unroll 1
  for (int count = attention.span(row).count; chunk >= count; count = attention.span(row).count) {
    chunk -= count;
    if (++unit < attention.op.kind.cache.kv_head_count * units.units_per_kv) continue;
    unit = 0;
    ++row;
  }
  describe_item(attention, units, row, unit, chunk, next);
  next.begins_unit = row != item.row || unit != item.unit;
}

__device__ __forceinline__ CacheHead<std::uint16_t> item_cache(const PassAttention& attention, const RowsItem& item) {
  const CacheView& cache = attention.op.kind.cache;
  std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(item.keys + attention.op.call.layer_offset_bytes);
  return {keys, keys + cache.kv_head_count * kChunkPositions * cache.head_dim};
}

// By one thread of the group.
__device__ __forceinline__ void request_chunk(const PassAttention& attention, const void* source, void* place,
                                              SharedBarrier* full) {
  const unsigned bytes = static_cast<unsigned>(kChunkPositions * attention.op.kind.cache.head_dim * 2);
  arrive_expecting(full, bytes);
  bulk_load(place, source, bytes, full, read_once_policy());
}
__device__ __forceinline__ void request_keys(const PassAttention& attention, const RowsItem& item) {
  request_chunk(attention, item_cache(attention, item).keys, attention.keys(), attention.keys_full());
}
__device__ __forceinline__ void request_values(const PassAttention& attention, const RowsItem& item) {
  request_chunk(attention, item_cache(attention, item).values, attention.values(), attention.values_full());
}

// What a warp takes from where projections hand it over: a head of the item's queries, or a row's key or value.
enum class HeadPart : int { query, key, value };

// By one warp. Keys and values go into their places among those of the item, and into the cache where it is the item's
// row that they are of.
__device__ __forceinline__ void take_head(const PassAttention& attention, const RowsItem& item, HeadPart part, int m,
                                          int head, unsigned phase) {
  const ProgramAttention& op = attention.op;
  const int head_dim = op.kind.cache.head_dim;
  const int position = attention.row(m).position;
  const bool is_query = part == HeadPart::query;
  const bool is_key = part == HeadPart::key;
  const HeadTurn turn(op, is_query ? op.call.q_norm : is_key ? op.call.k_norm : nullptr, position);
  int first = m * op.kind.cache.kv_head_count + item.kv_head;
  float* staged = attention.weights() + attention.own().warp * kMaxProgramHeadDim;
  if (is_query) {
    first = item.first_head + head;
    staged = attention.queries() + head * head_dim;
  }
  take_heads<1>(attention.words() + (is_query ? op.call.q_words
                                     : is_key ? op.call.k_words
                                              : op.call.v_words),
                first * head_dim, 0, 1, head_dim, staged, 0);
  if (part != HeadPart::value) turn(op, staged);
  if (is_query) return;
  __syncwarp();
  const CacheHead<std::uint16_t> cache = item_cache(attention, item);
  std::uint16_t* global = is_key ? cache.keys : cache.values;
  std::uint16_t* shared = is_key ? attention.keys() : attention.values();
  const bool stores = m == item.row && item.leads_kv_head;
  const int slot = position % kChunkPositions;
  wait_phase(is_key ? attention.keys_full() : attention.values_full(), phase);
  put_position(staged, is_key, slot, head_dim, stores, shared, global);
}

// Begins an item: queries where it is the group's first one of its unit, the positions of the pass where it has any. A
// warp a head.
__device__ __forceinline__ void begin_item(const PassAttention& attention, const RowsItem& item, bool begins_unit,
                                           unsigned phase) {
  const int heads = begins_unit ? item.head_count : 0;
  const unsigned rows = item.rows;
  const int tasks = heads + 2 * __popc(rows);
#pragma unroll 1
  for (int task = attention.own().warp; task < tasks; task += kGroupWarps) {
    HeadPart part = HeadPart::query;
    int m = item.row;
    if (task >= heads) {
      unsigned others = rows;
#pragma unroll 1
      for (int i = (task - heads) / 2; i > 0; --i) others &= others - 1;
      m = __ffs(static_cast<int>(others)) - 1;
      part = (task - heads) % 2 == 0 ? HeadPart::key : HeadPart::value;
    }
    take_head(attention, item, part, m, task, phase);
  }
}

// Rotated, where the calls leave them.
__device__ __forceinline__ void store_queries(const PassAttention& attention, const RowsItem& item) {
  const AttentionKind& kind = attention.op.kind;
  float* out = kind.q_out + item.first_head * kind.cache.head_dim;
  const GroupThread own = attention.own();
#pragma unroll 1
  for (int i = own.warp * kWarpLanes + own.lane; i < item.head_count * kind.cache.head_dim; i += kGroupThreads)
    out[i] = attention.queries()[i];
}

// Calls compute(number) for the number of heads of units as a constant.
template <class Compute>
__device__ __forceinline__ void for_unit_heads(int unit_heads, const Compute& compute) {
  static_assert(kMaxRowsUnitHeads == 5);
  switch (unit_heads) {
    case 1:
      return compute(std::integral_constant<int, 1>());
    case 2:
      return compute(std::integral_constant<int, 2>());
    case 3:
      return compute(std::integral_constant<int, 3>());
    case 4:
      return compute(std::integral_constant<int, 4>());
    default:
      return compute(std::integral_constant<int, 5>());
  }
}

__device__ __forceinline__ void score_keys(const PassAttention& attention) {
  for_unit_heads(attention.plan().units.unit_heads, [&](auto heads) {
    dot_keys<std::uint16_t, heads(), true>(attention.own(), attention.keys(), attention.queries(),
                                           attention.op.kind.cache.head_dim, attention.weights());
  });
}

__device__ __forceinline__ void weigh_scores(const PassAttention& attention, const RowsItem& item) {
  const GroupThread own = attention.own();
  if (2 * own.warp >= kMaxRowsUnitHeads) return;
  const ProgramAttention& op = attention.op;
  const ChunkSum sum =
      soften<kMaxRowsUnitHeads>(own, op.kind.scale, op.kind.soft_cap, item.first_in, item.last_in, attention.weights());
  const int head = 2 * own.warp + own.lane / 16;
  const ChunkWords words = attention.chunk_words();
  const int slice = own.lane % 16;  // a lane a copy
  if (slice < words.slices && head < item.head_count)
    hand_over_sum(words.sum(item.first_head + head, slice, item.chunk), sum);
}

// Partial sums of values into their place. Ends when all are there.
__device__ __forceinline__ void weigh_values(const PassAttention& attention, const RowsItem& item) {
  for_unit_heads(attention.plan().units.unit_heads, [&](auto heads) {
    constexpr int kDims = kMaxProgramHeadDim / kWarpLanes;
    const int head_dim = attention.op.kind.cache.head_dim;
    float sum[heads()][kDims] = {};
    if (const GroupThread own = attention.own(); own.lane * kDims < head_dim)
      weigh_quarter<std::uint16_t, heads(), kDims, true>(attention.values() + own.warp * head_dim + own.lane * kDims,
                                                         head_dim, attention.weights(), own.warp, item.first_in,
                                                         item.last_in, sum);
    attention.barrier();  // all have read the values
    const GroupThread own = attention.own();
    if (own.lane * kDims < head_dim)
      put_partials<heads(), kDims, kMaxRowsUnitHeads>(own, head_dim, sum, reinterpret_cast<float*>(attention.values()));
  });
  order_before_bulk_loads();
  attention.barrier();
}

__device__ __forceinline__ void hand_over_values(const PassAttention& attention, const RowsItem& item) {
  const int head_dim = attention.op.kind.cache.head_dim;
  const GroupThread own = attention.own();
  const ChunkWords words = attention.chunk_words();
  const int dim = 4 * own.lane;
  unsigned* place = words.output(item.first_head, dim / kSliceDims, item.chunk) + dim % kSliceDims;
  const std::int64_t stride = words.output(1, 0, 0) - words.output(0, 0, 0);
  add_partials<kMaxRowsUnitHeads>(
      own, reinterpret_cast<const float*>(attention.values()), head_dim, head_dim, item.head_count,
      [place, stride](int head, const float4& sums) { hand_over_four(place + head * stride, sums); });
}

// The group's items.
__device__ __forceinline__ void attend_items(const PassAttention& attention) {
  int left = attention.plan().count;
  const RowsItem* item = &attention.plan().item;
  unsigned phase = attention.phase();
  bool begins_unit = true;
  int turn = 0;
#pragma unroll 1
  for (;;) {
    begin_item(attention, *item, begins_unit, phase);
    attention.barrier();
    if (attention.op.call.stores_q && item->ends_row) store_queries(attention, *item);
    wait_phase(attention.keys_full(), phase);
    score_keys(attention);
    attention.barrier();
    left -= kRowsGroups;
    RowsItem& next = attention.next_item(turn);
    turn ^= 1;
    if (left > 0 && attention.leads()) {  // of a warp that has no scores
      follow_item(attention, *item, next);
      request_keys(attention, next);
    }
    weigh_scores(attention, *item);
    attention.barrier();
    wait_phase(attention.values_full(), phase);
    weigh_values(attention, *item);
    hand_over_values(attention, *item);
    phase ^= 1u;
    if (left <= 0) break;
    attention.barrier();
    if (attention.leads()) request_values(attention, next);
    item = &next;
    begins_unit = next.begins_unit;
  }
  if (attention.leads()) attention.phase() = phase;
}

// Behind the projections, whose last partials are in the exchange.
__device__ __forceinline__ void attend_rows(const PassAttention& attention, unsigned phase,
                                            const HalfExchange& exchange) {
  SharedBarrier* read = attention_barrier(attention.program, kProjectionsRead, attention.shared);
  if (HalfThread().warp == kRowsWarps - 1) exchange.wait_free();  // one of each half
  order_before_bulk_loads();
  __syncwarp();
  if (arrives_for_warp(own_lane())) arrive(read);
  const bool attends = attention.own_group() < kRowsGroups && attention.plan().count > 0;
  if (attention.leads() && (attends || attention.own_group() == 0)) {
    wait_phase(read, phase);
    if (attends) {
      request_keys(attention, attention.plan().item);
      request_values(attention, attention.plan().item);
    }
    if (attention.own_group() == 0) arrive(attention_barrier(attention.program, kChunksRequested, attention.shared));
  }
  __syncwarp();
  if (attends) attend_items(attention);
}

}  // namespace genai::cuda
