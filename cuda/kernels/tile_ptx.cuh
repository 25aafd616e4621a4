// tile_ptx.cuh - the instructions of tiled products that CUDA C++ has no name for, beside those of ptx.cuh: copies of
// boxes, flags from block to block, and numbers that the compiler must not trace.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

// Copies a box of the map's size; what lies outside the matrix is zero. Addresses in shared memory are multiples of
// 128.
__device__ __forceinline__ void box_load(void* shared, const CUtensorMap* map, int element, int row,
                                         SharedBarrier* barrier, std::uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(element), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}

// What a thread, or others before a barrier with it, wrote is seen by the block that has waited for the flag.
__device__ __forceinline__ void raise_flag(unsigned* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}
__device__ __forceinline__ void wait_flag(const unsigned* flag) {
  unsigned raised;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
  } while (raised == 0);
}

// The opposite of keep (ptx.cuh): read again at every use, so that nothing that follows from it occupies registers in
// between.
__device__ __forceinline__ int thread_in_block() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ int block_in_grid() {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

}  // namespace genai::cuda
