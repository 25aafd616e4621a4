// program_product.cuh - a product of a program (NOTE [Program]): which stages of the ring it takes, in which order they
// are copied, and their consumption (row_octets.cuh).
//
// Units go to the groups in rounds of four (row_units.cuh); the pieces of a round's units alternate, so that the groups
// work side by side.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/program_ring.cuh"
#include "cuda/kernels/program_vector.cuh"
#include "cuda/kernels/row_octets.cuh"
#include "cuda/kernels/row_units.cuh"

namespace genai::cuda {

static_assert(kProgramGroups == kRowGroups && kProgramGroupWarps == kOctetWarps);

// Pieces of the units of one round, and the stages that these are.
struct Round {
  int pieces[kProgramGroups];

  __device__ __forceinline__ Round(const UnitList& units, int first_unit) {
#pragma unroll
    for (int i = 0; i < kProgramGroups; ++i) pieces[i] = units.job(first_unit + i).pieces;
  }
  __device__ __forceinline__ int stages() const { return pieces[0] + pieces[1] + pieces[2] + pieces[3]; }
  __device__ __forceinline__ int most() const { return max(max(pieces[0], pieces[1]), max(pieces[2], pieces[3])); }
  // Of the round's stages, the one of `piece` of its unit number `unit`.
  __device__ __forceinline__ int stage(int piece, int unit) const {
    int before = 0;
#pragma unroll
    for (int i = 0; i < kProgramGroups; ++i) before += min(pieces[i], piece + (i < unit ? 1 : 0));
    return before;
  }
};

// What a lane of the copying warp knows of one unit of a round.
struct UnitCopies {
  const TileBytes* source;
  unsigned bytes;       // of a piece
  unsigned last_bytes;  // of the last one
  int pieces;

  template <DType kFirst, DType kSecond>
  __device__ __forceinline__ static UnitCopies of(const ProgramProduct& product, const UnitJob& job) {
    const StreamOutput& output = product.shape.outputs[job.unit.output];
    const int tile_bytes = tile_layout(output.second_type ? kSecond : kFirst).tile_bytes;
    const int tiles = product.shape.tile_count;
    return {output.weights + static_cast<std::int64_t>(job.unit.strip) * tiles * tile_bytes,
            static_cast<unsigned>(job.unit.strips * job.piece_tiles * tile_bytes),
            static_cast<unsigned>(job.unit.strips * (tiles - (job.pieces - 1) * job.piece_tiles) * tile_bytes),
            job.pieces};
  }
};

// By the whole copying warp: a lane works out each unit of a round, one copies.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_product(const ProgramProduct& product, const UnitRange* ranges,
                                             RingFeeder& feeder) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const UnitList units(ranges);
#pragma unroll 1
  for (int first = 0; first < units.count(); first += kProgramGroups) {
    UnitCopies own = UnitCopies::of<kFirst, kSecond>(product, units.job(first + lane % kProgramGroups));
    const int most = static_cast<int>(warp_max(static_cast<unsigned>(own.pieces)));
#pragma unroll 1
    for (int piece = 0; piece < most; ++piece) {
      const int left = own.pieces - piece;
      feeder.copy_each(own.source, left > 1 ? own.bytes : left == 1 ? own.last_bytes : 0, kProgramGroups);
      own.source += own.bytes;
    }
  }
}

// Where a group works, and how far it is.
struct Consumer {
  ProgramRing ring;
  unsigned* words;  // of the launch
  RowVector row;
  float* staged;
  float* exchange;  // [2][unit strips][8][kPartialStride], of this group
  int unit_strips;
  int group;
  int warp_in_group;
  int stage = 0;  // the first one of the round
  int finished = 0;
};

// Adds the partials of a unit, one row a lane; hands the outputs over and stores those that are the last.
__device__ __forceinline__ void finish_program_unit(const ProgramProduct& product, const Consumer& consumer,
                                                    const RowUnit& unit, const float* partials, float before,
                                                    float bias) {
  const StreamOutput& output = product.shape.outputs[unit.output];
  const ProgramOutput& vector = product.outputs[unit.output];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row = unit.strip * kStripRows + lane;
  const bool active = lane < unit.strips * kStripRows && row < output.rows;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials + lane * kPartialStride);
    if (output.bias != nullptr) y = y + bias;
  }
  int place = row;
  bool stores = active;
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    y = activate(product.epilogue, y) * up;
    place = row / 2;
    stores = active && lane % 2 == 0;
  } else if (product.epilogue == Epilogue::add) {
    y = before + y;
  }
  if (!stores) return;
  y = apply_soft_cap(y, product.soft_cap);
  if (vector.words >= 0) hand_over(consumer.words + vector.words + place, y);
  if (vector.before >= 0) store_word(consumer.words + vector.before + place, kNoWord);
  if (vector.stores) output.out[place] = y;
}

// One unit of `consumer`'s group, the round's number `consumer.group`.
template <DType kType>
__device__ __forceinline__ void consume_program_unit(const ProgramProduct& product, const UnitJob& job,
                                                     const Round& round, Consumer& consumer) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const StreamOutput& output = product.shape.outputs[job.unit.output];
  const ProgramOutput& vector = product.outputs[job.unit.output];
  float* exchange = consumer.exchange + consumer.finished % 2 * (consumer.unit_strips * kStripRows * kPartialStride);
  float* own = exchange + lane / 4 * kPartialStride + 8 * consumer.warp_in_group + 2 * (lane % 4);
  const bool finishes = consumer.finished % kProgramGroupWarps == consumer.warp_in_group;
  ++consumer.finished;
  // What an output needs besides the product: asked for early, since it comes from far.
  float before = 0.0f;
  float bias = 0.0f;
  if (finishes) {
    const int row = job.unit.strip * kStripRows + lane;
    if (lane < job.unit.strips * kStripRows && row < output.rows) {
      if (output.bias != nullptr) bias = output.bias[row];
      if (product.epilogue == Epilogue::add)
        before = vector.before < 0 ? output.out[row] : take_word(consumer.words + vector.before + row);
    }
  }
  OctetInput input(consumer.row, consumer.warp_in_group);
  float partials[2] = {0.0f, 0.0f};
  int octet = consumer.warp_in_group;
#pragma unroll 1
  for (int piece = 0; piece < job.pieces; ++piece) {
    const int stage = consumer.stage + round.stage(piece, consumer.group);
    const int first_tile = piece * job.piece_tiles;
    const int end_tile = min(first_tile + job.piece_tiles, product.shape.tile_count);
    const TileBytes* bytes = consumer.ring.slot(stage);
    consumer.ring.wait_full(stage);
#pragma unroll 1
    for (int strip = 0; strip < job.unit.strips; ++strip) {
      if (piece == 0) {
        input = OctetInput(consumer.row, consumer.warp_in_group);
        octet = consumer.warp_in_group;
      }
      const TileBytes* tile = bytes + (strip * (end_tile - first_tile) + 2 * octet - first_tile) * kTileBytes;
      accumulate_octets<kType>(tile, end_tile, octet, input, partials);
      if (strip + 1 == job.unit.strips) break;
      *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);  // a bundle of whole strips
      own += kStripRows * kPartialStride;
      partials[0] = 0.0f;
      partials[1] = 0.0f;
    }
    __syncwarp();
    if (lane == 0) consumer.ring.release(stage);
  }
  *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);
  // A warp that still adds up the unit before last cannot be here: it passed the last unit's barrier after it.
  program_group_barrier(consumer.group);
  if (finishes) finish_program_unit(product, consumer, job.unit, exchange, before, bias);
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_product(const ProgramProduct& product, const UnitRange* ranges,
                                                Consumer& consumer) {
  const UnitList units(ranges);
  if (units.count() == 0) return;
  prepare_program_vector<has_minimum(kFirst) || has_minimum(kSecond)>({product.input, consumer.words},
                                                                      product.norm_weight, product.norm_epsilon,
                                                                      product.cols, consumer.row, consumer.staged);
  consumer_barrier();
#pragma unroll 1
  for (int first = 0; first < units.count(); first += kProgramGroups) {
    const Round round(units, first);
    const int index = first + consumer.group;
    if (index < units.count()) {
      const UnitJob job = units.job(index);
      if (kFirst == kSecond || !product.shape.outputs[job.unit.output].second_type)
        consume_program_unit<kFirst>(product, job, round, consumer);
      else
        consume_program_unit<kSecond>(product, job, round, consumer);
    }
    consumer.stage += round.stages();
  }
}

}  // namespace genai::cuda
