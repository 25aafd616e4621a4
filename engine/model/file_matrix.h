// file_matrix.h - a matrix as a model file holds it: borrowed bytes (a mapping), at any alignment, and their reading
// weight by weight. All functions are pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/dtype.h"

namespace genai {

// `rows` rows of `cols` weights, row after row without gaps.
struct FileMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::F32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of the type's block
};

constexpr std::int64_t file_row_bytes(const FileMatrix& matrix) {
  const DTypeInfo& info = dtype_info(matrix.dtype);
  return matrix.cols / info.block_elements * info.block_bytes;
}

// Row `row` as floats, by the definitions of file_blocks.h; `out` has matrix.cols elements.
void widen_row(const FileMatrix& matrix, std::int64_t row, float* out);

// The first block (for float types: element), counted from the start of the matrix, with a NaN or an infinity in it.
std::optional<std::int64_t> find_nonfinite(const FileMatrix& matrix);

}  // namespace genai
