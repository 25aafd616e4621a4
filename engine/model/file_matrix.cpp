// The weights of file blocks as floats. These follow the format weight by weight and share nothing with pack.cpp, so
// that each checks the other.
#include "engine/model/file_matrix.h"

#include <cstring>

#include "engine/error.h"
#include "engine/exact_math.h"
#include "engine/model/file_blocks.h"

namespace genai {
namespace {

using namespace file;

float half_float(const std::uint8_t (&half)[2]) { return half_to_float(half_at(half)); }

void widen_block(const BlockQ4_0& block, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int n = i < 16 ? block.nibbles[i] & 15 : block.nibbles[i - 16] >> 4;
    out[i] = half_float(block.d) * static_cast<float>(n - 8);
  }
}

void widen_block(const BlockQ4_1& block, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int n = i < 16 ? block.nibbles[i] & 15 : block.nibbles[i - 16] >> 4;
    out[i] = half_float(block.d) * static_cast<float>(n) + half_float(block.m);
  }
}

void widen_block(const BlockQ5_0& block, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? block.nibbles[i] & 15 : block.nibbles[i - 16] >> 4;
    const int n = nibble | (block.fifth[i / 8] >> (i % 8) & 1) << 4;
    out[i] = half_float(block.d) * static_cast<float>(n - 16);
  }
}

void widen_block(const BlockQ5_1& block, float* out) {
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? block.nibbles[i] & 15 : block.nibbles[i - 16] >> 4;
    const int n = nibble | (block.fifth[i / 8] >> (i % 8) & 1) << 4;
    out[i] = half_float(block.d) * static_cast<float>(n) + half_float(block.m);
  }
}

void widen_block(const BlockQ8_0& block, float* out) {
  for (int i = 0; i < 32; ++i)
    out[i] = half_float(block.d) * static_cast<float>(static_cast<std::int8_t>(block.bytes[i]));
}

void widen_block(const BlockQ4_K& block, float* out) {
  for (int i = 0; i < 256; ++i) {
    const int part = i / 32;
    const int byte = block.nibbles[32 * (part / 2) + i % 32];
    const int n = part % 2 == 0 ? byte & 15 : byte >> 4;
    const PartScales scales = part_scales(block.scales, part);
    const float low = half_float(block.dmin) * static_cast<float>(scales.minimum);
    out[i] = half_float(block.d) * static_cast<float>(scales.scale) * static_cast<float>(n) - low;
  }
}

void widen_block(const BlockQ5_K& block, float* out) {
  for (int i = 0; i < 256; ++i) {
    const int part = i / 32;
    const int byte = block.nibbles[32 * (part / 2) + i % 32];
    const int n = (part % 2 == 0 ? byte & 15 : byte >> 4) | (block.fifth[i % 32] >> part & 1) << 4;
    const PartScales scales = part_scales(block.scales, part);
    const float low = half_float(block.dmin) * static_cast<float>(scales.minimum);
    out[i] = half_float(block.d) * static_cast<float>(scales.scale) * static_cast<float>(n) - low;
  }
}

void widen_block(const BlockQ6_K& block, float* out) {
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int part = i % 128 / 32;
    const int byte = block.nibbles[64 * half + 32 * (part % 2) + i % 32];
    const int n = (part < 2 ? byte & 15 : byte >> 4) | (block.pairs[32 * half + i % 32] >> (2 * part) & 3) << 4;
    out[i] = half_float(block.d) * static_cast<float>(block.scales[i / 16]) * static_cast<float>(n - 32);
  }
}

template <class Block>
void widen_blocks(const std::byte* row, std::int64_t cols, std::int64_t block_elements, float* out) {
  const auto* blocks = reinterpret_cast<const Block*>(row);
  for (std::int64_t b = 0; b < cols / block_elements; ++b) widen_block(blocks[b], out + b * block_elements);
}

bool nonfinite_half(const std::uint8_t* bytes) { return (half_at(bytes) & 0x7c00u) == 0x7c00u; }

// Where the f16 scales of a block begin, and how many stand there.
struct ScalePlace {
  int offset;
  int count;
};
constexpr ScalePlace scale_place(DType dtype) {
  switch (dtype) {
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K:
      return {0, 2};
    case DType::Q6_K:
      return {208, 1};
    default:
      return {0, 1};
  }
}

bool nonfinite_block(DType dtype, const std::uint8_t* block) {
  if (dtype == DType::F32) return (word_at(block) & 0x7f800000u) == 0x7f800000u;
  if (dtype == DType::BF16) return (half_at(block) & 0x7f80u) == 0x7f80u;
  const ScalePlace place = scale_place(dtype);
  for (int i = 0; i < place.count; ++i)
    if (nonfinite_half(block + place.offset + 2 * i)) return true;
  return false;
}

}  // namespace

void widen_row(const FileMatrix& matrix, std::int64_t row, float* out) {
  GENAI_EXPECT(row >= 0 && row < matrix.rows, "row outside the matrix");
  const std::byte* data = matrix.data + row * file_row_bytes(matrix);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  switch (matrix.dtype) {
    case DType::F32:
      std::memcpy(out, data, static_cast<std::size_t>(matrix.cols) * sizeof(float));
      return;
    case DType::F16:
      for (std::int64_t i = 0; i < matrix.cols; ++i) out[i] = half_to_float(half_at(bytes + 2 * i));
      return;
    case DType::BF16:
      for (std::int64_t i = 0; i < matrix.cols; ++i) out[i] = bfloat_to_float(half_at(bytes + 2 * i));
      return;
    case DType::Q4_0:
      return widen_blocks<BlockQ4_0>(data, matrix.cols, 32, out);
    case DType::Q4_1:
      return widen_blocks<BlockQ4_1>(data, matrix.cols, 32, out);
    case DType::Q5_0:
      return widen_blocks<BlockQ5_0>(data, matrix.cols, 32, out);
    case DType::Q5_1:
      return widen_blocks<BlockQ5_1>(data, matrix.cols, 32, out);
    case DType::Q8_0:
      return widen_blocks<BlockQ8_0>(data, matrix.cols, 32, out);
    case DType::Q4_K:
      return widen_blocks<BlockQ4_K>(data, matrix.cols, 256, out);
    case DType::Q5_K:
      return widen_blocks<BlockQ5_K>(data, matrix.cols, 256, out);
    case DType::Q6_K:
      return widen_blocks<BlockQ6_K>(data, matrix.cols, 256, out);
  }
}

std::optional<std::int64_t> find_nonfinite(const FileMatrix& matrix) {
  const DTypeInfo& info = dtype_info(matrix.dtype);
  const std::int64_t block_count = matrix.rows * (matrix.cols / info.block_elements);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(matrix.data);
  for (std::int64_t b = 0; b < block_count; ++b)
    if (nonfinite_block(matrix.dtype, bytes + b * info.block_bytes)) return b;
  return std::nullopt;
}

}  // namespace genai
