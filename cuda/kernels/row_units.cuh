// row_units.cuh - how a block cuts its strips of a product with one row into units of work, each for one group of four
// warps: a bundle of whole strips that fits a slot of the ring in shared memory, or one longer strip in pieces of even
// size. Units go to the groups in turn.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/weight_stream.cuh"

namespace genai::cuda {

inline constexpr int kRowGroups = 4;

// How strips of one type are cut.
struct UnitCut {
  int fitting_strips;  // whole strips that fit a slot; 0: pieces
  int piece_tiles;
  int pieces;

  bool operator==(const UnitCut&) const = default;
};

constexpr __host__ __device__ UnitCut unit_cut(int tile_bytes, int tile_count, int slot_bytes) {
  const int slot_tiles = slot_bytes / tile_bytes;
  if (tile_count <= slot_tiles) return {slot_tiles / tile_count, tile_count, 1};
  const int whole = slot_tiles / 2 * 2;  // octets of blocks stay together
  const int pieces = (tile_count + whole - 1) / whole;
  const int even = ((tile_count + pieces - 1) / pieces + 1) / 2 * 2;
  return {0, even, (tile_count + even - 1) / even};
}

// One output's share of a block.
struct UnitRange {
  int first_strip;
  int strip_count;
  int unit_strips;
  int unit_count;
  int piece_tiles;
  int pieces;
};

// By one thread for each output.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void plan_output(const StreamShape& shape, int output, int most_unit_strips, int block,
                                            int block_count, UnitRange* range) {
  if (output >= shape.output_count) {
    *range = {0, 0, 1, 0, 0, 0};
    return;
  }
  const StripRange strips = owned_strips<kFirst, kSecond>(shape, output, block, block_count);
  const UnitCut cut = unit_cut(tile_layout(shape.outputs[output].second_type ? kSecond : kFirst).tile_bytes,
                               shape.tile_count, shape.stage_bytes);
  range->first_strip = strips.first;
  range->strip_count = strips.end - strips.first;
  const int share = (range->strip_count + kRowGroups - 1) / kRowGroups;
  range->unit_strips = max(1, min(min(cut.fitting_strips, share), most_unit_strips));
  range->unit_count = (range->strip_count + range->unit_strips - 1) / range->unit_strips;
  range->piece_tiles = cut.piece_tiles;
  range->pieces = cut.pieces;
}

}  // namespace genai::cuda
