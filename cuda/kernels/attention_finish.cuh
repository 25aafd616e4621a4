// attention_finish.cuh - what a merge leaves behind besides its output: the input of the product that reads it, as int8
// (rows_input.cuh).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

// One of the eight fours of a block of row m, which begins at `column`; two of them have its scale and sum stored.
__device__ __forceinline__ void store_prepared(const RowsInput& prepared, int m, int column, int index,
                                               const QuantizedFour& four) {
  const int tile = column / kTileWidth;
  const int block = column % kTileWidth / kBlockWidth;
  unsigned char* chunk = prepared.chunks + tile / kChunkTiles * prepared.chunk_bytes();
  const int quants = prepared.quant_offset(tile % kChunkTiles, block, m);
  const int place = prepared.scale_offset(tile % kChunkTiles, block, m);
  *reinterpret_cast<unsigned*>(chunk + quants + index % 4 * 16 + index / 4 * 4) = four.quants;
  if (index == 0) *reinterpret_cast<float*>(chunk + prepared.scales() + place) = four.scale;
  if (index == 1) *reinterpret_cast<float*>(chunk + prepared.sums() + place) = four.sum;
}

// A block of 32 of row m, which begins at `column`, a value a lane.
__device__ __forceinline__ void prepare_block(const RowsInput& prepared, int m, int column, float value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const RoundingScale scale(warp_max(magnitude(value)));
  unsigned four = scale.counts ? quant_bits(value, scale.inverse) & 0xffu : 0u;
  four |= __shfl_down_sync(kFullWarp, four, 1) << 8;
  four |= __shfl_down_sync(kFullWarp, four, 2) << 16;
  int sum = sum_of_quants(four);
#pragma unroll
  for (int stride = 16; stride >= 4; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
  if (lane % 4 == 0)  // has four quants, and the block's sum
    store_prepared(prepared, m, column, lane / 4, {four, scale.scale, scale.scale * static_cast<float>(sum)});
}

// Four values a lane of row m, by whole warps; eight lanes have a block of 32, which begins at `column`.
__device__ __forceinline__ void prepare_fours(const RowsInput& prepared, int m, int column, const float4& four,
                                              bool exists) {
  const QuantizedFour result = quantize_four(four);
  if (!exists) return;
  store_prepared(prepared, m, column, static_cast<int>(threadIdx.x) % 8, result);
}

}  // namespace genai::cuda
