// matmul_units.h - how the rows of a product are cut for threads: the matrices of a call count as one row of units, of
// unit_strips() strips each but for the last one of a matrix. Which unit a thread takes changes no bit of it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "engine/device/kernels.h"
#include "engine/error.h"
#include "engine/host/math.h"
#include "engine/packed_layout.h"

namespace genai {

// The widest vectors take two strips at a time, but with turned rows one: a unit takes longer then, and less is waited
// for the last one.
inline constexpr std::int64_t kMostUnitStrips = 2;
constexpr std::int64_t unit_strips(std::int32_t row_count) { return is_turned(row_count) ? 1 : kMostUnitStrips; }

inline std::int64_t unit_count(const MatrixView& matrix, std::int32_t row_count) {
  return (strip_count(matrix.rows) + unit_strips(row_count) - 1) / unit_strips(row_count);
}

inline std::int64_t unit_count(const MatmulArgs& args, std::int32_t row_count) {
  std::int64_t units = 0;
  for (int i = 0; i < args.output_count; ++i) units += unit_count(args.outputs[i].matrix, row_count);
  return units;
}

// Calls visit(output, first_strip, strip_count) for the strips of the units [begin, end) of a product of `row_count`
// rows of activations.
template <class Visit>
void for_each_strip_range(const MatmulArgs& args, std::int32_t row_count, std::int64_t begin, std::int64_t end,
                          const Visit& visit) {
  const std::int64_t strips_each = unit_strips(row_count);
  std::int64_t matrix_begin = 0;
  for (int i = 0; i < args.output_count; ++i) {
    const MatrixView& matrix = args.outputs[i].matrix;
    const std::int64_t units = unit_count(matrix, row_count);
    const std::int64_t first = std::max<std::int64_t>(begin - matrix_begin, 0) * strips_each;
    const std::int64_t last = std::min(std::min(end - matrix_begin, units) * strips_each, strip_count(matrix.rows));
    if (first < last) visit(i, first, last - first);
    matrix_begin += units;
  }
}

// A quarter of what is left of a share, where others may help: few pieces, and the last ones small.
inline std::int64_t units_to_take(std::int64_t left, int thread_count) {
  return thread_count == 1 ? left : std::max<std::int64_t>(1, left / 4);
}

inline void expect_matrix(const MatrixView& matrix) {
  GENAI_EXPECT(matrix.rows > 0 && matrix.cols > 0, "an empty matrix");
  GENAI_EXPECT(matrix.cols % dtype_info(matrix.dtype).block_elements == 0, "a matrix row has whole blocks");
}

inline void expect_product(const MatmulArgs& args) {
  GENAI_EXPECT(args.row_count > 0, "a product with no rows");
  GENAI_EXPECT(args.output_count > 0 && args.output_count <= MatmulArgs::kMaxOutputs, "one to three outputs");
  for (int i = 0; i < args.output_count; ++i) {
    const MatrixView& matrix = args.outputs[i].matrix;
    expect_matrix(matrix);
    GENAI_EXPECT(matrix.cols == args.outputs[0].matrix.cols, "matrices of one call read one input");
    GENAI_EXPECT(!is_gated(args.epilogue) || matrix.rows % 2 == 0, "gate and up rows come in pairs");
  }
}

}  // namespace genai
