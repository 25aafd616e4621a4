// half_tile_copy.cuh - how the steps of matmul_half_tiles.cu get into shared memory, asked for by one thread. A step
// needs the same tile of many strips, pieces of less than a kilobyte, far apart: to the tensor copy engine a box of a
// matrix whose rows are strips. The activations of a step are one bulk copy.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/half_tile_product.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_work.cuh"

namespace genai::cuda {

// The steps of a block, one after the other: one tile of K each.
struct HalfTileSteps {
  TilePieces pieces;
  TilePlace place;
  int q;
  int tile;

  // False behind the last one.
  __device__ __forceinline__ bool next(const TilesProduct& product) {
    const int tile_count = product.shape.tile_count;
    if (pieces.next_index > 0) {
      tile += kUnits;
      if (tile < tile_count) return true;
      tile = ++q;
      if (q < min(pieces.piece.end_q, tile_count)) return true;
    }
    if (!pieces.next(product.shares)) return false;
    place = tile_place<HalfTile::kBlockStrips>(product, pieces.piece.item);
    q = tile = pieces.piece.first_q;
    return true;
  }
};

// Before copy_input.
template <DType kType>
__device__ __forceinline__ void copy_weights(const TilesProduct& product, const HalfTileSteps& at, unsigned char* stage,
                                             SharedBarrier* full) {
  using Layout = HalfStage<kType>;
  static_assert(Layout::kTileBytes % kMapElement == 0);
  arrive_expecting(full, Layout::kBytes);
  box_load(stage, &product.weights[at.place.output], at.tile * (Layout::kTileBytes / kMapElement), at.place.first_strip,
           full, read_often_policy());
}

template <DType kType>
__device__ __forceinline__ void copy_input(const TilesProduct& product, const HalfTileSteps& at, unsigned char* stage,
                                           SharedBarrier* full) {
  using Layout = HalfStage<kType>;
  const unsigned char* record =
      product.input.records +
      (static_cast<std::int64_t>(at.place.column_group) * product.shape.tile_count + at.tile) * HalfRecord::kBytes;
  bulk_load(stage + Layout::kInput, record, Layout::kInputBytes, full, read_often_policy());
}

}  // namespace genai::cuda
