// tile_copy.cuh - how the steps of matmul_tiles.cu get into shared memory. A step needs the same tile of many strips,
// pieces of less than a kilobyte, far apart: to the tensor copy engine a box of a matrix whose rows are strips. The
// activations of a step are one bulk copy. The warps of a block take turns in asking: warp w fills slot w.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_work.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kTileWarps = 8;
// Walks those steps of the block that its warp asks for. Lives in shared memory: registers are scarce.
struct CopyWalk {
  TilePlace place;
  int next_index;  // of the piece behind this one
  int q;
  int end_q;
  int tile;
};

// False behind the last piece.
template <class Shape>
__device__ __forceinline__ bool next_piece(const TilesProduct& product, CopyWalk& walk) {
  TilePiece piece = {-1, 0, 0};
  while (walk.next_index < product.shares.whole_items + 2 && piece.item < 0)
    piece = tile_piece(product.shares, walk.next_index++);
  if (piece.item < 0) return false;
  walk.place = tile_place<Shape::kBlockStrips>(product, piece.item);
  walk.q = walk.tile = piece.first_q;
  walk.end_q = min(piece.end_q, product.shape.tile_count);
  return true;
}

// Goes on by `steps` steps, or to somewhere behind the last one.
template <class Shape>
__device__ __forceinline__ void advance(const TilesProduct& product, CopyWalk& walk, int steps) {
  while (true) {
    const int left = (product.shape.tile_count - 1 - walk.tile) / kUnits;  // with this remainder
    if (steps <= left) break;
    steps -= left + 1;
    walk.tile = ++walk.q;
    if (walk.q >= walk.end_q && !next_piece<Shape>(product, walk)) return;
  }
  walk.tile += steps * kUnits;
}

// By one thread, before copy_input.
template <DType kType, class Shape>
__device__ __forceinline__ void copy_weights(const TilesProduct& product, const CopyWalk& walk, unsigned char* stage,
                                             SharedBarrier* full) {
  using Layout = Stage<kType, Shape>;
  static_assert(Layout::kBytes % 128 == 0 && Layout::kTileBytes % kMapElement == 0);
  arrive_expecting(full, Layout::kBytes);
  box_load(stage, &product.weights[walk.place.output], walk.tile * (Layout::kTileBytes / kMapElement),
           walk.place.first_strip, full, read_often_policy());
}

template <DType kType, class Shape>
__device__ __forceinline__ void copy_input(const TilesProduct& product, const CopyWalk& walk, unsigned char* stage,
                                           SharedBarrier* full) {
  using Layout = Stage<kType, Shape>;
  const int panel = walk.place.column_group * Shape::kPanels;
  const unsigned char* record =
      product.input.records +
      (static_cast<std::int64_t>(panel / kRecordPanels) * product.shape.tile_count + walk.tile) * ByteRecord::kBytes;
  const std::uint64_t policy = read_often_policy();
  if constexpr (Shape::kPanels == kRecordPanels) {
    bulk_load(stage + Layout::kInput, record, Layout::kInputBytes + Layout::kSumBytes, full, policy);
  } else {
    const int of_record = panel % kRecordPanels;
    bulk_load(stage + Layout::kInput, record + of_record * ByteRecord::kPanelBytes, ByteRecord::kPanelBytes, full,
              policy);
    if constexpr (Layout::kSumBytes > 0)
      bulk_load(stage + Layout::kSums, record + ByteRecord::kSums + of_record * kPanelScales, kPanelScales, full,
                policy);
  }
}

}  // namespace genai::cuda
