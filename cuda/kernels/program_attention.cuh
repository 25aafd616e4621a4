// program_attention.cuh - attention as an operation of a program (NOTE [Program]), with the rotation ahead of it: what
// a block copies, and the chunks of positions that its groups of warps work through. What these leave behind is merged
// by program_merge.cuh.
//
// Items are those of attention_decode.cu: a chunk for one unit of query heads, in the order (unit, chunk); a block
// takes an equal part of them, its groups take turns. An item is four stages of the ring: two used as one for keys, two
// for values, whose place serves the exchange of partial sums when they are read. A group that begins a unit turns the
// unit's queries itself. A unit's last chunk holds the position of the row, which nobody has written to the cache yet
// when it is copied: whoever has that item puts it in its place, and one of them into the cache.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_group.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/program_partials.cuh"
#include "cuda/kernels/program_ring.cuh"
#include "cuda/kernels/program_rotate.cuh"

namespace genai::cuda {

inline constexpr int kItemStages = 4;
inline constexpr int kAttentionWindow = 8;  // stages on their way: fewer, larger copies than those of weights

// Shared memory of a group: queries [head][D], weights [head][64].
inline constexpr int kGroupWeights = kMaxUnitHeads * kMaxProgramHeadDim * 4;
inline constexpr int kGroupAreaBytes = kGroupWeights + kMaxUnitHeads * kChunkPositions * 4;
inline constexpr int kAttentionAreaBytes = kProgramGroups * kGroupAreaBytes;
static_assert(kGroupThreads == kProgramGroupThreads && kMaxProgramHeadDim <= kMaxUnitHeads * kChunkPositions);

// What the threads of an operation know beside its arguments.
struct AttentionStep {
  HandoverMemory handover;
  StepRow row;
  unsigned launch;
  unsigned generation;  // of what the operation writes
  unsigned char* area;  // kAttentionAreaBytes of shared memory

  __device__ __forceinline__ unsigned tag() const { return cell_tag(launch, generation); }
};

// A block's items.
struct AttentionItems {
  ChunkSpan span;
  int first;
  int end;

  __device__ __forceinline__ AttentionItems(const ProgramAttention& op, const StepRow& row)
      : span(chunk_span(row.position, op.window)) {
    const unsigned count = static_cast<unsigned>(op.cache.kv_head_count * op.units.units_per_kv * span.count);
    first = first_item(count, blockIdx.x);
    end = first_item(count, blockIdx.x + 1);
  }
};

// Stages of the ring that the operation takes in this block, from the next one on.
__device__ __forceinline__ int attention_stages(const ProgramAttention& op, const StepRow& row, int first_stage) {
  const AttentionItems items(op, row);
  return first_stage % 2 + kItemStages * (items.end - items.first);
}

// The thread that copies. The cache must have what earlier launches wrote.
__device__ __forceinline__ void feed_attention(const ProgramAttention& op, const StepRow& row, int product_window,
                                               RingFeeder& feeder) {
  const AttentionItems items(op, row);
  const unsigned bytes = static_cast<unsigned>(kChunkPositions * op.cache.head_dim * 2);
  int unit = items.first / items.span.count;
  int chunk = items.first - unit * items.span.count;
  feeder.align();
  feeder.set_window(kAttentionWindow);
#pragma unroll 1
  for (int index = items.first; index < items.end; ++index) {
    const CacheHead<std::uint16_t> cache = cache_head<std::uint16_t>(
        op.cache, row.sequence, items.span.first_chunk + chunk, unit_at(op.units, unit).kv_head);
    feeder.copy_double(cache.keys, bytes);
    feeder.copy_double(cache.values, bytes);
    if (++chunk < items.span.count) continue;
    chunk = 0;
    ++unit;
  }
  feeder.set_window(product_window);
}

// One lane of a warp that has read what the two stages hold.
__device__ __forceinline__ void release_double(const ProgramRing& ring, int stage) {
  __syncwarp();
  if (threadIdx.x % kWarpLanes != 0) return;
  ring.release(stage);
  ring.release(stage + 1);
}

// The key of the row's position: into the place of the chunk's keys, and into the cache. One warp; `staged` holds a
// head.
__device__ __forceinline__ void put_own_key(const ProgramAttention& op, const AttentionStep& step,
                                            const ProgramRing& ring, int stage, int kv_head, bool stores,
                                            float* staged) {
  const int head_dim = op.cache.head_dim;
  const int slot = step.row.position % kChunkPositions;
  const HeadTurn turn(op, op.k_norm, step.row.position);
  float x[1][kHeadElements];
  take_heads(op.k, step.handover.cells(), step.launch, kv_head * head_dim, 0, 1, head_dim, x);
  turn(x[0], op.norm_epsilon, head_dim, staged);
  __syncwarp();
  std::uint16_t* global =
      cache_head<std::uint16_t>(op.cache, step.row.sequence, step.row.position / kChunkPositions, kv_head).keys;
  std::uint16_t* shared = reinterpret_cast<std::uint16_t*>(ring.slot(stage));
  ring.wait_full(stage);
#pragma unroll
  for (int k = 0; k < kHeadElements; ++k) {
    const int i = head_element(k);
    if (i >= head_dim) continue;
    const std::uint16_t half = float_to_half(staged[i]);
    const int place = (i / 8 * kChunkPositions + slot) * 8 + i % 8;
    shared[place] = half;
    if (stores) global[place] = half;
  }
  order_before_bulk_loads();
}

// The same for the value.
__device__ __forceinline__ void put_own_value(const ProgramAttention& op, const AttentionStep& step,
                                              const ProgramRing& ring, int stage, int kv_head, bool stores) {
  const int head_dim = op.cache.head_dim;
  const int place = step.row.position % kChunkPositions * head_dim;
  float x[1][kHeadElements];
  take_heads(op.v, step.handover.cells(), step.launch, kv_head * head_dim, 0, 1, head_dim, x);
  std::uint16_t* global =
      cache_head<std::uint16_t>(op.cache, step.row.sequence, step.row.position / kChunkPositions, kv_head).values +
      place;
  std::uint16_t* shared = reinterpret_cast<std::uint16_t*>(ring.slot(stage)) + place;
  ring.wait_full(stage);
#pragma unroll
  for (int k = 0; k < kHeadElements; ++k) {
    const int i = head_element(k);
    if (i >= head_dim) continue;
    const std::uint16_t half = float_to_half(x[0][k]);
    shared[i] = half;
    if (stores) global[i] = half;
  }
  order_before_bulk_loads();
}

// The unit's queries, after norm and rotation, a warp a head.
template <int kHeads>
__device__ __forceinline__ void turn_queries(const ProgramAttention& op, const AttentionStep& step, const Unit& unit,
                                             int warp, float* queries) {
  constexpr int kRounds = (kHeads + kGroupWarps - 1) / kGroupWarps;
  const int head_dim = op.cache.head_dim;
  const int count = (unit.head_count - warp + kGroupWarps - 1) / kGroupWarps;
  const HeadTurn turn(op, op.q_norm, step.row.position);
  float x[kRounds][kHeadElements];
  take_heads(op.q, step.handover.cells(), step.launch, (unit.first_head + warp) * head_dim, kGroupWarps * head_dim,
             count, head_dim, x);
#pragma unroll
  for (int round = 0; round < kRounds; ++round)
    if (round < count) turn(x[round], op.norm_epsilon, head_dim, queries + (warp + round * kGroupWarps) * head_dim);
}

// oc of all heads into the chunk's cells, and the stages of its values back to the ring.
template <int kHeads, int kDims>
__device__ __forceinline__ void weigh_chunk(const GroupThread& own, int group, int head_dim, const ChunkSpan& span,
                                            int chunk, const Unit& unit, const float* weights, const ProgramRing& ring,
                                            int stage, const ChunkCells& cells, unsigned tag) {
  const std::uint16_t* values = reinterpret_cast<const std::uint16_t*>(ring.slot(stage));
  float* exchange = reinterpret_cast<float*>(ring.slot(stage));
  const int dim = own.lane * kDims;
  float sum[kHeads][kDims] = {};
  ring.wait_full(stage);
  if (dim < head_dim)
    weigh_quarter<std::uint16_t, kHeads, kDims>(values + own.warp * head_dim + dim, head_dim, weights, own.warp,
                                                span.first_in(chunk), span.last_in(chunk), sum);
  program_group_barrier(group);  // all have read the values
  if (dim < head_dim) put_partials<kHeads, kDims>(own, head_dim, sum, exchange);
  order_before_bulk_loads();
  program_group_barrier(group);
  constexpr int kLaneDims = 4;
  constexpr int kSliceLanes = kSliceDims / kLaneDims;
  Cell* place = cells.output(unit.first_head, own.lane / kSliceLanes, chunk) + own.lane % kSliceLanes * kLaneDims;
  const std::int64_t stride = cells.output(1, 0, 0) - cells.output(0, 0, 0);
  add_partials<kHeads>(own, exchange, head_dim, head_dim, unit.head_count,
                       [place, stride, tag](int head, const float4& sums) {
                         publish_pair(place + head * stride, sums.x, sums.y, tag);
                         publish_pair(place + head * stride + 2, sums.z, sums.w, tag);
                       });
  release_double(ring, stage);
}

template <int kHeads>
__device__ __noinline__ void attend_units(const ProgramAttention& op, AttentionStep step,
                                          ProgramRing ring, int first_stage) {
  constexpr int kKeyWarp = 3;  // that puts the row's key in its place: with few queries of its own
  constexpr int kValueWarp = 2;
  const int head_dim = op.cache.head_dim;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const GroupThread own = {static_cast<int>(threadIdx.x) / kWarpLanes % kGroupWarps,
                           static_cast<int>(threadIdx.x) % kWarpLanes};
  float* queries = reinterpret_cast<float*>(step.area + group * kGroupAreaBytes);
  float* weights = reinterpret_cast<float*>(step.area + group * kGroupAreaBytes + kGroupWeights);
  const AttentionItems items(op, step.row);
  const ChunkCells cells(op, step.handover);
  const unsigned tag = step.tag();
  int stage = (first_stage + 1) / 2 * 2 + kItemStages * group;
  int turned_unit = -1;
#pragma unroll 1
  for (int index = items.first + group; index < items.end; index += kProgramGroups) {
    const int unit_index = index / items.span.count;
    const int chunk = index - unit_index * items.span.count;
    const Unit unit = unit_at(op.units, unit_index);
    const bool has_own = chunk + 1 == items.span.count;
    // Others may still add up the last item's partials; they are done with queries and weights.
    if (has_own) {
      const bool stores = unit.first_head == unit.kv_head * op.units.heads_per_kv;
      if (own.warp == kKeyWarp) put_own_key(op, step, ring, stage, unit.kv_head, stores, weights);
      if (own.warp == kValueWarp) put_own_value(op, step, ring, stage + 2, unit.kv_head, stores);
    }
    if (unit_index != turned_unit) turn_queries<kHeads>(op, step, unit, own.warp, queries);
    if (has_own || unit_index != turned_unit) program_group_barrier(group);
    turned_unit = unit_index;
    if (has_own && op.stores[1])
      for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < unit.head_count * head_dim; i += kGroupThreads)
        op.q_out[unit.first_head * head_dim + i] = queries[i];

    ring.wait_full(stage);
    dot_keys<std::uint16_t, kHeads>(own, reinterpret_cast<const std::uint16_t*>(ring.slot(stage)), queries, head_dim,
                                    weights);
    release_double(ring, stage);
    program_group_barrier(group);
    if (2 * own.warp < kHeads) {
      const ChunkSum sum =
          soften<kHeads>(own, op.scale, op.soft_cap, items.span.first_in(chunk), items.span.last_in(chunk), weights);
      const int head = 2 * own.warp + own.lane / 16;
      if (own.lane % 16 == 0 && head < unit.head_count)
        publish_pair(cells.sum(unit.first_head + head, chunk), sum.highest, sum.total, tag);
    }
    program_group_barrier(group);
    if (head_dim <= 2 * kWarpLanes)
      weigh_chunk<kHeads, 2>(own, group, head_dim, items.span, chunk, unit, weights, ring, stage + 2, cells, tag);
    else
      weigh_chunk<kHeads, 4>(own, group, head_dim, items.span, chunk, unit, weights, ring, stage + 2, cells, tag);
    stage += kItemStages * kProgramGroups;
  }
}

// All threads that consume; the block's area is free before, and each group's is again behind it. `first_stage` as for
// attention_stages. q_out may not be where queries are read that are not handed over.
__device__ __forceinline__ void attend(const ProgramAttention& op, AttentionStep step, ProgramRing ring,
                                       int first_stage) {
  switch (op.units.unit_heads) {
    case 1:
      return attend_units<1>(op, step, ring, first_stage);
    case 2:
      return attend_units<2>(op, step, ring, first_stage);
    case 3:
      return attend_units<3>(op, step, ring, first_stage);
    case 4:
      return attend_units<4>(op, step, ring, first_stage);
    case 5:
      return attend_units<5>(op, step, ring, first_stage);
    case 6:
      return attend_units<6>(op, step, ring, first_stage);
    case 7:
      return attend_units<7>(op, step, ring, first_stage);
    default:
      return attend_units<8>(op, step, ring, first_stage);
  }
}

}  // namespace genai::cuda
