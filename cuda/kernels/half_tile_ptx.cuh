// half_tile_ptx.cuh - the instructions that only devices of compute capability 9.0 have: registers that warps give to
// others, and products by four warps at once.
#pragma once
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "these instructions need the target sm_90a: see CMakeLists.txt"
#endif

#include <cuda_runtime.h>

#include <cstdint>

namespace genai::cuda {

// ---- registers of a thread, by whole groups of four warps ----------------------------------------------------------

template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- products of halves by four warps ------------------------------------------------------------------------------

// d = a * b, or d + a * b: 64 rows, 16 of them with each warp, times 16 activations of 64 columns. With g = lane / 4
// and c = lane % 4: a[0] is row g of the warp's, activations 2c and 2c+1, a[1] row g + 8; a[2], a[3] the same eight on;
// d[4 * i], d[4 * i + 1] are row g, columns 8i + 2c and 8i + 2c+1; the next two row g + 8. Sums are at least single
// precision, so integers below 2^24 are exact. Nothing may touch d and a until it is over.
template <bool kAdd>
__device__ __forceinline__ void multiply_async(float (&d)[32], const unsigned (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n .reg .pred add;\n setp.ne.b32 add, %37, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16\n"
      " {%0, %1, %2, %3, %4, %5, %6, %7,\n"
      " %8, %9, %10, %11, %12, %13, %14, %15,\n"
      " %16, %17, %18, %19, %20, %21, %22, %23,\n"
      " %24, %25, %26, %27, %28, %29, %30, %31},\n"
      " {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kAdd)));
}

// b of a product in shared memory: two cores, 16 bytes of each of eight columns, then those of the next eight columns
// kOctetBytes on.
template <int kCoreBytes, int kOctetBytes>
__device__ __forceinline__ std::uint64_t columns_at(unsigned shared) {
  std::uint64_t columns;
  asm("mov.b64 %0, {%1, %2};" : "=l"(columns) : "r"(shared + (kCoreBytes >> 4 << 16)), "n"(kOctetBytes >> 4));
  return columns;
}

// Before the first product that reads registers written since.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;"); }
// Those asked for since the last call are one set.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;"); }
// Until at most kLeft sets are left; d is that of one that is over.
template <int kLeft, int kCount>
__device__ __forceinline__ void wait_for_products(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft));
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]));
}

}  // namespace genai::cuda
