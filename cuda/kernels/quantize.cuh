// quantize.cuh - four neighbouring activations of a row by each lane of a warp, and their blocks of 32 as int8:
// q = rint(x / d), d = amax / 127 (engine/README.md, "Quantised activations").
#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/kernels/warp.cuh"
#include "engine/exact_math.h"

namespace genai::cuda {

// Zeros behind the end of the row; `whole` where rows start and end at 16-byte addresses.
__device__ __forceinline__ float4 load_four(const float* row, int column, int cols, bool whole) {
  if (whole)
    return column < cols ? *reinterpret_cast<const float4*>(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(column < cols ? row[column] : 0.0f, column + 1 < cols ? row[column + 1] : 0.0f,
                     column + 2 < cols ? row[column + 2] : 0.0f, column + 3 < cols ? row[column + 3] : 0.0f);
}

__device__ __forceinline__ float4 normalize_four(float4 x, float inverse, float4 weight) {
  return make_float4((x.x * inverse) * weight.x, (x.y * inverse) * weight.y, (x.z * inverse) * weight.z,
                     (x.w * inverse) * weight.w);
}

struct QuantizedFour {
  unsigned quants;  // four bytes
  float scale;      // of the block, like the sum on each of its eight lanes
  float sum;        // scale * sum of the block's quants
};

// By whole warps; a block is eight lanes.
__device__ __forceinline__ QuantizedFour quantize_four(float4 four) {
  const float value[4] = {four.x, four.y, four.z, four.w};
  unsigned amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) amax = max(amax, float_bits(value[i]) & 0x7fffffffu);
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2) amax = max(amax, __shfl_xor_sync(kFullWarp, amax, stride));
  const float scale = activation_scale(amax);
  const float inverse_scale = scale > 0.0f ? 1.0f / scale : 0.0f;
  unsigned word = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int quant = quantize_activation(value[i], inverse_scale);
    sum += quant;
    word |= (static_cast<unsigned>(quant) & 0xffu) << (8 * i);
  }
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
  return {word, scale, scale * static_cast<float>(sum)};
}

}  // namespace genai::cuda
