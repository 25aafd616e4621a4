// program_group.cuh - a thread among the groups of warps that consume in a program (NOTE [Program]).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kProgramGroupThreads = kProgramGroupWarps * 32;

// Barriers 2 .. 5 of a block belong to its groups. A number known only at run time makes the compiler reserve all 16 of
// a block: there is one on a multiprocessor.
__device__ __forceinline__ void program_group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(kProgramGroupThreads) : "memory");
}

}  // namespace genai::cuda
