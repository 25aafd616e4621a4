#include "engine/model/pack.h"

#include <algorithm>
#include <cstring>

#include "engine/error.h"
#include "engine/model/file_blocks.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

using namespace file;

constexpr std::uint32_t kLowNibbles = 0x0f0f0f0fu;
constexpr std::uint32_t kHighNibbles = 0xf0f0f0f0u;

// Four words of 16 bytes of a file, or of 16 bytes of a plane.
using Words = std::uint32_t __attribute__((vector_size(16)));

Words words_at(const std::uint8_t* bytes) {
  Words words;
  std::memcpy(&words, bytes, sizeof words);
  return words;
}
void put_words(std::uint8_t* bytes, Words words) { std::memcpy(bytes, &words, sizeof words); }
void put_word(std::uint8_t* bytes, std::uint32_t word) { std::memcpy(bytes, &word, sizeof word); }

// Bits 4c .. 4c + 3 of `bits` to bits 0, 8, 16 and 24 of word c.
Words one_bit_a_byte(std::uint16_t bits) {
  using Halves = std::uint16_t __attribute__((vector_size(16)));
  constexpr Halves kToTop = {1 << 12, 0, 1 << 8, 0, 1 << 4, 0, 1, 0};  // of a half word; x86-64 has no shift a lane
  const Halves copies = {bits, bits, bits, bits, bits, bits, bits, bits};
  const Words nibbles = reinterpret_cast<Words>(copies * kToTop >> 12);
  return (nibbles | nibbles << 7 | nibbles << 14 | nibbles << 21) & 0x01010101u;
}

// Where row g lies in the planes of one tile. A cell is a block of this row, j = 0..3; every function that puts
// something writes all that the plane has for the row.
template <DType kDType>
struct TileRow {
  static constexpr TileLayout kLayout = tile_layout(kDType);
  std::uint8_t* tile;
  int g;

  // Word c of cell j of a plane of 16-byte groups becomes word j of group c.
  void put_cells(std::uint8_t* plane, const Words (&cells)[kTileBlocks]) const {
    std::uint8_t* to = plane + 64 * g;
    const Words low_01 = __builtin_shufflevector(cells[0], cells[1], 0, 4, 1, 5);
    const Words high_01 = __builtin_shufflevector(cells[0], cells[1], 2, 6, 3, 7);
    const Words low_23 = __builtin_shufflevector(cells[2], cells[3], 0, 4, 1, 5);
    const Words high_23 = __builtin_shufflevector(cells[2], cells[3], 2, 6, 3, 7);
    put_words(to, __builtin_shufflevector(low_01, low_23, 0, 1, 4, 5));
    put_words(to + 16, __builtin_shufflevector(low_01, low_23, 2, 3, 6, 7));
    put_words(to + 32, __builtin_shufflevector(high_01, high_23, 0, 1, 4, 5));
    put_words(to + 48, __builtin_shufflevector(high_01, high_23, 2, 3, 6, 7));
  }
  void put_nibbles(const Words (&cells)[kTileBlocks]) const { put_cells(tile, cells); }
  // Bit 4h + j of byte e of word c is bit 4 of weight e of (h, c) in cell j.
  void put_fifth(Words words) const { put_words(tile + kLayout.high_bits + 16 * g, words); }
  // Bits 2j and 2j + 1 of byte e of word (c, h) are bits 4 and 5 of weight e of (h, c) in cell j.
  void put_pairs(Words h0, Words h1) const {
    put_words(tile + kLayout.high_bits + 32 * g, __builtin_shufflevector(h0, h1, 0, 4, 1, 5));
    put_words(tile + kLayout.high_bits + 32 * g + 16, __builtin_shufflevector(h0, h1, 2, 6, 3, 7));
  }
  std::uint8_t* block_scale(int j) const { return tile + kLayout.scale + 2 * (4 * g + j); }
  std::uint8_t* block_minimum(int j) const { return tile + kLayout.minimum + 2 * (4 * g + j); }
  std::uint8_t* row_scale() const { return tile + kLayout.scale + 2 * g; }
  std::uint8_t* row_minimum() const { return tile + kLayout.minimum + 2 * g; }
  std::uint8_t* sub_scales() const { return tile + kLayout.sub_scale + 4 * g; }
  std::uint8_t* sub_mins() const { return tile + kLayout.sub_min + 4 * g; }
  std::uint8_t* half_scales() const { return tile + kLayout.sub_scale + 8 * g; }
};

// ---- blocks of 32: `from` is the first of the four that this row of the tile takes ----

template <DType kDType, class Block>
void put_nibbles(const TileRow<kDType>& to, const Block* from) {
  Words cells[kTileBlocks] = {};
  for (int j = 0; j < kTileBlocks; ++j) cells[j] = words_at(from[j].nibbles);
  to.put_nibbles(cells);
}

template <DType kDType, class Block>
void put_scales(const TileRow<kDType>& to, const Block* from) {
  for (int j = 0; j < kTileBlocks; ++j) {
    std::memcpy(to.block_scale(j), from[j].d, 2);
    if constexpr (has_minimum(kDType)) std::memcpy(to.block_minimum(j), from[j].m, 2);
  }
}

template <DType kDType, class Block>
void put_fifth(const TileRow<kDType>& to, const Block* from) {
  Words words = {};
  for (int j = 0; j < kTileBlocks; ++j)
    for (int h = 0; h < 2; ++h) words |= one_bit_a_byte(half_at(from[j].fifth + 2 * h)) << (4 * h + j);
  to.put_fifth(words);
}

void pack_row(const TileRow<DType::Q4_0>& to, const BlockQ4_0* from) {
  put_nibbles(to, from);
  put_scales(to, from);
}

void pack_row(const TileRow<DType::Q4_1>& to, const BlockQ4_1* from) {
  put_nibbles(to, from);
  put_scales(to, from);
}

void pack_row(const TileRow<DType::Q5_0>& to, const BlockQ5_0* from) {
  put_nibbles(to, from);
  put_fifth(to, from);
  put_scales(to, from);
}

void pack_row(const TileRow<DType::Q5_1>& to, const BlockQ5_1* from) {
  put_nibbles(to, from);
  put_fifth(to, from);
  put_scales(to, from);
}

void pack_row(const TileRow<DType::Q8_0>& to, const BlockQ8_0* from) {
  for (int h = 0; h < 2; ++h) {
    Words cells[kTileBlocks] = {};
    for (int j = 0; j < kTileBlocks; ++j) cells[j] = words_at(from[j].bytes + 16 * h);
    to.put_cells(to.tile + 512 * h, cells);
  }
  put_scales(to, from);
}

// ---- blocks of 256: a row of a tile takes half of one, parts 4 * half .. 4 * half + 3 ----

// The nibbles of two parts, which are the low and the high halves of 32 bytes.
struct PartPair {
  Words low;
  Words high;
};
PartPair part_pair(const std::uint8_t* from) {
  const Words h0 = words_at(from);
  const Words h1 = words_at(from + 16);
  return {(h0 & kLowNibbles) | (h1 & kLowNibbles) << 4, (h0 >> 4 & kLowNibbles) | (h1 & kHighNibbles)};
}

// The four scales and minima of PartScales at once.
template <DType kDType>
void put_part_scales(const TileRow<kDType>& to, const std::uint8_t (&scales)[12], int half) {
  constexpr std::uint32_t kLowSix = 0x3f3f3f3fu;
  constexpr std::uint32_t kHighTwo = 0xc0c0c0c0u;
  const std::uint32_t first = word_at(scales);
  const std::uint32_t second = word_at(scales + 4);
  const std::uint32_t third = word_at(scales + 8);
  if (half == 0) {
    put_word(to.sub_scales(), first & kLowSix);
    put_word(to.sub_mins(), second & kLowSix);
  } else {
    put_word(to.sub_scales(), (third & kLowNibbles) | (first & kHighTwo) >> 2);
    put_word(to.sub_mins(), (third >> 4 & kLowNibbles) | (second & kHighTwo) >> 2);
  }
}

template <DType kDType, class Block>
void pack_parts(const TileRow<kDType>& to, const Block& from, int half) {
  const PartPair first = part_pair(from.nibbles + 64 * half);
  const PartPair second = part_pair(from.nibbles + 64 * half + 32);
  to.put_nibbles({first.low, first.high, second.low, second.high});
  put_part_scales(to, from.scales, half);
  std::memcpy(to.row_scale(), from.d, 2);
  std::memcpy(to.row_minimum(), from.dmin, 2);
}

void pack_half(const TileRow<DType::Q4_K>& to, const BlockQ4_K& from, int half) { pack_parts(to, from, half); }

void pack_half(const TileRow<DType::Q5_K>& to, const BlockQ5_K& from, int half) {
  pack_parts(to, from, half);
  // Bit 4 * half + j of a byte of the file is part j's.
  const Words h0 = words_at(from.fifth) >> (4 * half) & kLowNibbles;
  const Words h1 = words_at(from.fifth + 16) >> (4 * half) & kLowNibbles;
  to.put_fifth(h0 | h1 << 4);
}

void pack_half(const TileRow<DType::Q6_K>& to, const BlockQ6_K& from, int half) {
  const PartPair first = part_pair(from.nibbles + 64 * half);
  const PartPair second = part_pair(from.nibbles + 64 * half + 32);
  to.put_nibbles({first.low, second.low, first.high, second.high});
  // The file has the pairs of parts 0..3 in one byte too.
  to.put_pairs(words_at(from.pairs + 32 * half), words_at(from.pairs + 32 * half + 16));
  std::memcpy(to.half_scales(), from.scales + 8 * half, 8);
  std::memcpy(to.row_scale(), from.d, 2);
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
  // What a tile reads of a row, and how far the same row of the next strip is.
  constexpr std::int64_t kFileBytes = kLayout.sub_scale >= 0 ? sizeof(Block) / 2 : kTileBlocks * sizeof(Block);
  const std::int64_t strip_file_bytes = file_row_bytes(source.first) * (source.second ? kStripRows / 2 : kStripRows);
  for (std::int64_t t = 0; t < tile_count; ++t) {
    std::uint8_t* tile = destination + t * kLayout.tile_bytes;
    if (row_count < kStripRows) std::memset(tile, 0, kLayout.tile_bytes);
    const std::int64_t left = block_count - t * kTileBlocks;
    for (int g = 0; g < row_count; ++g) {
      const TileRow<kDType> to{tile, g};
      const auto* from = reinterpret_cast<const Block*>(rows[g]);
      // Eight short streams are too many for the processor to foresee; past the end of the mapping this does nothing.
      __builtin_prefetch(rows[g] + strip_file_bytes + t * kFileBytes);
      __builtin_prefetch(rows[g] + strip_file_bytes + t * kFileBytes + 64);
      if constexpr (kLayout.sub_scale >= 0) {
        pack_half(to, from[t / 2], static_cast<int>(t % 2));
      } else if (left >= kTileBlocks) {
        pack_row(to, from + t * kTileBlocks);
      } else {
        Block padded[kTileBlocks] = {};
        std::memcpy(padded, from + t * kTileBlocks, static_cast<std::size_t>(left) * sizeof(Block));
        pack_row(to, padded);
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

}  // namespace genai
