// program_group.cuh - a thread among the groups of warps that consume in a program (NOTE [Program]).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/numbered_barrier.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kProgramGroupThreads = kProgramGroupWarps * 32;

// Numbers of a thread, worked out anew where they are asked for: what follows from them, kept from operation to
// operation, would take registers from what an operation has on its way.
__device__ __forceinline__ int own_thread() {
  const int thread = keep(static_cast<int>(threadIdx.x));
  __builtin_assume(thread >= 0 && thread < kProgramThreads);
  return thread;
}
__device__ __forceinline__ int own_lane() { return own_thread() % 32; }
__device__ __forceinline__ int own_warp() { return own_thread() / 32; }

// Of all that consume.
__device__ __forceinline__ void consumer_barrier() { numbered_barrier<1, kConsumerThreads>(); }

// Barriers 2 .. 5 of a block belong to its groups.
__device__ __forceinline__ void program_group_barrier(int group) { numbered_barrier<kProgramGroupThreads>(2 + group); }

}  // namespace genai::cuda
