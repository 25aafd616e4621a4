// numbered_barrier.cuh - barriers of parts of a block that are chosen by number, for kernels that have a multiprocessor
// to themselves: a number known only at run time makes the compiler reserve all 16.
//
// Racecheck loses count of such barriers where parts of a block and all of it meet in turn (tests/README.md,
// "Sanitizers"). Built for it, barriers in shared memory stand in for them, at which every thread arrives.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

inline constexpr int kNumberedBarriers = 16;
inline constexpr int kStandInBytes = kForRacecheck ? kNumberedBarriers * static_cast<int>(sizeof(SharedBarrier)) : 0;

// Of dynamic shared memory, for a block of such a kernel: all that there is.
inline int whole_shared_bytes(const DeviceTraits& traits) { return traits.shared_bytes_per_block - kStandInBytes; }

__device__ __forceinline__ SharedBarrier* stand_in(int id) {
  __shared__ SharedBarrier barriers[kNumberedBarriers];
  return barriers + id;
}

// At the start of a kernel, before the block meets: barrier `id` is for thread_count(id) threads.
template <class ThreadCount>
__device__ __forceinline__ void init_numbered_barriers(const ThreadCount& thread_count) {
  if constexpr (kForRacecheck) {
    if (threadIdx.x >= kNumberedBarriers) return;
    init_barrier(stand_in(static_cast<int>(threadIdx.x)),
                 static_cast<unsigned>(thread_count(static_cast<int>(threadIdx.x))));
    publish_barriers();
  }
}

// By kThreads threads, whole warps.
template <int kThreads>
__device__ __forceinline__ void numbered_barrier(int id) {
  if constexpr (kForRacecheck)
    meet(stand_in(id));
  else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// The same for a number that is known.
template <int kId, int kThreads>
__device__ __forceinline__ void numbered_barrier() {
  if constexpr (kForRacecheck)
    meet(stand_in(kId));
  else
    named_barrier<kId, kThreads>();
}

}  // namespace genai::cuda
