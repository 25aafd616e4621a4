// math_avx512_unpack.h - tiles of quantised weights in AVX-512 registers: the factors of a tile, and two strips turned
// so that lanes are their 16 rows. Shared by the VNNI and the AMX products; only for math_avx512*.cpp units
// (math_avx512.h).
#pragma once
#include "engine/host/math_avx512.h"
#include "engine/host/math_quantized.h"

namespace genai {
namespace {

using vector::kHasFifthBit;
using vector::kHasMinimum;
using vector::kHasSubScale;
using vector::kIsSix;
using vector::kPartialTiles;

__m512i bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
__m512i load_bytes(const std::byte* from) { return _mm512_loadu_si512(from); }
__m128i load_16(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
__m256i load_32(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// a | (b & mask)
__m512i or_masked(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }

// Weights enter the dot product as unsigned bytes n + this.
template <DType kDType>
constexpr int kZeroPoint = kDType == DType::Q8_0 ? 128 : tile_layout(kDType).zero_point;

// Four registers whose lanes are (row, column) of rows 0..3, 4..7, 8..11 and 12..15 become one register a column.
struct FloatColumns {
  __m512 column[4];
};
struct IntColumns {
  __m512i column[4];
};
FloatColumns columns_of(__m512 a0, __m512 a1, __m512 b0, __m512 b1) {
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i second = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  const __m512 a01 = _mm512_permutex2var_ps(a0, first, a1);
  const __m512 a23 = _mm512_permutex2var_ps(a0, second, a1);
  const __m512 b01 = _mm512_permutex2var_ps(b0, first, b1);
  const __m512 b23 = _mm512_permutex2var_ps(b0, second, b1);
  return {{_mm512_shuffle_f32x4(a01, b01, 0x44), _mm512_shuffle_f32x4(a01, b01, 0xee),
           _mm512_shuffle_f32x4(a23, b23, 0x44), _mm512_shuffle_f32x4(a23, b23, 0xee)}};
}
[[maybe_unused]] IntColumns columns_of(__m512i a0, __m512i a1, __m512i b0, __m512i b1) {
  const FloatColumns c =
      columns_of(_mm512_castsi512_ps(a0), _mm512_castsi512_ps(a1), _mm512_castsi512_ps(b0), _mm512_castsi512_ps(b1));
  return {{_mm512_castps_si512(c.column[0]), _mm512_castps_si512(c.column[1]), _mm512_castps_si512(c.column[2]),
           _mm512_castps_si512(c.column[3])}};
}

// What multiplies and follows the integer dots of rows 4 * quad .. 4 * quad + 3 of a tile; lanes are (row, j).
using Factors = vector::BlockFactors<Avx512>;

template <DType kDType>
[[gnu::always_inline]] inline Factors load_factors(const std::byte* tile, int quad) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  Factors factors{};
  if constexpr (!kHasSubScale<kDType>) {
    factors.scale = _mm512_cvtph_ps(load_32(tile + kLayout.scale + 32 * quad));
    if constexpr (kHasMinimum<kDType>) factors.minimum = _mm512_cvtph_ps(load_32(tile + kLayout.minimum + 32 * quad));
  } else {
    const __m512i row_of_lane = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                                 _mm512_set1_epi32(4 * quad));
    const auto row_values = [&](int offset) {
      return _mm512_permutexvar_ps(row_of_lane, _mm512_castps256_ps512(_mm256_cvtph_ps(load_16(tile + offset))));
    };
    factors.scale = row_values(kLayout.scale);
    if constexpr (kIsSix<kDType>) {
      const __m512i both = _mm512_cvtepi16_epi32(load_32(tile + kLayout.sub_scale + 32 * quad));
      factors.sub[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24));
      factors.sub[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 8));
    } else {
      factors.sub[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(tile + kLayout.sub_scale + 16 * quad)));
      const __m512 sub_min = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(tile + kLayout.sub_min + 16 * quad)));
      factors.minimum = _mm512_mul_ps(row_values(kLayout.minimum), sub_min);
    }
  }
  return factors;
}

// Two strips, unpacked. Per block of 32: 8 vectors of weights, number 4*h + c with the four weights e in each lane,
// then their factors.
template <DType kDType>
struct WideBlock {
  __m512i n[8];
  __m512 scale;
  __m512 minimum[kHasMinimum<kDType> ? 1 : 0];
  __m512 sub[kIsSix<kDType> ? 2 : kHasSubScale<kDType> ? 1 : 0];
};

void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // In each 128-bit lane: after this, rows[4k + i] holds element i of rows 4k .. 4k + 3.
  for (int k = 0; k < 16; k += 4) {
    rows[k] = _mm512_unpacklo_epi64(t[k], t[k + 2]);
    rows[k + 1] = _mm512_unpackhi_epi64(t[k], t[k + 2]);
    rows[k + 2] = _mm512_unpacklo_epi64(t[k + 1], t[k + 3]);
    rows[k + 3] = _mm512_unpackhi_epi64(t[k + 1], t[k + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    t[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[12 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = t[i];
}

// One 64-byte piece of each row of two tiles, lanes (c, j) = 4*c + j, turned so that lanes are rows.
[[maybe_unused]] void load_turned(const std::byte* a, const std::byte* b, __m512i (&lanes)[16]) {
  for (int g = 0; g < kStripRows; ++g) {
    lanes[g] = load_bytes(a + 64 * g);
    lanes[kStripRows + g] = load_bytes(b + 64 * g);
  }
  transpose(lanes);
}

// Weights are unsigned, their zero point still in them, or signed.
template <DType kDType, bool kSigned>
void widen_weights(const std::byte* a, const std::byte* b, WideBlock<kDType>* blocks) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  __m512i raw[16];
  load_turned(a, b, raw);
  if constexpr (kDType == DType::Q8_0) {
    for (int h = 0; h < 2; ++h) {
      if (h == 1) load_turned(a + 512, b + 512, raw);
      for (int c = 0; c < 4; ++c)
        for (int j = 0; j < kTileBlocks; ++j)
          blocks[j].n[4 * h + c] = kSigned ? raw[4 * c + j] : _mm512_xor_si512(raw[4 * c + j], bytes_of(0x80));
    }
    return;
  }
  IntColumns fifth{};        // by c
  IntColumns pairs[2] = {};  // by 2*c + h
  if constexpr (kHasFifthBit<kDType>) {
    const std::byte* bits_a = a + kLayout.high_bits;
    const std::byte* bits_b = b + kLayout.high_bits;
    fifth = columns_of(load_bytes(bits_a), load_bytes(bits_a + 64), load_bytes(bits_b), load_bytes(bits_b + 64));
  } else if constexpr (kIsSix<kDType>) {
    // A row has 8 words; four rows' first and last four make two registers with lanes (row, word).
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    const auto quad = [&](const std::byte* tile, int index, __m512i words) {
      const std::byte* bits = tile + kLayout.high_bits + 128 * index;
      return _mm512_permutex2var_epi32(load_bytes(bits), words, load_bytes(bits + 64));
    };
    pairs[0] = columns_of(quad(a, 0, first), quad(a, 1, first), quad(b, 0, first), quad(b, 1, first));
    pairs[1] = columns_of(quad(a, 0, last), quad(a, 1, last), quad(b, 0, last), quad(b, 1, last));
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
    for (int j = 0; j < kTileBlocks; ++j) {
      __m512i low = _mm512_and_si512(raw[4 * c + j], bytes_of(0x0f));
      __m512i high = _mm512_and_si512(_mm512_srli_epi16(raw[4 * c + j], 4), bytes_of(0x0f));
      if constexpr (kHasFifthBit<kDType>) {
        low = or_masked(low, _mm512_slli_epi32(fifth.column[c], 4 - j), bytes_of(0x10));
        high = or_masked(high, _mm512_srli_epi32(fifth.column[c], j), bytes_of(0x10));
      } else if constexpr (kIsSix<kDType>) {
        const __m512i low_bits = pairs[c / 2].column[c % 2 * 2];
        const __m512i high_bits = pairs[c / 2].column[c % 2 * 2 + 1];
        low = or_masked(low, j < 3 ? _mm512_slli_epi32(low_bits, 4 - 2 * j) : _mm512_srli_epi32(low_bits, 2),
                        bytes_of(0x30));
        high = or_masked(high, j < 3 ? _mm512_slli_epi32(high_bits, 4 - 2 * j) : _mm512_srli_epi32(high_bits, 2),
                         bytes_of(0x30));
      }
      if constexpr (kSigned && kZeroPoint<kDType> != 0) {
        low = _mm512_sub_epi8(low, bytes_of(kZeroPoint<kDType>));
        high = _mm512_sub_epi8(high, bytes_of(kZeroPoint<kDType>));
      }
      blocks[j].n[c] = low;
      blocks[j].n[4 + c] = high;
    }
  }
}

template <DType kDType, bool kSigned>
void widen_tile(const std::byte* a, const std::byte* b, WideBlock<kDType>* blocks) {
  widen_weights<kDType, kSigned>(a, b, blocks);
  const Factors quads[4] = {load_factors<kDType>(a, 0), load_factors<kDType>(a, 1), load_factors<kDType>(b, 0),
                            load_factors<kDType>(b, 1)};
  const auto turned = [&](auto member) {
    return columns_of(member(quads[0]), member(quads[1]), member(quads[2]), member(quads[3]));
  };
  const FloatColumns scale = turned([](const Factors& f) { return f.scale; });
  for (int j = 0; j < kTileBlocks; ++j) blocks[j].scale = scale.column[j];
  if constexpr (kHasMinimum<kDType>) {
    const FloatColumns minimum = turned([](const Factors& f) { return f.minimum; });
    for (int j = 0; j < kTileBlocks; ++j) blocks[j].minimum[0] = minimum.column[j];
  }
  if constexpr (kHasSubScale<kDType>) {
    for (int h = 0; h < (kIsSix<kDType> ? 2 : 1); ++h) {
      const FloatColumns sub = turned([h](const Factors& f) { return f.sub[h]; });
      for (int j = 0; j < kTileBlocks; ++j) blocks[j].sub[h] = sub.column[j];
    }
  }
}

}  // namespace
}  // namespace genai
