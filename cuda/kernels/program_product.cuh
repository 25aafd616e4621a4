// program_product.cuh - a product of a program (NOTE [Program]): which stages of the ring it takes, in which order they
// are copied, and their consumption (row_octets.cuh).
//
// The units of an output (row_units.cuh) go to the groups in turn, from output to output, and in rounds of up to four
// whose pieces alternate in the ring, so that the groups work side by side. What stands between two pieces must be
// short: a warp gets an instruction in every few cycles, and a piece has but a few octets for it.
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

template <DType kFirst, DType kSecond>
__device__ __forceinline__ int tile_bytes_of(const StreamOutput& output) {
  return tile_layout(output.second_type ? kSecond : kFirst).tile_bytes;
}

// By the whole copying warp: a lane for each unit of a round.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_product(const ProgramProduct& product, const UnitRange* ranges,
                                             RingFeeder& feeder) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll 1
  for (int output = 0; output < product.shape.output_count; ++output) {
    const UnitRange range = ranges[output];
    const int tile_bytes = tile_bytes_of<kFirst, kSecond>(product.shape.outputs[output]);
    const int strip_bytes = product.shape.tile_count * tile_bytes;
    const int unit_bytes = range.unit_strips * strip_bytes;
    const int piece_bytes = range.piece_tiles * tile_bytes;
    const int last_bytes = strip_bytes - (range.pieces - 1) * piece_bytes;
    const TileBytes* source = product.shape.outputs[output].weights +
                              static_cast<std::int64_t>(range.first_strip) * strip_bytes +
                              static_cast<std::int64_t>(lane) * unit_bytes;
    int strips = range.strip_count - lane * range.unit_strips;  // from the lane's unit on
#pragma unroll 1
    for (int left = range.unit_count; left > 0; left -= kProgramGroups) {
      const TileBytes* piece_source = source;
#pragma unroll 1
      for (int piece = 1; piece <= range.pieces; ++piece) {
        const int bytes = min(strips, range.unit_strips) * (piece == range.pieces ? last_bytes : piece_bytes);
        feeder.copy_each(piece_source, static_cast<unsigned>(bytes), min(left, kProgramGroups));
        piece_source += piece_bytes;
      }
      source += static_cast<std::int64_t>(kProgramGroups) * unit_bytes;
      strips -= kProgramGroups * range.unit_strips;
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

// Some strips of one output.
struct ProgramUnit {
  int output;
  int strip;
  int strips;
};

// What a lane's output needs besides the product, as bits: asked for early, since it comes from far, and looked at
// late.
struct OutputTerms {
  unsigned before = 0;
  unsigned bias = 0;

  __device__ __forceinline__ void ask(const ProgramProduct& product, const Consumer& consumer, const ProgramUnit& unit,
                                      bool wanted) {
    const StreamOutput& output = product.shape.outputs[unit.output];
    const int row = unit.strip * kStripRows + static_cast<int>(threadIdx.x) % kWarpLanes;
    wanted = wanted && row < min((unit.strip + unit.strips) * kStripRows, output.rows);
    look_at_word(bias, reinterpret_cast<const unsigned*>(output.bias) + row, wanted && output.bias != nullptr);
    if (product.epilogue == Epilogue::add) look_at_word(before, before_word(product, consumer, unit) + row, wanted);
  }
  __device__ __forceinline__ float before_value(const ProgramProduct& product, const Consumer& consumer,
                                                const ProgramUnit& unit) const {
    if (product.outputs[unit.output].before < 0) return bits_float(before);
    if (before != kNoWord) return word_value(before);
    return take_word(before_word(product, consumer, unit) + unit.strip * kStripRows +
                     static_cast<int>(threadIdx.x) % kWarpLanes);
  }

 private:
  __device__ __forceinline__ static const unsigned* before_word(const ProgramProduct& product, const Consumer& consumer,
                                                                const ProgramUnit& unit) {
    const int last = product.outputs[unit.output].before;
    return last < 0 ? reinterpret_cast<const unsigned*>(product.shape.outputs[unit.output].out) : consumer.words + last;
  }
};

// Adds the partials of a unit, one row a lane; hands the outputs over and stores those that are the last.
__device__ __forceinline__ void finish_program_unit(const ProgramProduct& product, const Consumer& consumer,
                                                    const ProgramUnit& unit, const float* partials,
                                                    const OutputTerms& terms) {
  const StreamOutput& output = product.shape.outputs[unit.output];
  const ProgramOutput& vector = product.outputs[unit.output];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row = unit.strip * kStripRows + lane;
  const bool active = lane < unit.strips * kStripRows && row < output.rows;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials + lane * kPartialStride);
    if (output.bias != nullptr) y = y + bits_float(terms.bias);
  }
  int place = row;
  bool stores = active;
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    y = activate(product.epilogue, y) * up;
    place = row / 2;
    stores = active && lane % 2 == 0;
  } else if (product.epilogue == Epilogue::add && active) {
    y = terms.before_value(product, consumer, unit) + y;
  }
  if (!stores) return;
  y = apply_soft_cap(y, product.soft_cap);
  if (vector.words >= 0) hand_over(consumer.words + vector.words + place, y);
  if (vector.before >= 0) store_word(consumer.words + vector.before + place, kNoWord);
  if (vector.stores) output.out[place] = y;
}

// One unit by `consumer`'s group: its pieces are `first_stage` and every `stage_step`th after it.
template <DType kType>
__device__ __forceinline__ void consume_unit(const ProgramProduct& product, const ProgramUnit& unit,
                                             const UnitRange& range, int first_stage, int stage_step,
                                             Consumer& consumer) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* exchange = consumer.exchange + consumer.finished % 2 * (consumer.unit_strips * kStripRows * kPartialStride);
  float* own = exchange + lane / 4 * kPartialStride + 8 * consumer.warp_in_group + 2 * (lane % 4);
  const bool finishes = consumer.finished % kProgramGroupWarps == consumer.warp_in_group;
  ++consumer.finished;
  OutputTerms terms;
  terms.ask(product, consumer, unit, finishes);
  OctetInput input(consumer.row, consumer.warp_in_group);
  float partials[2] = {0.0f, 0.0f};
  int octet = consumer.warp_in_group;
  int stage = first_stage;
#pragma unroll 1
  for (int first_tile = 0; first_tile < product.shape.tile_count; first_tile += range.piece_tiles) {
    const int end_tile = min(first_tile + range.piece_tiles, product.shape.tile_count);
    const TileBytes* bytes = consumer.ring.slot(stage);
    consumer.ring.wait_full(stage);
#pragma unroll 1
    for (int strip = 0;;) {
      const TileBytes* tile = bytes + (strip * (end_tile - first_tile) + 2 * octet - first_tile) * kTileBytes;
      accumulate_octets<kType>(tile, end_tile, octet, input, partials);
      if (++strip == unit.strips) break;
      *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);  // a bundle of whole strips
      own += kStripRows * kPartialStride;
      partials[0] = 0.0f;
      partials[1] = 0.0f;
      input = OctetInput(consumer.row, consumer.warp_in_group);
      octet = consumer.warp_in_group;
    }
    __syncwarp();
    if (lane == 0) consumer.ring.release(stage);
    stage += stage_step;
  }
  *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);
  // A warp that still adds up the unit before last cannot be here: it passed the last unit's barrier after it.
  program_group_barrier(consumer.group);
  if (finishes) finish_program_unit(product, consumer, unit, exchange, terms);
}

// The group's units of one output, of which the first is the `before`th of the product.
template <DType kType>
__device__ __forceinline__ void consume_output(const ProgramProduct& product, int output, const UnitRange& range,
                                               int before, Consumer& consumer) {
  const int first = (consumer.group - before) & (kProgramGroups - 1);
#pragma unroll 1
  for (int index = first; index < range.unit_count; index += kProgramGroups) {
    const int round = index - first;
    const int strip = index * range.unit_strips;
    consume_unit<kType>(product, {output, range.first_strip + strip, min(range.unit_strips, range.strip_count - strip)},
                        range, consumer.stage + round * range.pieces + first,
                        min(range.unit_count - round, kProgramGroups), consumer);
  }
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_product(const ProgramProduct& product, const UnitRange* ranges,
                                                Consumer& consumer) {
  if (ranges[0].unit_count + ranges[1].unit_count + ranges[2].unit_count == 0) return;
  prepare_program_vector<has_minimum(kFirst) || has_minimum(kSecond)>({product.input, consumer.words},
                                                                      product.norm_weight, product.norm_epsilon,
                                                                      product.cols, consumer.row, consumer.staged);
  consumer_barrier();
  int before = 0;
#pragma unroll 1
  for (int output = 0; output < product.shape.output_count; ++output) {
    const UnitRange range = ranges[output];
    if (kFirst == kSecond || !product.shape.outputs[output].second_type)
      consume_output<kFirst>(product, output, range, before, consumer);
    else
      consume_output<kSecond>(product, output, range, before, consumer);
    consumer.stage += range.unit_count * range.pieces;
    before += range.unit_count;
  }
}

}  // namespace genai::cuda
