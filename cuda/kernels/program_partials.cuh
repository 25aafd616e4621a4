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

struct ChunkCells {
  Cell* outputs;
  Cell* sums;
  int slices;
  int capacity;

  __device__ __forceinline__ ChunkCells(const ProgramAttention& op, const HandoverMemory& handover)
      : slices(slice_count(op.cache.head_dim)), capacity(op.chunk_capacity) {
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
  const std::uint64_t first_word = std::uint64_t{tag} << 32 | float_bits(first);
  const std::uint64_t second_word = std::uint64_t{tag} << 32 | float_bits(second);
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(cells), "l"(first_word), "l"(second_word)
               : "memory");
}

// A chunk's (mc, lc) as it was seen; `there`: both were.
struct SeenSum {
  ChunkSum sum;
  bool there;
};

__device__ __forceinline__ SeenSum look_at_sum(const Cell* cells, unsigned tag) {
  std::uint64_t highest;
  std::uint64_t total;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(highest), "=l"(total) : "l"(cells) : "memory");
  return {{bits_float(static_cast<unsigned>(highest)), bits_float(static_cast<unsigned>(total))},
          static_cast<unsigned>(highest >> 32) == tag && static_cast<unsigned>(total >> 32) == tag};
}

}  // namespace genai::cuda
