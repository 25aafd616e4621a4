// program_product.cuh - a product of a program (NOTE [Program]): which stages of the ring it takes, in which order they
// are copied, and their consumption (row_octets.cuh).
//
// The units of an output (row_units.cuh) go to the groups in turn, from output to output, and in rounds of up to four
// whose pieces alternate in the ring, so that the groups work side by side. What stands between two pieces must be
// short: a warp gets an instruction in every few cycles, and a piece has but a few octets for it.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program_exchange.cuh"
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
  ProgramExchange exchange;
  unsigned* words;  // of the launch
  RowVector row;
  float* staged;
  int group;
  int warp_in_group;
  int stage;  // the first one of the round
  int round;  // of all products
};

// Which of a round's units is the group's, where the round is of an output whose first unit is the `before`th of the
// product.
__device__ __forceinline__ int unit_of_group(int group, int before) { return (group - before) & (kProgramGroups - 1); }

// One unit by `consumer`'s group: its pieces are `first_stage` and every `stage_step`th after it. The partials of its
// strips go to the exchange.
template <DType kType>
__device__ __forceinline__ void consume_unit(int tile_count, int strips, const UnitRange& range, int first_stage,
                                             int stage_step, const Consumer& consumer) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* own = consumer.exchange.rows(consumer.round, consumer.group) + lane / 4 * kPartialStride +
               8 * consumer.warp_in_group + 2 * (lane % 4);
  OctetInput input(consumer.row, consumer.warp_in_group);
  float partials[2] = {0.0f, 0.0f};
  int octet = consumer.warp_in_group;
  int stage = first_stage;
#pragma unroll 1
  for (int first_tile = 0; first_tile < tile_count; first_tile += range.piece_tiles) {
    const int end_tile = min(first_tile + range.piece_tiles, tile_count);
    const TileBytes* bytes = consumer.ring.slot(stage);
    consumer.ring.wait_full(stage);
#pragma unroll 1
    for (int strip = 0;;) {
      const TileBytes* tile = bytes + (strip * (end_tile - first_tile) + 2 * octet - first_tile) * kTileBytes;
      accumulate_octets<kType>(tile, end_tile, octet, input, partials);
      if (++strip == strips) break;
      if (strip == 1) consumer.exchange.wait_free(consumer.round);
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
  if (strips == 1) consumer.exchange.wait_free(consumer.round);
  *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);
}

// The group's units of one output.
template <DType kType>
__device__ __forceinline__ void consume_output(int tile_count, const UnitRange& range, int before, Consumer& consumer) {
  const int own = unit_of_group(consumer.group, before);
#pragma unroll 1
  for (int first = 0; first < range.unit_count; first += kProgramGroups) {
    const int units = min(range.unit_count - first, kProgramGroups);
    if (own < units)
      consume_unit<kType>(tile_count, min(range.unit_strips, range.strip_count - (first + own) * range.unit_strips),
                          range, consumer.stage + own, units, consumer);
    else
      consumer.exchange.wait_free(consumer.round);  // or its arrival would be counted for the round before last
    consumer.exchange.arrive_full(consumer.round++);
    consumer.stage += units * range.pieces;
  }
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_product(const ProgramProduct& product, const UnitRange* ranges,
                                                Consumer& consumer) {
  int units = 0;
  for (int output = 0; output < product.shape.output_count; ++output) units += ranges[output].unit_count;
  if (units == 0) return;
  prepare_program_vector<has_minimum(kFirst) || has_minimum(kSecond)>({product.input, consumer.words},
                                                                      product.norm_weight, product.norm_epsilon,
                                                                      product.cols, consumer.row, consumer.staged);
  consumer_barrier();
  if (product.host_rows >= 0 && threadIdx.x == 0) arrive(consumer.exchange.asks);
  int before = 0;
#pragma unroll 1
  for (int output = 0; output < product.shape.output_count; ++output) {
    const UnitRange range = ranges[output];
    if (kFirst == kSecond || !product.shape.outputs[output].second_type)
      consume_output<kFirst>(product.shape.tile_count, range, before, consumer);
    else
      consume_output<kSecond>(product.shape.tile_count, range, before, consumer);
    before += range.unit_count;
  }
}

}  // namespace genai::cuda
