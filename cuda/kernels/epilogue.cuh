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

// x / (1 + e^-x) as exact_silu has it, for x that has_short_silu: without the checks that division needs for other
// arguments, so that several are computed side by side.
__device__ __forceinline__ bool has_short_silu(float x) {
  return float_bits(x) << 1 >= 0x44000000u && float_bits(x) << 1 <= 0x85000000u;  // 2^-59 .. 64
}
__device__ __forceinline__ float short_silu(float x) {
  const float divisor = 1.0f + exp_in_range(-x);
  const float guess = approximate_reciprocal(divisor);
  const float inverse = exact_fma(exact_fma(-divisor, guess, 1.0f), guess, guess);
  float quotient = exact_fma(x, inverse, 0.0f);
  quotient = exact_fma(exact_fma(-divisor, quotient, x), inverse, quotient);
  return exact_fma(exact_fma(-divisor, quotient, x), inverse, quotient);
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
