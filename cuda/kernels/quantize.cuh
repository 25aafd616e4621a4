// quantize.cuh - four neighbouring activations of a row by each lane of a warp, and their blocks of 32 as int8:
// q = rint(x / d), d = amax / 127 (engine/README.md, "Quantised activations").
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/rounding.cuh"
#include "cuda/kernels/warp.cuh"

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
template <int kCount>
__device__ __forceinline__ void quantize_fours(const float4 (&fours)[kCount], QuantizedFour (&results)[kCount]) {
  unsigned highest[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) highest[k] = largest_magnitude(fours[k]);
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2)
#pragma unroll
    for (int k = 0; k < kCount; ++k) highest[k] = max(highest[k], __shfl_xor_sync(kFullWarp, highest[k], stride));
  int sums[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const RoundingScale scale(highest[k]);
    results[k].scale = scale.scale;
    results[k].quants = scale.counts ? four_quants(fours[k], scale.inverse) : 0u;
    sums[k] = sum_of_quants(results[k].quants);
  }
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2)
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += __shfl_xor_sync(kFullWarp, sums[k], stride);
#pragma unroll
  for (int k = 0; k < kCount; ++k) results[k].sum = results[k].scale * static_cast<float>(sums[k]);
}

__device__ __forceinline__ QuantizedFour quantize_four(const float4& four) {
  const float4 fours[1] = {four};
  QuantizedFour results[1];
  quantize_fours(fours, results);
  return results[0];
}

}  // namespace genai::cuda
