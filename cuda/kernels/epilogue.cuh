// epilogue.cuh - what happens to a product before it is stored, in the order of engine/README.md.
#pragma once
#include <cuda_runtime.h>

#include "engine/device/kernels.h"
#include "engine/exact_math.h"

namespace genai::cuda {

__device__ __forceinline__ float activate(Epilogue activation, float x) {
  return activation == Epilogue::gated_gelu ? exact_gelu(x) : exact_silu(x);
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
