// program_product.cuh - a product of a program (NOTE [Program]): which stages of the ring it takes, in which order they
// are copied, and their consumption (row_octets.cuh).
//
// Units (program_units.cuh) go to the groups in rounds of up to four, whose pieces alternate in the ring, so that the
// groups work side by side. What stands between two pieces must be
// short: a warp gets an instruction in every few cycles, and a piece has but a few octets for it.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program_exchange.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/program_quants.cuh"
#include "cuda/kernels/program_ring.cuh"
#include "cuda/kernels/program_units.cuh"
#include "cuda/kernels/program_vector.cuh"
#include "cuda/kernels/row_octets.cuh"

namespace genai::cuda {

static_assert(kProgramGroupWarps == kOctetWarps);

template <DType kFirst, DType kSecond>
__device__ __forceinline__ int tile_bytes_of(const StreamOutput& output) {
  return tile_layout(output.second_type ? kSecond : kFirst).tile_bytes;
}

// By the whole copying warp: a lane for each unit of a round.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_product(const ProgramProduct& product, const BlockShare& share,
                                             RingFeeder& feeder) {
  const int lane = own_lane();
  const int pieces = product.kind.cut.pieces;
  const int unit_count = share.unit_count();
#pragma unroll 1
  for (int first = 0; first < unit_count; first += kProgramGroups) {
    const int units = min(unit_count - first, kProgramGroups);
    const ProgramUnit unit = share.unit(first + min(lane, units - 1), product.kind.shape.output_count);
    const StreamOutput& output = product.kind.shape.outputs[unit.output];
    const int tile_bytes = tile_bytes_of<kFirst, kSecond>(output);
    const int strip_bytes = product.kind.shape.tile_count * tile_bytes;
    const int piece_bytes = product.kind.cut.piece_tiles * tile_bytes;
    const int last_bytes = strip_bytes - (pieces - 1) * piece_bytes;
    const TileBytes* source =
        product.call.weights[unit.output] + static_cast<std::int64_t>(unit.first_strip) * strip_bytes;
#pragma unroll 1
    for (int piece = 1; piece <= pieces; ++piece) {
      const int bytes = unit.strips * (piece == pieces ? last_bytes : piece_bytes);
      feeder.copy_each(source, static_cast<unsigned>(bytes), units);
      source += piece_bytes;
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

// What a group does in a round: its unit, or its part of the only one, which all groups share.
struct UnitWork {
  int strips;  // 0: nothing
  int stage;   // of the first piece; the others follow `stage_step` apart
  int stage_step;
  float* partials;   // the lane's in the exchange
  OctetInput input;  // of a strip's first octet
};

// The partials of a unit's strips, of which the first piece is there, go to the exchange. `kShared`: each group has a
// pair of every octet's blocks.
template <DType kType, bool kShared>
__device__ __forceinline__ void consume_unit(int tile_count, int piece_tiles, const UnitWork& work,
                                             const Consumer& consumer) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  constexpr int kOctetsAtOnce = Fragment<kType>::kSubScales ? 1 : 2;  // else there is more code than time is saved
  const int lane = own_lane();
  OctetInput input = work.input;
  float* place = work.partials;
  float partials[2] = {0.0f, 0.0f};
  const auto hand_over_strip = [&] {
    if (!kShared || lane % 4 == consumer.group)
      *reinterpret_cast<float2*>(place) = make_float2(partials[0], partials[1]);
  };
  int octet = consumer.warp_in_group;
  int stage = work.stage;
  int first_tile = 0;
#pragma unroll 1
  while (true) {
    const int end_tile = min(first_tile + piece_tiles, tile_count);
    const TileBytes* bytes = consumer.ring.slot(stage);
#pragma unroll 1
    for (int strip = 0;;) {
      const TileBytes* tile = bytes + (strip * (end_tile - first_tile) + 2 * octet - first_tile) * kTileBytes;
      if constexpr (kShared)
        accumulate_pairs<kType>(lane, tile, end_tile, consumer.group, octet, input, partials);
      else
        accumulate_octets<kType, kOctetsAtOnce>(lane, tile, end_tile, octet, input, partials);
      if (++strip == work.strips) break;
      if (strip == 1) consumer.exchange.wait_free(consumer.round);
      hand_over_strip();  // of a bundle of whole strips
      place += kStripRows * kPartialStride;
      partials[0] = 0.0f;
      partials[1] = 0.0f;
      input = work.input;
      octet = consumer.warp_in_group;
    }
    __syncwarp();
    if (arrives_for_warp(lane)) {
      if constexpr (kShared)
        consumer.ring.release_shared(stage);
      else
        consumer.ring.release(stage);
    }
    first_tile = end_tile;
    if (first_tile == tile_count) break;
    stage += work.stage_step;
    consumer.ring.wait_full(stage);
  }
  if (work.strips == 1) consumer.exchange.wait_free(consumer.round);
  hand_over_strip();
}

// Of a strip that is worth the code of sharing, which must be fetched.
inline constexpr int kFewestSharedTiles = 96;

// All of a product's rounds. What the first one needs beside the vector is there before the vector is waited for.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_product(const ProgramProduct& product, const BlockShare& share,
                                                Consumer& consumer) {
  const int tile_count = product.kind.shape.tile_count;
  const int piece_tiles = product.kind.cut.piece_tiles;
  const int unit_count = share.unit_count();
#pragma unroll 1
  for (int first = 0; first < unit_count; first += kProgramGroups) {
    const int units = min(unit_count - first, kProgramGroups);
    const bool shared = units == 1 && tile_count >= kFewestSharedTiles;
    const int own = shared ? 0 : consumer.group;
    const int lane = own_lane();
    UnitWork work = {0, consumer.stage + own, units, nullptr,
                     OctetInput(lane, consumer.row, consumer.warp_in_group, shared ? consumer.group : lane % 4)};
    bool second = false;
    if (own < units) {
      const ProgramUnit unit = share.unit(first + own, product.kind.shape.output_count);
      second = kFirst != kSecond && product.kind.shape.outputs[unit.output].second_type;
      work.strips = unit.strips;
      work.partials = consumer.exchange.rows(consumer.round, own) + lane / 4 * kPartialStride +
                      8 * consumer.warp_in_group + 2 * (lane % 4);
      consumer.ring.wait_full(work.stage);
    }
    if (first == 0) {
      constexpr bool kSums = has_minimum(kFirst) || has_minimum(kSecond);
      const ProgramInput input = product.input();
      if (input.quantized)
        take_quantized_vector<kSums>(input, consumer.words, product.kind.cols, consumer.row);
      else
        prepare_program_vector<kSums>({input, consumer.words}, product.call.norm_weight, product.kind.norm_epsilon,
                                      product.kind.cols, consumer.row, consumer.staged);
      consumer_barrier();
      if (product.call.host_rows >= 0 && (kAskArrivals > 1 || threadIdx.x == 0)) arrive(consumer.exchange.asks);
    }
    if (work.strips == 0)
      consumer.exchange.wait_free(consumer.round);  // or its arrival would be counted for the round before last
    else if (!second && shared)
      consume_unit<kFirst, true>(tile_count, piece_tiles, work, consumer);
    else if (!second)
      consume_unit<kFirst, false>(tile_count, piece_tiles, work, consumer);
    else if (shared)
      consume_unit<kSecond, true>(tile_count, piece_tiles, work, consumer);
    else
      consume_unit<kSecond, false>(tile_count, piece_tiles, work, consumer);
    consumer.exchange.arrive_full(consumer.round++);
    consumer.stage += units * product.kind.cut.pieces;
  }
}

}  // namespace genai::cuda
