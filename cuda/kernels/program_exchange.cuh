// program_exchange.cuh - the partial sums of a round of units on their way from the groups of warps to the warp that
// finishes them (program_finish.cuh): two places in shared memory, which rounds take in turn. Rounds are counted
// through the whole program; every group takes part in each, with a unit or without.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/row_octets.cuh"

namespace genai::cuda {

inline constexpr unsigned kAskArrivals = kForRacecheck ? kConsumerThreads : 1;  // when the input is there

struct ProgramExchange {
  float* floats;         // [2][group][unit strips][8][kPartialStride]
  SharedBarrier* full;   // [2], an arrival a consuming warp
  SharedBarrier* empty;  // [2], one
  SharedBarrier* asks;   // [2], one: host cores may be asked, and have been (program_host.cuh)
  int unit_strips;

  __device__ __forceinline__ float* rows(int round, int group) const {
    return floats + ((round & 1) * kProgramGroups + group) * (unit_strips * kStripRows * kPartialStride);
  }
  // By a warp that is about to write.
  __device__ __forceinline__ void wait_free(int round) const {
    if (round >= 2) wait_phase(empty + (round & 1), static_cast<unsigned>(round / 2 - 1) & 1u);
  }
  // By a whole warp that has written what it had.
  __device__ __forceinline__ void arrive_full(int round) const {
    __syncwarp();
    if (arrives_for_warp(own_lane())) arrive(full + (round & 1));
  }
  __device__ __forceinline__ void wait_full(int round) const {
    wait_phase(full + (round & 1), static_cast<unsigned>(round / 2) & 1u);
  }
  __device__ __forceinline__ void free(int round) const {
    __syncwarp();
    if (arrives_for_warp(own_lane())) arrive(empty + (round & 1));
  }
};

}  // namespace genai::cuda
