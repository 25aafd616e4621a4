// program_partials.cuh - the cells by which chunks of positions hand over what they leave behind: first oc, in the
// order [head][slice][chunk][kSliceDims], then (mc, lc), [head][chunk]. Chunks count as in ChunkSpan.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/program.cuh"

namespace genai::cuda {

inline constexpr int kSumCells = 2;

inline std::int64_t partial_cells(int head_count, int head_dim, int chunk_capacity) {
  return static_cast<std::int64_t>(head_count) * chunk_capacity * (slice_count(head_dim) * kSliceDims + kSumCells);
}

// Computed where it is needed: kept, it would take registers from sums.
struct ChunkCells {
  Cell* outputs;
  Cell* sums;
  int slices;
  int capacity;

  __device__ __forceinline__ ChunkCells(const ProgramAttention& op, const HandoverMemory& handover)
      : slices(slice_count(op.cache.head_dim)), capacity(keep(op.chunk_capacity)) {
    outputs = handover.partials() + op.partials;
    sums = outputs + static_cast<std::int64_t>(op.head_count) * slices * capacity * kSliceDims;
  }
  __device__ __forceinline__ Cell* output(int head, int slice, int chunk) const {
    return outputs + (static_cast<std::int64_t>(head * slices + slice) * capacity + chunk) * kSliceDims;
  }
  __device__ __forceinline__ Cell* sum(int head, int chunk) const {
    return sums + (static_cast<std::int64_t>(head) * capacity + chunk) * kSumCells;
  }
};

// Two neighbours by one store, each in one access; the first at an address that is a multiple of 16.
__device__ __forceinline__ void publish_pair(Cell* cells, float first, float second, unsigned tag) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(cells), "l"(cell_word(first, tag)),
               "l"(cell_word(second, tag))
               : "memory");
}

// A chunk's (mc, lc) as they are read.
struct SumWords {
  CellWord highest;
  CellWord total;

  __device__ __forceinline__ bool have(unsigned tag) const { return tag_of(highest) == tag && tag_of(total) == tag; }
  __device__ __forceinline__ ChunkSum sum() const { return {value_of(highest), value_of(total)}; }
  // Where `wanted`, without a branch.
  __device__ __forceinline__ void look_again(const Cell* cells, bool wanted) {
    asm volatile(
        "{\n .reg .pred wanted;\n"
        " setp.ne.u32 wanted, %3, 0;\n"
        " @wanted ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];\n}"
        : "+l"(highest), "+l"(total)
        : "l"(cells), "r"(static_cast<unsigned>(wanted))
        : "memory");
  }
};

}  // namespace genai::cuda
