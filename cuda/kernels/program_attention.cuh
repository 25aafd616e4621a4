// program_attention.cuh - attention as an operation of a program (NOTE [Program]).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/program.cuh"

namespace genai::cuda {

// What chunks leave behind: outputs [head][slice][chunk][kSliceDims], then (mc, lc) [head][chunk].
inline std::int64_t partial_cells(int head_count, int head_dim, int chunk_capacity) {
  return static_cast<std::int64_t>(head_count) * chunk_capacity * (slice_count(head_dim) * kSliceDims + 2);
}

}  // namespace genai::cuda
