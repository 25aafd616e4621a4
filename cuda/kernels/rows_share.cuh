// rows_share.cuh - how the strips of a product with 2 to 16 rows are shared out. Each output has a part of those who
// compute, by its bytes, and each of these an equal share of its strips: one with strips of two outputs would need a
// pass more than the others.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/weight_stream.cuh"

namespace genai::cuda {

// The last one of each output, and how many strips a pass has at most.
struct RowsDivision {
  int ends[kMaxStreamOutputs];
  int pass_strips;
};

// Strips of one output, and how many of them are a pass: an even number where that fits.
struct RowsShare {
  int output;
  int first;
  int end;
  int pass_strips;
};

struct RowsPass {
  int strip;
  int strips;
};

__device__ __forceinline__ RowsShare rows_share(const StreamShape& shape, const RowsDivision& division, int own) {
  int output = 0;
  int first_own = 0;
  while (own >= division.ends[output]) first_own = division.ends[output++];
  const unsigned count = static_cast<unsigned>(division.ends[output] - first_own);
  const unsigned index = static_cast<unsigned>(own - first_own);
  const unsigned strips = static_cast<unsigned>(shape.outputs[output].strip_count);
  const int first = static_cast<int>(strips * index / count);
  const int end = static_cast<int>(strips * (index + 1) / count);
  const int passes = max((end - first + division.pass_strips - 1) / division.pass_strips, 1);
  const int even = (end - first + 2 * passes - 1) / (2 * passes) * 2;
  return {output, first, end, min(even, division.pass_strips)};
}

// Parts by bytes, at least one for each output that has strips.
inline void divide_rows(const StreamShape& shape, const MatmulOutput* outputs, int count, RowsDivision* division) {
  const auto strips = [&](int i) { return std::int64_t{shape.outputs[i].strip_count}; };
  std::int64_t total = 0;
  int waiting = 0;  // outputs that need one
  for (int i = 0; i < shape.output_count; ++i) {
    total += strips(i) * tile_layout(outputs[i].matrix.dtype).tile_bytes;
    waiting += strips(i) > 0 ? 1 : 0;
  }
  std::int64_t bytes = 0;
  int end = 0;
  for (int i = 0; i < shape.output_count; ++i) {
    bytes += strips(i) * tile_layout(outputs[i].matrix.dtype).tile_bytes;
    if (strips(i) > 0)
      end = std::clamp(static_cast<int>((count * bytes + total / 2) / total), end + 1, count - --waiting);
    division->ends[i] = end;
  }
}

}  // namespace genai::cuda
