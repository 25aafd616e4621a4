// rounding.cuh - blocks of 32 activations to int8 without a branch, so that the latencies of several overlap:
// q = rint(x / d), d = amax / 127 (engine/README.md, "Quantised activations").
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "engine/exact_math.h"

namespace genai::cuda {

// amax / 127 and 1 / x as IEEE rounds them, without the checks that division needs for other arguments: amax is at
// least 2^-100 and finite. The first was compared with division for every mantissa; the second is what division does.
__device__ __forceinline__ float divide_by_127(float amax) {
  constexpr float kReciprocal = 1.0f / 127.0f;
  const float quotient = amax * kReciprocal;
  return exact_fma(exact_fma(-127.0f, quotient, amax), kReciprocal, quotient);
}
__device__ __forceinline__ float reciprocal(float x) {
  const float guess = approximate_reciprocal(x);
  return exact_fma(exact_fma(-x, guess, 1.0f), guess, guess);
}

__device__ __forceinline__ unsigned magnitude(float value) { return float_bits(value) & 0x7fffffffu; }
__device__ __forceinline__ unsigned largest_magnitude(const float4& four) {
  return max(max(magnitude(four.x), magnitude(four.y)), max(magnitude(four.z), magnitude(four.w)));
}

// The bits whose lowest byte is the quant (exact_math.h, quantize_activation).
__device__ __forceinline__ unsigned quant_bits(float value, float inverse) {
  return float_bits(value * inverse + kRoundMagic);
}
__device__ __forceinline__ unsigned four_quants(const float4& four, float inverse) {
  const unsigned low = __byte_perm(quant_bits(four.x, inverse), quant_bits(four.y, inverse), 0x0040);
  const unsigned high = __byte_perm(quant_bits(four.z, inverse), quant_bits(four.w, inverse), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
__device__ __forceinline__ int sum_of_quants(unsigned four) { return __dp4a(static_cast<int>(four), 0x01010101, 0); }

// Of a block whose highest magnitude has the bits `highest`, as activation_scale and quantize_activation of
// exact_math.h have it.
struct RoundingScale {
  float scale;
  float inverse;
  bool counts;  // else its quants are zero

  __device__ __forceinline__ explicit RoundingScale(unsigned highest) {
    const bool finite = highest < 0x7f800000u;
    const bool zero = highest < 0x0d800000u;
    const float divided = divide_by_127(bits_float(highest));
    inverse = reciprocal(divided);
    scale = zero ? 0.0f : finite ? divided : bits_float(0x7fc00000u);
    counts = finite && !zero;
  }
};

// A block of 32, a value a lane of a whole warp.
struct RoundedBlock {
  RoundingScale scale;
  int sum;        // of the quants
  unsigned four;  // in lanes 0, 4, ...: the quants of this lane and the next three

  __device__ __forceinline__ explicit RoundedBlock(float value) : scale(warp_max(magnitude(value))) {
    const int quant = scale.counts ? static_cast<signed char>(quant_bits(value, scale.inverse)) : 0;
    sum = warp_sum(quant);
    four = static_cast<unsigned>(quant) & 0xffu;
    four |= __shfl_down_sync(0xffffffffu, four, 1) << 8;
    four |= __shfl_down_sync(0xffffffffu, four, 2) << 16;
  }
  __device__ __forceinline__ float scaled_sum() const { return scale.scale * static_cast<float>(sum); }
};

}  // namespace genai::cuda
