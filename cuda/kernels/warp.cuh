// warp.cuh - pointers out of DevicePtr, and the sums of engine/README.md across the threads of a warp or a block.
// Adding is commutative to the bit, so a butterfly gives every lane the bits of the tree.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "engine/device/device_ptr.h"
#include "engine/exact_math.h"

namespace genai::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarpLanes = 32;

// In a grid's y and z no more blocks are allowed.
inline constexpr unsigned kMaxGridY = 65535;

template <class T>
__device__ __forceinline__ T* raw(DevicePtr<T> pointer) {
  return reinterpret_cast<T*>(pointer.address());
}

// tree_n over the lanes of a warp, n = 2 * kStride a power of two up to 32; every lane gets the sum of its n lanes.
template <int kStride>
__device__ __forceinline__ float warp_tree(float partial) {
#pragma unroll
  for (int stride = kStride; stride > 0; stride /= 2) partial = partial + __shfl_xor_sync(kFullWarp, partial, stride);
  return partial;
}

// p[0] + p[1] + ... + p[31], left to right, one partial a lane.
__device__ __forceinline__ float warp_chain(float partial) {
  float sum = __shfl_sync(kFullWarp, partial, 0);
#pragma unroll
  for (int lane = 1; lane < kWarpLanes; ++lane) sum = sum + __shfl_sync(kFullWarp, partial, lane);
  return sum;
}

// The same of 32 partials that lie in memory, aligned to 16 bytes, by one thread.
__device__ __forceinline__ float sum_of_partials(const float* partials) {
  const float4* own = reinterpret_cast<const float4*>(partials);
  float4 part[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) part[i] = own[i];
  float y = part[0].x;
  y = y + part[0].y;
  y = y + part[0].z;
  y = y + part[0].w;
#pragma unroll
  for (int i = 1; i < 8; ++i) {
    y = y + part[i].x;
    y = y + part[i].y;
    y = y + part[i].z;
    y = y + part[i].w;
  }
  return y;
}

// tree_256 of eight partials a lane, partial index = 32 * k + lane.
__device__ __forceinline__ float warp_tree_256(const float (&partial)[8]) {
  const float a = partial[0] + partial[4];
  const float b = partial[1] + partial[5];
  const float c = partial[2] + partial[6];
  const float d = partial[3] + partial[7];
  return warp_tree<16>((a + c) + (b + d));
}

// tree_256 of partials in shared memory, by whole warps.
__device__ __forceinline__ float shared_tree_256(const float* shared) {
  float partials[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) partials[k] = shared[kWarpLanes * k + threadIdx.x % kWarpLanes];
  return warp_tree_256(partials);
}

// tree_256 of one partial a thread; blocks of 256 threads; `shared` holds 256 floats and may be used again after the
// next barrier of the block.
__device__ __forceinline__ float block_tree_256(float partial, float* shared) {
  shared[threadIdx.x] = partial;
  __syncthreads();
  return shared_tree_256(shared);
}

__device__ __forceinline__ float inverse_rms(float sum_of_squares, int width, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(width) + epsilon);
}

// The partial of tree_256 over the squares of a row that thread `thread` of 256 has. kLoads loads are on their way at
// once.
template <int kLoads>
__device__ __forceinline__ float partial_square_sum(const float* row, int width, int thread) {
  constexpr int kThreads = 256;
  float partial = 0.0f;
  for (int first = thread; first < width; first += kLoads * kThreads) {
    float loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = first + k * kThreads < width ? row[first + k * kThreads] : 0.0f;
#pragma unroll
    for (int k = 0; k < kLoads; ++k) partial = exact_fma(loaded[k], loaded[k], partial);  // zeros behind the row
  }
  return partial;
}

// 1 / rms of a row by a block of 256 threads, and the same on every thread. `shared` as for block_tree_256.
template <int kLoads = 1>
__device__ __forceinline__ float block_inverse_rms(const float* row, int width, float epsilon, float* shared) {
  return inverse_rms(block_tree_256(partial_square_sum<kLoads>(row, width, static_cast<int>(threadIdx.x)), shared),
                     width, epsilon);
}

}  // namespace genai::cuda
