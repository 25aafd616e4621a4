// rows_block.cuh - a block of 32 activations for a product with 2 to 16 rows (rows_input.cuh), made int8 by the warp
// that has just computed them, a value a lane. The arithmetic is engine/README.md, "Quantised activations".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/rounding.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

// The block is of row m and begins at `column`.
__device__ __forceinline__ void prepare_block(const RowsInput& prepared, int m, int column, float value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const RoundedBlock rounded(value);
  if (lane % 4 != 0) return;
  const int quad = lane / 4;
  const int tile = column / kTileWidth;
  const int block = column % kTileWidth / kBlockWidth;
  unsigned char* chunk = prepared.chunks + tile / kChunkTiles * prepared.chunk_bytes();
  const int quants = prepared.quant_offset(tile % kChunkTiles, block, m);
  const int place = prepared.scale_offset(tile % kChunkTiles, block, m);
  *reinterpret_cast<unsigned*>(chunk + quants + quad % 4 * 16 + quad / 4 * 4) = rounded.four;
  if (quad == 0) *reinterpret_cast<float*>(chunk + prepared.scales() + place) = rounded.scale.scale;
  if (quad == 1) *reinterpret_cast<float*>(chunk + prepared.sums() + place) = rounded.scaled_sum();
}

}  // namespace genai::cuda
