// tile_work.cuh - what a kernel of tiled products is given, and where its items lie. Items are numbered column group
// first, so that blocks which run at once read the same weights.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda/kernels/tile_input.cuh"
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

struct TilePlace {
  int output;
  int first_strip;
  int column_group;
};

// Of an item with kBlockStrips strips.
template <int kBlockStrips>
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

}  // namespace genai::cuda
