// program_list.cuh - the operations of a program as its warps read them: a few at a time in shared memory. In the
// kernel's parameters each is read once, so that every access would wait for the constant cache to fetch it; one warp
// brings them ahead of time.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {

inline constexpr int kListedOps = 8;
inline constexpr int kOpsAhead = 4;  // half of them: who is behind may still read the others
static_assert((kListedOps & (kListedOps - 1)) == 0 && sizeof(ProgramOp) % 8 == 0);

struct ProgramList {
  ProgramOp* ops;        // [kListedOps]
  SharedBarrier* ready;  // the same, one arrival each

  // When it is there.
  __device__ __forceinline__ const ProgramOp& at(int index) const {
    wait_phase(ready + (index & (kListedOps - 1)), static_cast<unsigned>(index / kListedOps) & 1u);
    return ops[index & (kListedOps - 1)];
  }
  // By a whole warp.
  __device__ __forceinline__ void bring(const RowProgram& program, int index) const {
    if (index >= program.op_count) return;
    const std::uint64_t* from = reinterpret_cast<const std::uint64_t*>(program.ops + index);
    std::uint64_t* to = reinterpret_cast<std::uint64_t*>(ops + (index & (kListedOps - 1)));
    for (int i = static_cast<int>(threadIdx.x) % 32; i < static_cast<int>(sizeof(ProgramOp) / 8); i += 32)
      to[i] = from[i];
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ready + (index & (kListedOps - 1)));
  }
};

}  // namespace genai::cuda
