// tile_copy.cuh - how the steps of matmul_tiles.cu get into shared memory, asked for by one thread. A step needs the
// same tile of many strips, pieces of less than a kilobyte, far apart: to the tensor copy engine a box of a matrix
// whose rows are strips. The activations of a step are one to three bulk copies.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_schedule.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kMapElement = 8;

struct TilesProduct {
  CUtensorMap weights[kMaxStreamOutputs];  // of each output: (strips, strip_bytes) in elements of kMapElement bytes
  StreamShape shape;
  TileInput input;
  TileShares shares;
  int column_groups;
  int row_count;
  Epilogue epilogue;
  float soft_cap;
};

// Where an item lies.
struct TilePlace {
  int output;
  int first_strip;
  int column_group;
};

__device__ __forceinline__ TilePlace tile_place(const TilesProduct& product, int item) {
  int row_block = item / product.column_groups;
  int index = 0;
  while (true) {
    const int own = (product.shape.outputs[index].strip_count + kBlockStrips - 1) / kBlockStrips;
    if (row_block < own) break;
    row_block -= own;
    ++index;
  }
  return {index, row_block * kBlockStrips, item % product.column_groups};
}

// The steps of a block, one after the other: one tile of K each.
struct StepWalk {
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
    place = tile_place(product, pieces.piece.item);
    q = tile = pieces.piece.first_q;
    return true;
  }
};

// Before copy_input.
template <DType kType, class Shape>
__device__ __forceinline__ void copy_weights(const TilesProduct& product, const StepWalk& walk, unsigned char* stage,
                                             SharedBarrier* full) {
  using Layout = Stage<kType, Shape>;
  static_assert(Layout::kTileBytes % kMapElement == 0);
  arrive_expecting(full, Layout::kBytes);
  box_load(stage, &product.weights[walk.place.output], walk.tile * (Layout::kTileBytes / kMapElement),
           walk.place.first_strip, full, read_often_policy());
}

template <DType kType, class Shape>
__device__ __forceinline__ void copy_input(const TilesProduct& product, const StepWalk& walk, unsigned char* stage,
                                           SharedBarrier* full) {
  using Layout = Stage<kType, Shape>;
  const int panel = walk.place.column_group * Shape::kPanels;
  const unsigned char* record =
      product.input.records +
      (static_cast<std::int64_t>(panel / kRecordPanels) * product.shape.tile_count + walk.tile) * kRecordBytes;
  const std::uint64_t policy = read_often_policy();
  if constexpr (Shape::kPanels == kRecordPanels) {
    bulk_load(stage + Layout::kInput, record, Layout::kBytes - Layout::kInput, full, policy);
  } else {
    const int of_record = panel % kRecordPanels;
    const unsigned char* scales = record + kRecordScales + of_record * kPanelScales;
    bulk_load(stage + Layout::kInput, record + of_record * kPanelQuants, kPanelQuants, full, policy);
    bulk_load(stage + Layout::kScales, scales, kPanelScales, full, policy);
    if constexpr (has_minimum(kType))
      bulk_load(stage + Layout::kSums, scales + kRecordSums - kRecordScales, kPanelScales, full, policy);
  }
}

}  // namespace genai::cuda
