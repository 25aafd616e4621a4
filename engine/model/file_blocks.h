// file_blocks.h - the blocks of quantised weights as GGUF files hold them, byte for byte. Every member is made of
// bytes, so that a block may lie at any address of a mapping. How the fields make a weight is written at each type.
#pragma once
#include <cstdint>
#include <cstring>

namespace genai::file {

inline std::uint16_t half_at(const std::uint8_t* bytes) { return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8); }

inline std::uint32_t word_at(const std::uint8_t* bytes) {
  std::uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Blocks of 32. Byte i of `nibbles` holds weight i in its low half and weight i + 16 in its high half; bit i of `fifth`
// is bit 4 of weight i.
struct BlockQ4_0 {  // weight = d * (n - 8)
  std::uint8_t d[2];
  std::uint8_t nibbles[16];
};
struct BlockQ4_1 {  // weight = d * n + m
  std::uint8_t d[2];
  std::uint8_t m[2];
  std::uint8_t nibbles[16];
};
struct BlockQ5_0 {  // weight = d * (n - 16)
  std::uint8_t d[2];
  std::uint8_t fifth[4];
  std::uint8_t nibbles[16];
};
struct BlockQ5_1 {  // weight = d * n + m
  std::uint8_t d[2];
  std::uint8_t m[2];
  std::uint8_t fifth[4];
  std::uint8_t nibbles[16];
};
struct BlockQ8_0 {  // weight = d * n, n signed
  std::uint8_t d[2];
  std::uint8_t bytes[32];
};

// Blocks of 256 in eight parts of 32. Parts 2k and 2k + 1 are the low and the high halves of bytes 32k .. 32k + 31 of
// `nibbles`; bit p of fifth[i] is bit 4 of weight i of part p. weight = (d * s) * n - dmin * t, with the 6-bit s and t
// of the part (PartScales).
struct BlockQ4_K {
  std::uint8_t d[2];
  std::uint8_t dmin[2];
  std::uint8_t scales[12];
  std::uint8_t nibbles[128];
};
struct BlockQ5_K {
  std::uint8_t d[2];
  std::uint8_t dmin[2];
  std::uint8_t scales[12];
  std::uint8_t fifth[32];
  std::uint8_t nibbles[128];
};

// Two halves of 128 weights, each four parts of 32. In a half (64 bytes of `nibbles`, 32 of `pairs`): part p takes
// bytes 32 * (p % 2) + i, their low halves for p < 2, else their high ones; bits 2p and 2p + 1 of pairs[i] are bits 4
// and 5. weight = (d * s) * (n - 32), one signed s for each 16 weights in order.
struct BlockQ6_K {
  std::uint8_t nibbles[128];
  std::uint8_t pairs[64];
  std::int8_t scales[16];
  std::uint8_t d[2];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 &&
              sizeof(BlockQ6_K) == 210);

// The 6-bit scale s and minimum t of one part of a Q4_K or Q5_K block. Parts 0 to 3 have whole bytes (0 to 3 and 4 to
// 7); parts 4 to 7 have their low four bits in bytes 8 to 11 and their high two in the top of the former.
struct PartScales {
  std::uint8_t scale;
  std::uint8_t minimum;
};
inline PartScales part_scales(const std::uint8_t (&scales)[12], int part) {
  if (part < 4) {
    return {static_cast<std::uint8_t>(scales[part] & 63), static_cast<std::uint8_t>(scales[part + 4] & 63)};
  }
  const int low = scales[part + 4];
  return {static_cast<std::uint8_t>((low & 15) | (scales[part - 4] >> 6) << 4),
          static_cast<std::uint8_t>(low >> 4 | (scales[part] >> 6) << 4)};
}

}  // namespace genai::file
