// Products with quantised weights in AVX-512 VNNI. Narrow: lanes are (c, j) of one row of weights, then (row, j) of
// four rows. Wide: lanes are the 16 rows of two strips.
#if defined(__x86_64__)
#include <cstddef>

#include "engine/host/math_avx512.h"
#include "engine/host/math_quantized.h"

namespace genai {
namespace {

using vector::kHasFifthBit;
using vector::kHasMinimum;
using vector::kHasSubScale;
using vector::kIsSix;
using vector::kPartialTiles;
using Activations = vector::ActivationBlocks;

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
IntColumns columns_of(__m512i a0, __m512i a1, __m512i b0, __m512i b1) {
  const FloatColumns c =
      columns_of(_mm512_castsi512_ps(a0), _mm512_castsi512_ps(a1), _mm512_castsi512_ps(b0), _mm512_castsi512_ps(b1));
  return {{_mm512_castps_si512(c.column[0]), _mm512_castps_si512(c.column[1]), _mm512_castps_si512(c.column[2]),
           _mm512_castps_si512(c.column[3])}};
}

// What multiplies and follows the integer dots of rows 4 * quad .. 4 * quad + 3 of a tile; lanes are (row, j).
// For types with sub-minima `minimum` is dmin * t, to be subtracted.
struct Factors {
  __m512 scale;
  __m512 minimum;
  __m512 sub[2];
};

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

// p after one block a lane: its dot (Q6_K: those of its halves), scale and sum of the activations.
template <DType kDType>
inline __m512 accumulate(__m512 p, __m512i dot, __m512i high_dot, const Factors& factors, __m512 x_scale,
                         __m512 x_sum) {
  __m512 value = _mm512_cvtepi32_ps(dot);
  // Integers below 2^24 as floats: these products and sums are exact.
  if constexpr (kHasSubScale<kDType>) value = _mm512_mul_ps(value, factors.sub[0]);
  if constexpr (kIsSix<kDType>) value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high_dot), factors.sub[1], value);
  p = _mm512_fmadd_ps(value, _mm512_mul_ps(factors.scale, x_scale), p);
  if constexpr (kHasMinimum<kDType> && kHasSubScale<kDType>)
    p = _mm512_fnmadd_ps(factors.minimum, x_sum, p);
  else if constexpr (kHasMinimum<kDType>)
    p = _mm512_fmadd_ps(factors.minimum, x_sum, p);
  return p;
}

// ---- straight from the tiles ----

// n (with its zero point still in it) of rows 4 * quad .. + 3 of a tile: lanes are (c, j), one register a row and half.
template <DType kDType>
[[gnu::always_inline]] inline void load_quad(const std::byte* tile, int quad, __m512i (&low)[4], __m512i (&high)[4]) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  const std::byte* plane = tile + 256 * quad;
  if constexpr (kDType == DType::Q8_0) {
    for (int r = 0; r < 4; ++r) {
      low[r] = _mm512_xor_si512(load_bytes(plane + 64 * r), bytes_of(0x80));
      high[r] = _mm512_xor_si512(load_bytes(plane + 512 + 64 * r), bytes_of(0x80));
    }
    return;
  }
  for (int r = 0; r < 4; ++r) {
    const __m512i raw = load_bytes(plane + 64 * r);
    low[r] = _mm512_and_si512(raw, bytes_of(0x0f));
    high[r] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), bytes_of(0x0f));
  }
  if constexpr (kHasFifthBit<kDType>) {
    const __m512i words = load_bytes(tile + kLayout.high_bits + 64 * quad);
    const __m512i left = _mm512_setr_epi32(4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1);
    const __m512i right = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    for (int r = 0; r < 4; ++r) {
      const __m512i word_of_lane =
          _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), _mm512_set1_epi32(4 * r));
      const __m512i bits = _mm512_permutexvar_epi32(word_of_lane, words);
      low[r] = or_masked(low[r], _mm512_sllv_epi32(bits, left), bytes_of(0x10));
      high[r] = or_masked(high[r], _mm512_srlv_epi32(bits, right), bytes_of(0x10));
    }
  }
  if constexpr (kIsSix<kDType>) {
    const __m512i turn = _mm512_setr_epi32(4, 2, 0, 30, 4, 2, 0, 30, 4, 2, 0, 30, 4, 2, 0, 30);
    for (int r = 0; r < 4; ++r) {
      const __m512i words = load_bytes(tile + kLayout.high_bits + 128 * quad + 64 * (r / 2));
      const __m512i word_of_lane = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6),
                                                    _mm512_set1_epi32(8 * (r % 2)));
      const __m512i low_bits = _mm512_permutexvar_epi32(word_of_lane, words);
      const __m512i high_bits = _mm512_permutexvar_epi32(_mm512_add_epi32(word_of_lane, _mm512_set1_epi32(1)), words);
      low[r] = or_masked(low[r], _mm512_rolv_epi32(low_bits, turn), bytes_of(0x30));
      high[r] = or_masked(high[r], _mm512_rolv_epi32(high_bits, turn), bytes_of(0x30));
    }
  }
}

// Lanes (c, j) of four rows, summed over c: lanes (row, j).
__m512i sum_quad(const __m512i (&rows)[4]) {
  const __m512i a =
      _mm512_add_epi32(_mm512_shuffle_i32x4(rows[0], rows[1], 0x44), _mm512_shuffle_i32x4(rows[0], rows[1], 0xee));
  const __m512i b =
      _mm512_add_epi32(_mm512_shuffle_i32x4(rows[2], rows[3], 0x44), _mm512_shuffle_i32x4(rows[2], rows[3], 0xee));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

__m128i zero_points(const std::int32_t* sums, int zero_point) {
  return _mm_mullo_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(sums)), _mm_set1_epi32(zero_point));
}

// One strip against one row of activations: lanes of partials[quad][tile mod 8] are (row, j).
template <DType kDType>
void narrow_strip(const std::byte* strip, const ActivationTile* tiles, std::int64_t tile_count,
                  __m512 (&partials)[2][kPartialTiles]) {
  for (auto& quad : partials)
    for (__m512& p : quad) p = _mm512_setzero_ps();
  for (std::int64_t t = 0; t < tile_count; ++t) {
    const std::byte* tile = strip + t * tile_layout(kDType).tile_bytes;
    vector::prefetch_tile<Avx512, kDType>(tile);
    const ActivationTile& x = tiles[t];
    const __m512i q0 = _mm512_load_si512(x.q);
    const __m512i q1 = _mm512_load_si512(x.q + 64);
    const __m512 x_scale = _mm512_broadcast_f32x4(_mm_load_ps(x.scale));
    const __m512 x_sum = kHasMinimum<kDType> ? _mm512_broadcast_f32x4(_mm_load_ps(x.sum)) : _mm512_setzero_ps();
    __m128i zeros[2] = {zero_points(x.half_sum[0], kZeroPoint<kDType>), zero_points(x.half_sum[1], kZeroPoint<kDType>)};
    if constexpr (!kIsSix<kDType>) zeros[0] = _mm_add_epi32(zeros[0], zeros[1]);
#pragma GCC unroll 2
    for (int quad = 0; quad < 2; ++quad) {
      __m512i low[4], high[4];
      load_quad<kDType>(tile, quad, low, high);
      __m512i dot[2];
      if constexpr (kIsSix<kDType>) {
        for (int r = 0; r < 4; ++r) {
          low[r] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low[r], q0);
          high[r] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), high[r], q1);
        }
        dot[1] = _mm512_sub_epi32(sum_quad(high), _mm512_broadcast_i32x4(zeros[1]));
      } else {
        for (int r = 0; r < 4; ++r)
          low[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), low[r], q0), high[r], q1);
        dot[1] = _mm512_setzero_si512();
      }
      dot[0] = sum_quad(low);
      if constexpr (kZeroPoint<kDType> != 0) dot[0] = _mm512_sub_epi32(dot[0], _mm512_broadcast_i32x4(zeros[0]));
      __m512& p = partials[quad][t % kPartialTiles];
      p = accumulate<kDType>(p, dot[0], dot[1], load_factors<kDType>(tile, quad), x_scale, x_sum);
    }
  }
}

// p0 + p1 + ... + p31, left to right, for the rows of two strips.
__m512 sum_partials(const __m512 (&a)[2][kPartialTiles], const __m512 (&b)[2][kPartialTiles], std::int64_t tile_count) {
  const int used = static_cast<int>(tile_count < kPartialTiles ? tile_count : kPartialTiles);
  __m512 y = _mm512_setzero_ps();
  for (int k = 0; k < used; ++k) {
    const FloatColumns p = columns_of(a[0][k], a[1][k], b[0][k], b[1][k]);
    y = k == 0 ? p.column[0] : _mm512_add_ps(y, p.column[0]);
    for (int j = 1; j < kTileBlocks; ++j) y = _mm512_add_ps(y, p.column[j]);
  }
  // All that is left are zeros, and adding one of them is as good as adding all.
  return used < kPartialTiles ? _mm512_add_ps(y, _mm512_setzero_ps()) : y;
}

// ---- 16 rows of weights in lanes ----

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
void load_turned(const std::byte* a, const std::byte* b, __m512i (&lanes)[16]) {
  for (int g = 0; g < kStripRows; ++g) {
    lanes[g] = load_bytes(a + 64 * g);
    lanes[kStripRows + g] = load_bytes(b + 64 * g);
  }
  transpose(lanes);
}

template <DType kDType>
void widen_weights(const std::byte* a, const std::byte* b, WideBlock<kDType>* blocks) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  __m512i raw[16];
  load_turned(a, b, raw);
  if constexpr (kDType == DType::Q8_0) {
    for (int h = 0; h < 2; ++h) {
      if (h == 1) load_turned(a + 512, b + 512, raw);
      for (int c = 0; c < 4; ++c)
        for (int j = 0; j < kTileBlocks; ++j) blocks[j].n[4 * h + c] = _mm512_xor_si512(raw[4 * c + j], bytes_of(0x80));
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
      blocks[j].n[c] = low;
      blocks[j].n[4 + c] = high;
    }
  }
}

template <DType kDType>
void widen_tile(const std::byte* a, const std::byte* b, WideBlock<kDType>* blocks) {
  widen_weights<kDType>(a, b, blocks);
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

// p[r] after one block of each row. kRows sums wait for nothing but themselves, so rows are the innermost loop.
template <DType kDType, int kRows>
inline void wide_step(__m512 (&p)[kRows], const WideBlock<kDType>& block, const Activations& x) {
  __m512i low[kRows];
  __m512i high[kRows];  // Q6_K only
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    low[r] = high[r] = _mm512_setzero_si512();
    if constexpr (kZeroPoint<kDType> != 0) {
      const std::int32_t low_sum = x.get<std::int32_t>(r, Activations::kHalfSums[0]);
      const std::int32_t high_sum = x.get<std::int32_t>(r, Activations::kHalfSums[1]);
      low[r] = _mm512_set1_epi32(-kZeroPoint<kDType> * (kIsSix<kDType> ? low_sum : low_sum + high_sum));
      if constexpr (kIsSix<kDType>) high[r] = _mm512_set1_epi32(-kZeroPoint<kDType> * high_sum);
    }
  }
#pragma GCC unroll 8
  for (int vector = 0; vector < 8; ++vector) {
    __m512i(&dot)[kRows] = kIsSix<kDType> && vector >= 4 ? high : low;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      dot[r] = _mm512_dpbusd_epi32(dot[r], block.n[vector], _mm512_set1_epi32(x.get<std::int32_t>(r, 16 * vector)));
  }
  Factors factors{};
  factors.scale = block.scale;
  if constexpr (kHasMinimum<kDType>) factors.minimum = block.minimum[0];
  if constexpr (kHasSubScale<kDType>) factors.sub[0] = block.sub[0];
  if constexpr (kIsSix<kDType>) factors.sub[1] = block.sub[1];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    p[r] = accumulate<kDType>(p[r], low[r], high[r], factors, _mm512_set1_ps(x.get<float>(r, Activations::kScale)),
                              _mm512_set1_ps(x.get<float>(r, Activations::kSum)));
}

struct Avx512Path {
  using Lanes = Avx512;
  template <DType kDType>
  using Block = WideBlock<kDType>;
  static constexpr int kStrips = 2;
  static constexpr int kWideRows = 8;
  template <DType kDType>
  static constexpr std::int32_t kNarrowRows = kDType == DType::Q8_0               ? 5
                                              : tile_layout(kDType).high_bits < 0 ? 3
                                                                                  : 2;

  template <DType kDType>
  static __m512 narrow(const std::byte* const (&strips)[kStrips], const ActivationTile* tiles,
                       std::int64_t tile_count) {
    __m512 a[2][kPartialTiles];
    __m512 b[2][kPartialTiles];
    narrow_strip<kDType>(strips[0], tiles, tile_count, a);
    narrow_strip<kDType>(strips[1], tiles, tile_count, b);
    return sum_partials(a, b, tile_count);
  }
  template <DType kDType>
  static void widen_tile(const std::byte* const (&strips)[kStrips], std::int64_t offset, WideBlock<kDType>* blocks) {
    genai::widen_tile<kDType>(strips[0] + offset, strips[1] + offset, blocks);
  }
  template <DType kDType, int kRows>
  static void wide_step(__m512 (&p)[kRows], const WideBlock<kDType>& block, const Activations& x) {
    genai::wide_step<kDType, kRows>(p, block, x);
  }
  [[gnu::noinline]] static void finish(const MatmulJob& job, std::int32_t m, std::int64_t first_row, int count,
                                       __m512 y) {
    vector::finish_rows<Avx512>(job, m, first_row, count, y);
  }
};

}  // namespace

void matmul_quantized_avx512(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                             std::byte* workspace) {
  vector::matmul_quantized<Avx512Path>(job, first_strip, strip_count, workspace);
}

}  // namespace genai
#endif
