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

// exact_silu for all but a few x, without branches and the checks that division needs for any numbers, so that several
// are computed side by side. Above kSiluSame 1 + e^-x is 1, below kSiluZero it is infinite.
inline constexpr float kSiluSame = 64.0f;
inline constexpr float kSiluLowest = -86.0f;
inline constexpr float kSiluZero = -88.4f;

__device__ __forceinline__ bool has_short_silu(float x) {
  const unsigned magnitude = float_bits(x) & 0x7fffffffu;
  return magnitude >= 0x22000000u && magnitude < 0x7f800000u && (x >= kSiluLowest || x <= kSiluZero);
}
__device__ __forceinline__ float short_silu(float x) {
  const float inside = fminf(fmaxf(x, kSiluLowest), kSiluSame);
  const float divisor = 1.0f + exp_in_range(-inside);
  const float guess = approximate_reciprocal(divisor);
  const float inverse = exact_fma(exact_fma(-divisor, guess, 1.0f), guess, guess);
  float quotient = inside * inverse;
  quotient = exact_fma(exact_fma(-divisor, quotient, inside), inverse, quotient);
  quotient = exact_fma(exact_fma(-divisor, quotient, inside), inverse, quotient);
  return x >= kSiluSame ? x : x <= kSiluZero ? -0.0f : quotient;
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
