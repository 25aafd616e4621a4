// program_group.cuh - a thread among the groups of warps that consume in a program (NOTE [Program]).
#pragma once
#include <cuda_runtime.h>

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

// Of as many threads, by the number of the barrier. A number known only at run time makes the compiler reserve all 16
// of a block: there is one on a multiprocessor.
template <int kThreads>
__device__ __forceinline__ void numbered_barrier(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Barriers 2 .. 5 of a block belong to its groups.
__device__ __forceinline__ void program_group_barrier(int group) { numbered_barrier<kProgramGroupThreads>(2 + group); }

}  // namespace genai::cuda
