// ptx.cuh - the instructions that CUDA C++ has no name for: dependent grids, barriers in shared memory, bulk copies
// into it, and integer matrix products. Each is one instruction; what they must be surrounded with stands beside them.
// Compiled for a device that lacks one they do nothing: launchers do not choose such kernels there.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace genai::cuda {

// ---- dependent grids (sm_90; before it, a kernel starts when the one before has ended) -----------------------------

// Lets the next kernel of the stream start on free multiprocessors, up to its own wait.
__device__ __forceinline__ void allow_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until here a kernel may touch only what no kernel writes: weights. Every kernel waits, so that order is transitive.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// For kernels with nothing to do ahead of time.
__device__ __forceinline__ void start_in_order() {
  allow_next_grid();
  wait_for_previous_grid();
}

// ---- barriers ------------------------------------------------------------------------------------------------------

// NOTE [Racecheck]
// The sanitizer's racecheck credits a thread that arrives at a barrier in shared memory with its own accesses alone,
// and those of its warp where it sees an instruction for __syncwarp: there is none where the compiler knows that the
// warp is together. Built for it, with GENAI_FOR_RACECHECK, every thread arrives for itself, as many as barriers then
// count, and what it cannot follow otherwise is left out (tests/README.md, "Sanitizers").
#ifdef GENAI_FOR_RACECHECK
inline constexpr bool kForRacecheck = true;
#else
inline constexpr bool kForRacecheck = false;
#endif

// Barrier kId (1 .. 15) of a block for kThreadCount threads, whole warps. A number known only at run time would make
// the compiler reserve all 16.
template <int kId, int kThreadCount>
__device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreadCount) : "memory");
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory that counts arrivals and bytes; its phases alternate, the first has parity 0.
using SharedBarrier = std::uint64_t;

__device__ __forceinline__ void init_barrier(SharedBarrier* barrier, unsigned arrival_count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrival_count) : "memory");
#endif
}

// After the last init_barrier, before the barrier of the block that shows them to other threads.
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// The same by the address in shared memory, for whoever has it: 32 bits, nothing to convert.
__device__ __forceinline__ void arrive_shared(unsigned barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void arrive(SharedBarrier* barrier) { arrive_shared(shared_address(barrier)); }
__device__ __forceinline__ void arrive_times(SharedBarrier* barrier, unsigned count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#endif
}

// When a warp is done with what a barrier guards, one lane arrives for all of it, behind __syncwarp.
inline constexpr unsigned kWarpArrivals = kForRacecheck ? 32 : 1;
__device__ __forceinline__ bool arrives_for_warp(int lane) { return kForRacecheck || lane == 0; }

__device__ __forceinline__ void expect_shared(unsigned barrier, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void arrive_expecting(SharedBarrier* barrier, unsigned bytes) {
  expect_shared(shared_address(barrier), bytes);
}

// Returns when the phase of this parity is over.
__device__ __forceinline__ void wait_shared(unsigned barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned done;
  do {
    asm volatile(
        "{\n .reg .pred complete;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        " selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
#endif
}
__device__ __forceinline__ void wait_phase(SharedBarrier* barrier, unsigned parity) {
  wait_shared(shared_address(barrier), parity);
}

// By every thread that is expected: returns when all have come.
__device__ __forceinline__ void meet(SharedBarrier* barrier) {
#if __CUDA_ARCH__ >= 900
  std::uint64_t phase;
  unsigned over;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(phase) : "r"(shared_address(barrier)) : "memory");
  do {
    asm volatile(
        "{\n .reg .pred complete;\n"
        " mbarrier.try_wait.shared::cta.b64 complete, [%1], %2;\n"
        " selp.u32 %0, 1, 0, complete;\n}"
        : "=r"(over)
        : "r"(shared_address(barrier)), "l"(phase)
        : "memory");
  } while (over == 0);
#endif
}

// Whether it is over now.
__device__ __forceinline__ bool phase_is_over(SharedBarrier* barrier, unsigned parity) {
  unsigned over = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .pred complete;\n"
      " mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      " selp.u32 %0, 1, 0, complete;\n}"
      : "=r"(over)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#endif
  return over != 0;
}

// ---- bulk copies ---------------------------------------------------------------------------------------------------

// Weights are read once a step: they should not push anything else out of the cache.
__device__ __forceinline__ std::uint64_t read_once_policy() {
  std::uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// What many blocks read at about the same time should stay in the cache.
__device__ __forceinline__ std::uint64_t read_often_policy() {
  std::uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// Addresses and size are multiples of 16; the bytes count towards `barrier`.
__device__ __forceinline__ void bulk_load_shared(unsigned shared, const void* global, unsigned bytes, unsigned barrier,
                                                 std::uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, SharedBarrier* barrier,
                                          std::uint64_t policy) {
  bulk_load_shared(shared_address(shared), global, bytes, shared_address(barrier), policy);
}

// A copy that the requesting thread itself waits for.
__device__ __forceinline__ void request_4_bytes(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_requests() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Sixteen bytes, aligned: the compiler would store four words.
__device__ __forceinline__ void store_four(float* shared, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

// By each thread that wrote to shared memory what a bulk copy overwrites next, before the barrier ahead of its request.
__device__ __forceinline__ void order_before_bulk_loads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- counters from block to block (sm_70) --------------------------------------------------------------------------

// What a thread, or others before a barrier with it, wrote is seen by whoever has waited for the count.
__device__ __forceinline__ void count_up(unsigned* counter) {
#if __CUDA_ARCH__ >= 700
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
#endif
}
__device__ __forceinline__ void wait_count(const unsigned* counter, unsigned count) {
#if __CUDA_ARCH__ >= 700
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen != count);
#endif
}

// Behind wait_count, ahead of bulk copies of what was waited for.
__device__ __forceinline__ void order_seen_before_bulk_loads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// ---- clusters (sm_90): blocks that run at the same time and read each other's shared memory
// --------------------------

__device__ __forceinline__ int cluster_rank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

__device__ __forceinline__ int cluster_blocks() {
  unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return static_cast<int>(blocks);
}

// A barrier of all threads of the cluster in two halves; what a thread wrote to shared memory before it arrived is seen
// by those that have waited. Threads need not come in whole warps.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

// The same place in the shared memory of block `rank` of the cluster.
template <class T>
__device__ __forceinline__ const T* in_block(const T* own, int rank) {
  std::uint64_t address = reinterpret_cast<std::uint64_t>(own);
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(address), "r"(rank));
#endif
  return reinterpret_cast<const T*>(address);
}

// ---- bits: one instruction each, which the compiler does not find where two of the three operands are constants
// ---------

// (word & mask) ^ flip
__device__ __forceinline__ unsigned and_xor(unsigned word, unsigned mask, unsigned flip) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "r"(mask), "r"(flip));
  return result;
}

// (word & mask) | more
__device__ __forceinline__ unsigned and_or(unsigned word, unsigned mask, unsigned more) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(more));
  return result;
}

// ---- what the compiler must not trace -------------------------------------------------------------------------------

// A number that the compiler keeps in a register rather than computing it again.
__device__ __forceinline__ int keep(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

__device__ __forceinline__ unsigned char* keep_shared(unsigned char* shared) {
  unsigned address = shared_address(shared);
  asm volatile("" : "+r"(address));
  return reinterpret_cast<unsigned char*>(__cvta_shared_to_generic(address));
}

// ---- numbers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float widen_half(std::uint16_t half) { return __half2float(__ushort_as_half(half)); }

// 1 / x within one unit in the last place, for normal results.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// d = start + a * b for 16 rows of 32 bytes times 8 columns. With g = lane / 4 and c = lane % 4: a0 is row g, bytes
// 4c .. 4c+3, a1 row g + 8; a2, a3 the same 16 bytes on; b0 column g, bytes 4c .. 4c+3, b1 16 on; d[0], d[1] row g,
// columns 2c, 2c+1; d[2], d[3] row g + 8.
template <bool kSigned>
__device__ __forceinline__ void multiply_32(int (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                            unsigned b0, unsigned b1, int start) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kSigned)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start));
#endif
}

// The same over 16 signed bytes: a0, a1 and b0 only.
__device__ __forceinline__ void multiply_16(int (&d)[4], unsigned a0, unsigned a1, unsigned b0, int start) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(start));
#endif
}

// ---- reductions of a warp ------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned warp_max(unsigned value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, value);
#else
  for (int stride = 16; stride > 0; stride /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, stride));
  return value;
#endif
}
__device__ __forceinline__ int warp_sum(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, value);
#else
  for (int stride = 16; stride > 0; stride /= 2) value += __shfl_xor_sync(0xffffffffu, value, stride);
  return value;
#endif
}

}  // namespace genai::cuda
