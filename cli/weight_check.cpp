#include "cli/weight_check.h"

#include <algorithm>

#include "engine/model/pack.h"

namespace genai::cli {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

// All dimensions above the first are rows.
FileMatrix whole_matrix(const TensorInfo& tensor) {
  FileMatrix matrix{
      .data = tensor.data, .dtype = tensor.dtype, .rows = 1, .cols = static_cast<std::int64_t>(tensor.shape[0])};
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) matrix.rows *= static_cast<std::int64_t>(tensor.shape[i]);
  return matrix;
}

}  // namespace

std::vector<NonfiniteWeight> find_nonfinite_weights(
    const TensorFile& file, const std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>& progress) {
  std::uint64_t total_bytes = 0, done_bytes = 0;
  for (const TensorInfo& tensor : file.tensors()) total_bytes += tensor.readable ? tensor.bytes : 0;
  std::vector<NonfiniteWeight> found;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.readable) continue;
    const FileMatrix matrix = whole_matrix(tensor);
    const std::int64_t row_bytes = file_row_bytes(matrix);
    const std::int64_t rows_a_piece = std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceBytes) / row_bytes);
    const std::int64_t block_bytes = dtype_info(matrix.dtype).block_bytes;
    bool is_clean = true;
    for (std::int64_t row = 0; row < matrix.rows && is_clean; row += rows_a_piece) {
      FileMatrix piece = matrix;
      piece.data += row * row_bytes;
      piece.rows = std::min(rows_a_piece, matrix.rows - row);
      if (const std::optional<std::int64_t> block = find_nonfinite(piece)) {
        const std::int64_t block_of_tensor = row * row_bytes / block_bytes + *block;
        found.push_back({.tensor = tensor.name,
                         .block = block_of_tensor,
                         .file_offset = tensor.file_offset + static_cast<std::uint64_t>(block_of_tensor * block_bytes),
                         .file = tensor.file});
        is_clean = false;
      }
      const auto piece_begin = static_cast<std::uint64_t>(row * row_bytes);
      const auto piece_bytes = static_cast<std::uint64_t>(piece.rows * row_bytes);
      file.drop_pages(tensor, piece_begin, piece_bytes);
      progress(done_bytes + piece_begin + piece_bytes, total_bytes);
    }
    done_bytes += tensor.bytes;
  }
  return found;
}

}  // namespace genai::cli
