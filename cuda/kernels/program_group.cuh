// program_group.cuh - a thread among the groups of warps that consume in a program (NOTE [Program]).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kProgramGroupThreads = kProgramGroupWarps * 32;

// Barriers 2 .. 5 of a block belong to its groups.
__device__ __forceinline__ void program_group_barrier(int group) {
  static_assert(kProgramGroups == 4);
  switch (group) {
    case 0:
      return named_barrier<2, kProgramGroupThreads>();
    case 1:
      return named_barrier<3, kProgramGroupThreads>();
    case 2:
      return named_barrier<4, kProgramGroupThreads>();
    default:
      return named_barrier<5, kProgramGroupThreads>();
  }
}

}  // namespace genai::cuda
