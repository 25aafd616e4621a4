// packed_layout.h - the one layout in which every device keeps a weight matrix.
//
// A matrix of `rows` x `cols` (cols is the reduced dimension, K) is cut into strips of 8 rows; a strip into tiles of
// 8 rows x 128 columns (4 blocks of 32), one after the other along K; strips follow one another. Rows are padded to a
// multiple of 8 and K to a multiple of 128 with zero scales, which add exact zeros. A matrix may be split between
// memories at any strip.
//
// One tile of a quantised type is a sequence of planes. g = row in the strip (0..7), j = block in the tile (0..3),
// i = weight in the block (0..31), written i = 16*h + 4*c + e with h = 0..1, c = 0..3, e = 0..3:
//
//   nibble plane, 512 bytes (4, 5 and 6 bit types): byte 16*(4*g + c) + 4*j + e holds the low four bits of weight
//       h = 0 in its low nibble and of weight h = 1 in its high nibble
//   one-bit plane, 128 bytes (5 bit types), little-endian words: word 4*g + c, bit 8*e + 4*h + j is bit 4 of the weight
//   two-bit plane, 256 bytes (6 bit types), words: word 2*(4*g + c) + h, bits 8*e + 2*j and the next are bits 4 and 5
//   byte plane, 1024 bytes (8 bit types): byte 512*h + 16*(4*g + c) + 4*j + e
//   then scales:
//     Q4_0 Q5_0 Q8_0   f16 d[8][4]                                   weight = d * (n - {8, 16, 0})
//     Q4_1 Q5_1        f16 d[8][4], f16 m[8][4]                      weight = d * n + m
//     Q4_K Q5_K        f16 d[8], f16 dmin[8], u8 s[8][4], u8 t[8][4] weight = (d * s) * n - dmin * t
//     Q6_K             f16 d[8], i8 s[8][4][2] (last index is h)     weight = (d * s) * (n - 32)
//   n is unsigned, but for Q8_0, where it is a signed byte.
//
// A tile of a float type is 8 rows of 128 elements, row after row.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/dtype.h"

namespace genai {

inline constexpr int kStripRows = 8;
inline constexpr int kBlockWidth = 32;
inline constexpr int kTileBlocks = 4;
inline constexpr int kTileWidth = kBlockWidth * kTileBlocks;

// Byte offsets of the planes inside one tile; -1 where the type has no such plane.
struct TileLayout {
  int high_bits;   // one-bit or two-bit plane
  int scale;       // d
  int minimum;     // m, or dmin
  int sub_scale;   // s
  int sub_min;     // t
  int zero_point;  // subtracted from n
  int tile_bytes;
};

constexpr TileLayout tile_layout(DType dtype) {
  switch (dtype) {
    case DType::Q4_0:
      return {-1, 512, -1, -1, -1, 8, 576};
    case DType::Q4_1:
      return {-1, 512, 576, -1, -1, 0, 640};
    case DType::Q5_0:
      return {512, 640, -1, -1, -1, 16, 704};
    case DType::Q5_1:
      return {512, 640, 704, -1, -1, 0, 768};
    case DType::Q8_0:
      return {-1, 1024, -1, -1, -1, 0, 1088};
    case DType::Q4_K:
      return {-1, 512, 528, 544, 576, 0, 608};
    case DType::Q5_K:
      return {512, 640, 656, 672, 704, 0, 736};
    case DType::Q6_K:
      return {512, 768, -1, 784, -1, 32, 848};
    case DType::F32:
      return {-1, -1, -1, -1, -1, 0, 4 * kStripRows * kTileWidth};
    case DType::F16:
    case DType::BF16:
      return {-1, -1, -1, -1, -1, 0, 2 * kStripRows * kTileWidth};
  }
  return {-1, -1, -1, -1, -1, 0, 0};
}

// True where a block's dot is followed by a minimum term (engine/README.md, "Matrix product").
constexpr bool has_minimum(DType dtype) { return tile_layout(dtype).minimum >= 0; }

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t padded_width(std::int64_t cols) { return round_up(cols, kTileWidth); }
constexpr std::int64_t strip_count(std::int64_t rows) { return (rows + kStripRows - 1) / kStripRows; }
constexpr std::int64_t strip_bytes(DType dtype, std::int64_t cols) {
  return padded_width(cols) / kTileWidth * tile_layout(dtype).tile_bytes;
}
constexpr std::int64_t packed_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  return strip_count(rows) * strip_bytes(dtype, cols);
}

}  // namespace genai
