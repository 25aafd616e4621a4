// row_input.cuh - the input of a product with one row, and its width in octets of blocks, to which it is padded.
#pragma once
#include <cuda_runtime.h>

#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kOctetBlocks = 8;
inline constexpr int kOctetWidth = kOctetBlocks * kBlockWidth;

struct RowInput {
  const float* values;
  const float* norm_weight;  // null: none
  float norm_epsilon;
  int cols;
};

__host__ __device__ constexpr int octet_count(int cols) { return (cols + kOctetWidth - 1) / kOctetWidth; }

}  // namespace genai::cuda
