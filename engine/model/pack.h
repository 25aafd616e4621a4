// pack.h - from the blocks of a file to the tiles of packed_layout.h, and the reading of file blocks for checks.
// Sources are borrowed bytes (a mapping), at any alignment; nothing is kept. All functions are pure: any number of
// threads may pack different strips of one matrix at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/dtype.h"

namespace genai {

// A matrix of a file: `rows` rows of `cols` weights, row after row without gaps.
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

// One matrix, or two of the same type and shape whose rows alternate: row 2i is row i of `first`, row 2i + 1 of
// `second`.
struct PackSource {
  FileMatrix first;
  std::optional<FileMatrix> second;

  std::int64_t rows() const { return second ? 2 * first.rows : first.rows; }
};

// Writes strips first_strip .. first_strip + strip_count - 1 of the packed matrix, padding included, to `destination`
// (which is where strip first_strip begins).
// REQUIRES: the strips exist; `second` has the type and shape of `first`; cols is a multiple of the type's block.
void pack_strips(const PackSource& source, std::int64_t first_strip, std::int64_t strip_count, std::byte* destination);

// Row `row` of a file's matrix as floats, by the definitions of file_blocks.h; `out` has matrix.cols elements.
void widen_row(const FileMatrix& matrix, std::int64_t row, float* out);

// The first block (for float types: element), counted from the start of the matrix, with a NaN or an infinity in it.
std::optional<std::int64_t> find_nonfinite(const FileMatrix& matrix);

}  // namespace genai
