// epilogue.cuh - what happens to a product before it is stored, in the order of engine/README.md.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "engine/device/kernels.h"
#include "engine/exact_math.h"

namespace genai::cuda {

__device__ __forceinline__ float activate(Epilogue activation, float x) {
  return activation == Epilogue::gated_gelu ? exact_gelu(x) : exact_silu(x);
}

// exact_silu for all but tiny x and those that are not finite, without branches and the checks that division needs for
// any numbers, so that several are computed side by side. 1 + e^-x is taken times 2^-32, and the quotient with it, so
// that no reciprocal is subnormal; all else is as without. Above kSiluSame 1 + e^-x is 1, below -kExpHighest infinite.
inline constexpr float kSiluSame = 64.0f;
inline constexpr float kSiluUnit = 1.0f / 4294967296.0f;

__device__ __forceinline__ bool has_short_silu(float x) {
  const unsigned magnitude = float_bits(x) & 0x7fffffffu;
  return magnitude >= 0x22000000u && magnitude < 0x7f800000u;
}
__device__ __forceinline__ float short_silu(float x) {
  const float inside = fminf(fmaxf(x, -kExpHighest), kSiluSame);
  const float divisor = exact_fma(exp_in_range(-inside), kSiluUnit, kSiluUnit);
  const float guess = approximate_reciprocal(divisor);
  const float inverse = exact_fma(exact_fma(-divisor, guess, 1.0f), guess, guess);
  float quotient = inside * inverse;
  quotient = exact_fma(exact_fma(-divisor, quotient, inside), inverse, quotient);
  quotient = exact_fma(exact_fma(-divisor, quotient, inside), inverse, quotient) * kSiluUnit;
  return x >= kSiluSame ? x : x < -kExpHighest ? -0.0f : quotient;
}

__device__ __forceinline__ float apply_soft_cap(float x, float soft_cap) {
  return soft_cap == 0.0f ? x : soft_cap * exact_tanh(x / soft_cap);
}

// One output of a product that is not gated; `y` has its bias.
__device__ __forceinline__ void store_output(Epilogue epilogue, float soft_cap, float y, float* out) {
  if (epilogue == Epilogue::add) y = *out + y;
  *out = apply_soft_cap(y, soft_cap);
}

// One output of a gated pair; both have their bias.
__device__ __forceinline__ void store_gated(Epilogue epilogue, float soft_cap, float gate, float up, float* out) {
  *out = apply_soft_cap(activate(epilogue, gate) * up, soft_cap);
}

}  // namespace genai::cuda
