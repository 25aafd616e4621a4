// row_stream.cuh - the weights of a product with one row as a stream of bulk copies into rings in shared memory: which
// strips a block owns, in what order their pieces are copied, and into which ring. Used by matmul_row.cu.
//
// NOTE [Row stream]
// Block b owns the strips that begin in the b-th equal part of the bytes of all outputs. It cuts them into units: a
// bundle of whole strips that fits a slot, or one longer strip in pieces of even size. Units go to the block's groups
// of warps in turn, so that four are under way together. Every group has its own ring of two slots, which one of its
// threads refills when the group has read a stage: a ring for all would let a group pass a wait of the same parity a
// round early. When only one or two units are left, their pieces go through the rings of the idle groups too, which
// keep refilling them; a barrier of all groups comes before (every earlier phase of those rings is then over).
// A group has one copy on its way at a time. More of them slow the memory down and hold up everything else on the way
// to it (measured on an H200: a matrix streams 30 % slower with all eight slots in flight than with four).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/row_units.cuh"

namespace genai::cuda {

inline constexpr int kRowSlots = 2;  // of a group
inline constexpr int kRowRings = kRowGroups * kRowSlots;
static_assert(kRowSlots == 2, "ring_slot and stage_parity take the bits of a stage's number");

struct RowUnit {
  int output;
  int strip;
  int strips;
};

// A unit and how it is cut.
struct UnitJob {
  RowUnit unit;
  int piece_tiles;
  int pieces;
};

// What a ring gets next. Lives in shared memory: one thread of a group needs it, and all would pay for it in registers.
struct RingState {
  const TileBytes* source;
  unsigned bytes;       // of a stage
  unsigned last_bytes;  // of the last of `left` stages
  unsigned stride;      // from stage to stage
  int left;             // stages of the unit
  int index;            // of the unit
  int issued;           // stages
};

// What a block does, in shared memory.
struct RowWork {
  RingState feeds[kRowGroups];
  UnitRange ranges[kMaxStreamOutputs];
  UnitJob first_jobs[kRowGroups];
  int stages[kRowGroups];  // that each ring has seen when the last units begin
};

// The plan as a thread holds it.
struct UnitList {
  const UnitRange* ranges;
  int end[kMaxStreamOutputs];  // units up to and with each output
  int most_pieces;

  __device__ __forceinline__ explicit UnitList(const UnitRange* shared) : ranges(shared), most_pieces(1) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxStreamOutputs; ++i) {
      sum += ranges[i].unit_count;
      end[i] = sum;
      most_pieces = max(most_pieces, ranges[i].pieces);
    }
  }
  __device__ __forceinline__ int count() const { return end[kMaxStreamOutputs - 1]; }
  __device__ __forceinline__ RowUnit at(int index) const {
    const int output = index < end[0] ? 0 : index < end[1] ? 1 : 2;
    const int before = output == 0 ? 0 : output == 1 ? end[0] : end[1];
    const UnitRange& range = ranges[output];
    const int first = (index - before) * range.unit_strips;
    return {output, range.first_strip + first, min(range.unit_strips, range.strip_count - first)};
  }
  __device__ __forceinline__ UnitJob job(int index) const {
    if (index >= count()) return {};
    const RowUnit unit = at(index);
    return {unit, ranges[unit.output].piece_tiles, ranges[unit.output].pieces};
  }
  // Units of full rounds; the rest, fewer than there are groups, come last.
  __device__ __forceinline__ int full() const { return count() / kRowGroups * kRowGroups; }
  __device__ __forceinline__ int last() const { return count() - full(); }
  // Each of the last units uses 1 << spread_shift() rings: piece p of unit i the ring i + last() * (p mod that).
  __device__ __forceinline__ int spread_shift() const {
    if (last() == 0 || last() == 3 || most_pieces <= kRowSlots) return 0;
    return last() == 1 ? 2 : 1;
  }
};

struct RowRings {
  unsigned char* slots;  // [ring][slot]
  SharedBarrier* full;   // the same
  SharedBarrier* empty;
  int slot_bytes;
};

// Sets `state` to the first stage of its unit that goes through `ring`.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void enter_unit(const StreamShape& shape, const UnitList& units, int ring,
                                           RingState* state) {
  const int shift = units.spread_shift();
  const int full = units.full();
  int index = state->index;
  int first_piece = 0;
  state->left = 0;
  if (index >= units.count() && (shift == 0 || index >= full + kRowGroups)) return;
  const bool shared_unit = index >= full && shift > 0;
  if (shared_unit) {  // of the last units' pieces this ring gets some
    first_piece = units.last() == 1 ? ring : ring >> 1;
    index = full + (units.last() == 1 ? 0 : ring & 1);
  }
  const int step = shared_unit ? 1 << shift : 1;
  const UnitJob job = units.job(index);
  const int left = (job.pieces - first_piece + step - 1) / step;
  if (left <= 0) return;
  const StreamOutput& output = shape.outputs[job.unit.output];
  const int tile_bytes = tile_layout(output.second_type ? kSecond : kFirst).tile_bytes;
  const int tiles = job.unit.strips * job.piece_tiles;
  const bool ends_short = first_piece + (left - 1) * step == job.pieces - 1;
  const int last_tiles = ends_short ? job.unit.strips * (shape.tile_count - (job.pieces - 1) * job.piece_tiles) : tiles;
  const std::int64_t first_tile =
      static_cast<std::int64_t>(job.unit.strip) * shape.tile_count + first_piece * job.piece_tiles;
  state->source = output.weights + first_tile * tile_bytes;
  state->bytes = static_cast<unsigned>(tiles * tile_bytes);
  state->last_bytes = static_cast<unsigned>(last_tiles * tile_bytes);
  state->stride = static_cast<unsigned>(tiles * tile_bytes * step);
  state->left = left;
}

__device__ __forceinline__ int ring_slot(int ring, int stage) { return ring * kRowSlots + (stage & 1); }
__device__ __forceinline__ unsigned stage_parity(int stage) { return static_cast<unsigned>(stage) >> 1 & 1u; }

// Copies the next stage, if there is one, into the next slot of `ring`, as soon as that is free. By one thread of the
// ring's group.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_ring(const StreamShape& shape, RowWork* work, const RowRings& rings, int ring) {
  RingState* state = work->feeds + ring;
  const int left = state->left;
  if (left == 0) return;
  const int issued = state->issued;
  const int slot = ring_slot(ring, issued);
  const unsigned bytes = left == 1 ? state->last_bytes : state->bytes;
  const TileBytes* source = state->source;
  wait_phase(rings.empty + slot, stage_parity(issued) ^ 1u);
  arrive_expecting(rings.full + slot, bytes);
  bulk_load(rings.slots + slot * rings.slot_bytes, source, bytes, rings.full + slot, read_once_policy());
  state->issued = issued + 1;
  state->source = source + state->stride;
  state->left = left - 1;
  if (left > 1) return;
  state->index += kRowGroups;
  enter_unit<kFirst, kSecond>(shape, UnitList(work->ranges), ring, state);
}

// Feeds `ring` from its youngest stage on, one copy on its way at a time, until `most` stages are on their way or all
// have been.
template <DType kFirst, DType kSecond>
__device__ __noinline__ void feed_up_to(const StreamShape& shape, RowWork* work, RowRings rings, int ring, int most) {
  const RingState* state = work->feeds + ring;
  while (state->left > 0 && state->issued < most) {
    if (state->issued > 0) {
      const int youngest = state->issued - 1;
      wait_phase(rings.full + ring_slot(ring, youngest), stage_parity(youngest));
    }
    feed_ring<kFirst, kSecond>(shape, work, rings, ring);
  }
}

// Both slots, or all that is left.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void fill_ring(const StreamShape& shape, RowWork* work, const RowRings& rings, int ring) {
  work->feeds[ring].index = ring;
  work->feeds[ring].issued = 0;
  enter_unit<kFirst, kSecond>(shape, UnitList(work->ranges), ring, work->feeds + ring);
  feed_up_to<kFirst, kSecond>(shape, work, rings, ring, kRowSlots);
}

}  // namespace genai::cuda
