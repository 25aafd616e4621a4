#include "engine/model/pack.h"

#include <algorithm>
#include <cstring>

#include "engine/error.h"
#include "engine/exact_math.h"
#include "engine/model/file_blocks.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

using namespace file;

constexpr std::uint32_t kLowNibbles = 0x0f0f0f0fu;
constexpr std::uint32_t kHighNibbles = 0xf0f0f0f0u;

void put_half(std::uint8_t* bytes, const std::uint8_t (&half)[2]) { std::memcpy(bytes, half, 2); }
void put_word(std::uint8_t* bytes, std::uint32_t word) { std::memcpy(bytes, &word, sizeof word); }

// Bits 0..3 of `nibble` to bits 0, 8, 16 and 24.
constexpr std::uint32_t one_bit_a_byte(std::uint32_t nibble) { return nibble * 0x00204081u & 0x01010101u; }

// Where row g lies in the planes of one tile. A tile starts as zeros; its blocks are those of four cells j in a row.
template <DType kDType>
struct TileRow {
  static constexpr TileLayout kLayout = tile_layout(kDType);
  std::uint8_t* tile;
  int g;

  std::uint8_t* nibbles(int j, int c) const { return tile + 16 * (4 * g + c) + 4 * j; }
  std::uint8_t* bytes(int j, int h, int c) const { return nibbles(j, c) + 512 * h; }
  // Bit 4h + j of byte e is bit 4 of weight e of (h, c) in cell j.
  std::uint8_t* fifth(int c) const { return tile + kLayout.high_bits + 4 * (4 * g + c); }
  // Bits 2j and 2j + 1 of byte e are bits 4 and 5 of weight e of (h, c) in cell j.
  std::uint8_t* pairs(int h, int c) const { return tile + kLayout.high_bits + 4 * (2 * (4 * g + c) + h); }
  std::uint8_t* block_scale(int j) const { return tile + kLayout.scale + 2 * (4 * g + j); }
  std::uint8_t* block_minimum(int j) const { return tile + kLayout.minimum + 2 * (4 * g + j); }
  std::uint8_t* row_scale() const { return tile + kLayout.scale + 2 * g; }
  std::uint8_t* row_minimum() const { return tile + kLayout.minimum + 2 * g; }
  std::uint8_t* sub_scale(int j) const { return tile + kLayout.sub_scale + 4 * g + j; }
  std::uint8_t* sub_min(int j) const { return tile + kLayout.sub_min + 4 * g + j; }
  std::uint8_t* half_scales(int j) const { return tile + kLayout.sub_scale + 2 * (4 * g + j); }
};

// ---- blocks of 32: `from` is the first of `count` that this row of the tile takes, at most four ----

template <DType kDType, class Block>
void put_nibbles(const TileRow<kDType>& to, const Block* from, int count) {
  for (int j = 0; j < count; ++j)
    for (int c = 0; c < 4; ++c) std::memcpy(to.nibbles(j, c), from[j].nibbles + 4 * c, 4);
}

template <DType kDType, class Block>
void put_scales(const TileRow<kDType>& to, const Block* from, int count) {
  for (int j = 0; j < count; ++j) {
    put_half(to.block_scale(j), from[j].d);
    if constexpr (TileRow<kDType>::kLayout.minimum >= 0) put_half(to.block_minimum(j), from[j].m);
  }
}

template <DType kDType, class Block>
void put_fifth(const TileRow<kDType>& to, const Block* from, int count) {
  std::uint32_t words[4] = {};
  for (int j = 0; j < count; ++j) {
    const std::uint32_t fifth = word_at(from[j].fifth);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) words[c] |= one_bit_a_byte(fifth >> (16 * h + 4 * c) & 15u) << (4 * h + j);
  }
  for (int c = 0; c < 4; ++c) put_word(to.fifth(c), words[c]);
}

void pack_row(const TileRow<DType::Q4_0>& to, const BlockQ4_0* from, int count) {
  put_nibbles(to, from, count);
  put_scales(to, from, count);
}

void pack_row(const TileRow<DType::Q4_1>& to, const BlockQ4_1* from, int count) {
  put_nibbles(to, from, count);
  put_scales(to, from, count);
}

void pack_row(const TileRow<DType::Q5_0>& to, const BlockQ5_0* from, int count) {
  put_nibbles(to, from, count);
  put_fifth(to, from, count);
  put_scales(to, from, count);
}

void pack_row(const TileRow<DType::Q5_1>& to, const BlockQ5_1* from, int count) {
  put_nibbles(to, from, count);
  put_fifth(to, from, count);
  put_scales(to, from, count);
}

void pack_row(const TileRow<DType::Q8_0>& to, const BlockQ8_0* from, int count) {
  for (int j = 0; j < count; ++j)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 4; ++c) std::memcpy(to.bytes(j, h, c), from[j].bytes + 16 * h + 4 * c, 4);
  put_scales(to, from, count);
}

// ---- blocks of 256: a row of a tile takes half of one, parts 4 * half .. 4 * half + 3 ----

// Nibbles of one part, which are the low or the high halves of 32 bytes: half the bytes of two words make a word.
template <DType kDType>
void put_part_nibbles(const TileRow<kDType>& to, int j, const std::uint8_t* from, bool high_half) {
  for (int c = 0; c < 4; ++c) {
    const std::uint32_t h0 = word_at(from + 4 * c);
    const std::uint32_t h1 = word_at(from + 16 + 4 * c);
    put_word(to.nibbles(j, c),
             high_half ? (h0 >> 4 & kLowNibbles) | (h1 & kHighNibbles) : (h0 & kLowNibbles) | (h1 & kLowNibbles) << 4);
  }
}

template <DType kDType, class Block>
void pack_parts(const TileRow<kDType>& to, const Block& from, int half) {
#pragma GCC unroll 4
  for (int j = 0; j < kTileBlocks; ++j) {
    put_part_nibbles(to, j, from.nibbles + 64 * half + 32 * (j / 2), j % 2 != 0);
    const PartScales scales = part_scales(from.scales, 4 * half + j);
    *to.sub_scale(j) = scales.scale;
    *to.sub_min(j) = scales.minimum;
  }
  put_half(to.row_scale(), from.d);
  put_half(to.row_minimum(), from.dmin);
}

void pack_half(const TileRow<DType::Q4_K>& to, const BlockQ4_K& from, int half) { pack_parts(to, from, half); }

void pack_half(const TileRow<DType::Q5_K>& to, const BlockQ5_K& from, int half) {
  pack_parts(to, from, half);
  for (int c = 0; c < 4; ++c) {
    // Bit 4 * half + j of a byte of the file is part j's.
    const std::uint32_t h0 = word_at(from.fifth + 4 * c) >> (4 * half) & kLowNibbles;
    const std::uint32_t h1 = word_at(from.fifth + 16 + 4 * c) >> (4 * half) & kLowNibbles;
    put_word(to.fifth(c), h0 | h1 << 4);
  }
}

void pack_half(const TileRow<DType::Q6_K>& to, const BlockQ6_K& from, int half) {
#pragma GCC unroll 4
  for (int j = 0; j < kTileBlocks; ++j) {
    put_part_nibbles(to, j, from.nibbles + 64 * half + 32 * (j % 2), j >= 2);
    std::memcpy(to.half_scales(j), from.scales + 8 * half + 2 * j, 2);
  }
  // The file has the pairs of parts 0..3 in one byte too.
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < 4; ++c) std::memcpy(to.pairs(h, c), from.pairs + 32 * half + 16 * h + 4 * c, 4);
  put_half(to.row_scale(), from.d);
}

const std::byte* source_row(const PackSource& source, std::int64_t row) {
  const FileMatrix& matrix = source.second && row % 2 != 0 ? *source.second : source.first;
  return matrix.data + (source.second ? row / 2 : row) * file_row_bytes(matrix);
}

template <DType kDType, class Block>
void pack_quantized_strip(const PackSource& source, std::int64_t strip, std::uint8_t* destination) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  const std::int64_t block_count = source.first.cols / kBlockWidth;
  const std::int64_t tile_count = padded_width(source.first.cols) / kTileWidth;
  const int row_count = static_cast<int>(std::min<std::int64_t>(kStripRows, source.rows() - strip * kStripRows));
  const std::byte* rows[kStripRows];
  for (int g = 0; g < row_count; ++g) rows[g] = source_row(source, strip * kStripRows + g);
  for (std::int64_t t = 0; t < tile_count; ++t) {
    std::uint8_t* tile = destination + t * kLayout.tile_bytes;
    std::memset(tile, 0, kLayout.tile_bytes);
    for (int g = 0; g < row_count; ++g) {
      const auto* from = reinterpret_cast<const Block*>(rows[g]);
      if constexpr (kLayout.sub_scale >= 0) {
        pack_half(TileRow<kDType>{tile, g}, from[t / 2], static_cast<int>(t % 2));
      } else {
        const std::int64_t left = block_count - t * kTileBlocks;
        pack_row(TileRow<kDType>{tile, g}, from + t * kTileBlocks,
                 static_cast<int>(std::min<std::int64_t>(kTileBlocks, left)));
      }
    }
  }
}

void pack_float_strip(const PackSource& source, std::int64_t strip, std::uint8_t* destination) {
  const std::int64_t element_bytes = dtype_info(source.first.dtype).block_bytes;
  const std::int64_t tile_count = padded_width(source.first.cols) / kTileWidth;
  const std::int64_t tile_row_bytes = kTileWidth * element_bytes;
  for (std::int64_t t = 0; t < tile_count; ++t) {
    const std::int64_t used_bytes =
        std::min<std::int64_t>(kTileWidth, source.first.cols - t * kTileWidth) * element_bytes;
    for (int g = 0; g < kStripRows; ++g) {
      std::uint8_t* to = destination + (t * kStripRows + g) * tile_row_bytes;
      const std::int64_t row = strip * kStripRows + g;
      const std::int64_t copied_bytes = row < source.rows() ? used_bytes : 0;
      if (copied_bytes > 0) std::memcpy(to, source_row(source, row) + t * tile_row_bytes, copied_bytes);
      std::memset(to + copied_bytes, 0, tile_row_bytes - copied_bytes);
    }
  }
}

void pack_strip(const PackSource& source, std::int64_t strip, std::uint8_t* destination) {
  switch (source.first.dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      return pack_float_strip(source, strip, destination);
    case DType::Q4_0:
      return pack_quantized_strip<DType::Q4_0, BlockQ4_0>(source, strip, destination);
    case DType::Q4_1:
      return pack_quantized_strip<DType::Q4_1, BlockQ4_1>(source, strip, destination);
    case DType::Q5_0:
      return pack_quantized_strip<DType::Q5_0, BlockQ5_0>(source, strip, destination);
    case DType::Q5_1:
      return pack_quantized_strip<DType::Q5_1, BlockQ5_1>(source, strip, destination);
    case DType::Q8_0:
      return pack_quantized_strip<DType::Q8_0, BlockQ8_0>(source, strip, destination);
    case DType::Q4_K:
      return pack_quantized_strip<DType::Q4_K, BlockQ4_K>(source, strip, destination);
    case DType::Q5_K:
      return pack_quantized_strip<DType::Q5_K, BlockQ5_K>(source, strip, destination);
    case DType::Q6_K:
      return pack_quantized_strip<DType::Q6_K, BlockQ6_K>(source, strip, destination);
  }
}

float half_float(const std::uint8_t (&half)[2]) { return half_to_float(half_at(half)); }

// The weights of one file block. These follow the file format weight by weight and share nothing with pack_block, so
// that each checks the other.
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

void pack_strips(const PackSource& source, std::int64_t first_strip, std::int64_t strip_count, std::byte* destination) {
  const FileMatrix& first = source.first;
  GENAI_EXPECT(first.cols > 0 && first.cols % dtype_info(first.dtype).block_elements == 0,
               "a packed matrix needs whole blocks in a row");
  GENAI_EXPECT(!source.second || (source.second->dtype == first.dtype && source.second->rows == first.rows &&
                                  source.second->cols == first.cols),
               "interleaved matrices have one type and shape");
  GENAI_EXPECT(first_strip >= 0 && strip_count >= 0 && first_strip + strip_count <= genai::strip_count(source.rows()),
               "strips outside the matrix");
  const std::int64_t bytes_each = strip_bytes(first.dtype, first.cols);
  auto* out = reinterpret_cast<std::uint8_t*>(destination);
  for (std::int64_t i = 0; i < strip_count; ++i) pack_strip(source, first_strip + i, out + i * bytes_each);
}

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
