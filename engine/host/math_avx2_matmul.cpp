// Products with quantised weights in AVX2. Bytes are multiplied in pairs to 16-bit sums, as many of which are added up
// as cannot overflow. Narrow: lanes are (c, j) of half a row of weights, then (row, j) of two rows. Wide: lanes are the
// 8 rows of one strip, in the order that unpacking pairs of rows leaves behind (kLaneRows).
#if defined(__x86_64__)
#include <cstddef>

#include "engine/host/math_avx2.h"
#include "engine/host/math_quantized.h"

namespace genai {
namespace {

using vector::kHasFifthBit;
using vector::kHasMinimum;
using vector::kHasSubScale;
using vector::kIsSix;
using vector::kPartialTiles;
template <int kRows>
using Activations = vector::ActivationBlocks<kRows>;

constexpr int kLaneRows[kStripRows] = {0, 2, 4, 6, 1, 3, 5, 7};

__m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
__m256i load_bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
__m128i load_16(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
__m128i load_8(const std::byte* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
__m256i or_masked(__m256i a, __m256i b, int mask) { return _mm256_or_si256(a, _mm256_and_si256(b, bytes_of(mask))); }
__m256i widen_pairs(__m256i sums_16) { return _mm256_madd_epi16(sums_16, _mm256_set1_epi16(1)); }

template <DType kDType>
constexpr bool kIsEight = kDType == DType::Q8_0;
// Subtracted after the dot, with the sum of the activations; eight-bit weights keep their sign.
template <DType kDType>
constexpr int kZeroPoint = tile_layout(kDType).zero_point;
// How many products of byte pairs fit a signed 16-bit sum: n * 127 * 2 for n up to 15, 31, 63 and 128.
template <DType kDType>
constexpr int kPairSums = kIsEight<kDType>       ? 1
                          : kIsSix<kDType>       ? 2
                          : kHasFifthBit<kDType> ? 4
                                                 : 8;

// What multiplies and follows the integer dots of rows 2 * pair and 2 * pair + 1 of a tile; lanes are (row, j).
using Factors = vector::BlockFactors<Avx2>;

template <DType kDType>
Factors load_factors(const std::byte* tile, int pair) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  Factors factors{};
  if constexpr (!kHasSubScale<kDType>) {
    factors.scale = _mm256_cvtph_ps(load_16(tile + kLayout.scale + 16 * pair));
    if constexpr (kHasMinimum<kDType>) factors.minimum = _mm256_cvtph_ps(load_16(tile + kLayout.minimum + 16 * pair));
  } else {
    const __m256i row_of_lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(2 * pair));
    const auto row_values = [&](int offset) {
      return _mm256_permutevar8x32_ps(_mm256_cvtph_ps(load_16(tile + offset)), row_of_lane);
    };
    factors.scale = row_values(kLayout.scale);
    if constexpr (kIsSix<kDType>) {
      const __m256i both = _mm256_cvtepi16_epi32(load_16(tile + kLayout.sub_scale + 16 * pair));
      factors.sub[0] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(both, 24), 24));
      factors.sub[1] = _mm256_cvtepi32_ps(_mm256_srai_epi32(both, 8));
    } else {
      factors.sub[0] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(tile + kLayout.sub_scale + 8 * pair)));
      const __m256 sub_min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(tile + kLayout.sub_min + 8 * pair)));
      factors.minimum = _mm256_mul_ps(row_values(kLayout.minimum), sub_min);
    }
  }
  return factors;
}

// Products of 32 weights and activations as 16 sums of pairs.
template <DType kDType>
__m256i pair_products(__m256i n, __m256i q) {
  if constexpr (kIsEight<kDType>)
    return _mm256_maddubs_epi16(_mm256_abs_epi8(n), _mm256_sign_epi8(q, n));
  else
    return _mm256_maddubs_epi16(n, q);
}

// Lanes (row, column) of rows 0 1, 2 3, 4 5 and 6 7 become one register a column, its lanes being rows by kLaneRows.
struct FloatColumns {
  __m256 column[4];
};
FloatColumns columns_of(__m256 r01, __m256 r23, __m256 r45, __m256 r67) {
  const __m256d low_a = _mm256_castps_pd(_mm256_unpacklo_ps(r01, r23));
  const __m256d high_a = _mm256_castps_pd(_mm256_unpackhi_ps(r01, r23));
  const __m256d low_b = _mm256_castps_pd(_mm256_unpacklo_ps(r45, r67));
  const __m256d high_b = _mm256_castps_pd(_mm256_unpackhi_ps(r45, r67));
  return {{_mm256_castpd_ps(_mm256_unpacklo_pd(low_a, low_b)), _mm256_castpd_ps(_mm256_unpackhi_pd(low_a, low_b)),
           _mm256_castpd_ps(_mm256_unpacklo_pd(high_a, high_b)), _mm256_castpd_ps(_mm256_unpackhi_pd(high_a, high_b))}};
}

// ---- straight from the tiles ----

// n of one row of a tile: [half h][c pair], lanes (c, j). The zero point is still in it.
template <DType kDType>
[[gnu::always_inline]] inline void load_row(const std::byte* tile, int g, __m256i (&n)[2][2]) {
  constexpr TileLayout kLayout = tile_layout(kDType);
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    const __m256i raw = load_bytes(tile + 64 * g + 32 * k);
    if constexpr (kIsEight<kDType>) {
      n[0][k] = raw;
      n[1][k] = load_bytes(tile + 512 + 64 * g + 32 * k);
    } else {
      n[0][k] = _mm256_and_si256(raw, bytes_of(0x0f));
      n[1][k] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), bytes_of(0x0f));
    }
  }
  if constexpr (kHasFifthBit<kDType>) {
    const __m256i words = _mm256_castsi128_si256(load_16(tile + kLayout.high_bits + 16 * g));
    const __m256i left = _mm256_setr_epi32(4, 3, 2, 1, 4, 3, 2, 1);
    const __m256i right = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const __m256i word_of_lane =
          _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(2 * k));
      const __m256i bits = _mm256_permutevar8x32_epi32(words, word_of_lane);
      n[0][k] = or_masked(n[0][k], _mm256_sllv_epi32(bits, left), 0x10);
      n[1][k] = or_masked(n[1][k], _mm256_srlv_epi32(bits, right), 0x10);
    }
  } else if constexpr (kIsSix<kDType>) {
    const __m256i words = load_bytes(tile + kLayout.high_bits + 32 * g);  // (c, h)
    const __m256i right = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i word_of_lane =
            _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), _mm256_set1_epi32(4 * k + h));
        const __m256i pairs = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(words, word_of_lane), right);
        n[h][k] = or_masked(n[h][k], _mm256_slli_epi32(pairs, 4), 0x30);
      }
  }
}

// The dots of one row, still apart by c pair: lanes (c mod 2, j).
template <DType kDType>
__m256i row_dot(const __m256i (&n)[2][2], const __m256i (&q)[2][2], int h) {
  const __m256i first = pair_products<kDType>(n[h][0], q[h][0]);
  const __m256i second = pair_products<kDType>(n[h][1], q[h][1]);
  if constexpr (kPairSums<kDType> == 1)
    return _mm256_add_epi32(widen_pairs(first), widen_pairs(second));
  else
    return widen_pairs(_mm256_add_epi16(first, second));
}

// Lanes (c mod 2, j) of two rows, summed over c: lanes (row, j).
__m256i sum_pair(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// The words (h, c) of each block j as lanes (c, j): [half h][c pair].
void turn_activations(const ActivationTile& x, __m256i (&q)[2][2]) {
  const __m256i low_01 = _mm256_unpacklo_epi32(load_bytes(x.q), load_bytes(x.q + 32));
  const __m256i high_01 = _mm256_unpackhi_epi32(load_bytes(x.q), load_bytes(x.q + 32));
  const __m256i low_23 = _mm256_unpacklo_epi32(load_bytes(x.q + 64), load_bytes(x.q + 96));
  const __m256i high_23 = _mm256_unpackhi_epi32(load_bytes(x.q + 64), load_bytes(x.q + 96));
  const __m256i c[4] = {_mm256_unpacklo_epi64(low_01, low_23), _mm256_unpackhi_epi64(low_01, low_23),
                        _mm256_unpacklo_epi64(high_01, high_23), _mm256_unpackhi_epi64(high_01, high_23)};
  for (int k = 0; k < 2; ++k) {
    q[0][k] = _mm256_permute2x128_si256(c[2 * k], c[2 * k + 1], 0x20);
    q[1][k] = _mm256_permute2x128_si256(c[2 * k], c[2 * k + 1], 0x31);
  }
}

template <DType kDType>
__m256 narrow_strip(const std::byte* strip, const ActivationTile* tiles, std::int64_t tile_count) {
  __m256 partials[4][kPartialTiles];
  for (auto& pair : partials)
    for (__m256& p : pair) p = _mm256_setzero_ps();
  for (std::int64_t t = 0; t < tile_count; ++t) {
    const std::byte* tile = strip + t * tile_layout(kDType).tile_bytes;
    vector::prefetch_tile<Avx2, kDType>(tile);
    const ActivationTile& x = tiles[t];
    __m256i q[2][2];
    turn_activations(x, q);
    const __m256 x_scale = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x.scale));
    const __m256 x_sum = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x.sum));
    __m256i zeros[2];
    for (int h = 0; h < 2; ++h)
      zeros[h] =
          _mm256_mullo_epi32(_mm256_broadcastsi128_si256(load_16(reinterpret_cast<const std::byte*>(x.half_sum[h]))),
                             _mm256_set1_epi32(kZeroPoint<kDType>));
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      __m256i sums[2][2];  // [row][half]
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        __m256i n[2][2];
        load_row<kDType>(tile, 2 * pair + r, n);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) sums[r][h] = row_dot<kDType>(n, q, h);
      }
      __m256i low, high = _mm256_setzero_si256();
      if constexpr (kIsSix<kDType>) {
        low = _mm256_sub_epi32(sum_pair(sums[0][0], sums[1][0]), zeros[0]);
        high = _mm256_sub_epi32(sum_pair(sums[0][1], sums[1][1]), zeros[1]);
      } else {
        low = sum_pair(_mm256_add_epi32(sums[0][0], sums[0][1]), _mm256_add_epi32(sums[1][0], sums[1][1]));
        if constexpr (kZeroPoint<kDType> != 0) low = _mm256_sub_epi32(low, _mm256_add_epi32(zeros[0], zeros[1]));
      }
      __m256& p = partials[pair][t % kPartialTiles];
      p = vector::accumulate_block<Avx2, kDType>(p, low, high, load_factors<kDType>(tile, pair), x_scale, x_sum);
    }
  }
  // p0 + p1 + ... + p31, left to right.
  const int used = static_cast<int>(tile_count < kPartialTiles ? tile_count : kPartialTiles);
  __m256 y = _mm256_setzero_ps();
  for (int k = 0; k < used; ++k) {
    const FloatColumns p = columns_of(partials[0][k], partials[1][k], partials[2][k], partials[3][k]);
    y = k == 0 ? p.column[0] : _mm256_add_ps(y, p.column[0]);
    for (int j = 1; j < kTileBlocks; ++j) y = _mm256_add_ps(y, p.column[j]);
  }
  // All that is left are zeros, and adding one of them is as good as adding all.
  return used < kPartialTiles ? _mm256_add_ps(y, _mm256_setzero_ps()) : y;
}

// ---- 8 rows of weights in lanes ----

// One strip, unpacked. Per block of 32: 8 vectors of weights, number 4*h + c with the four weights e in each lane, then
// their factors.
template <DType kDType>
struct WideBlock {
  __m256i n[8];
  __m256 scale;
  __m256 minimum[kHasMinimum<kDType> ? 1 : 0];
  __m256 sub[kIsSix<kDType> ? 2 : kHasSubScale<kDType> ? 1 : 0];
};

// 32 bytes of each row, `row_bytes` apart, turned so that lane i of a row becomes register i; lanes are rows by
// kLaneRows.
void load_turned(const std::byte* rows, int row_bytes, __m256i (&lanes)[8]) {
  __m256 pair[2][4];  // [piece of 16 bytes][rows 2k and 2k + 1]
  for (int k = 0; k < 4; ++k) {
    const __m256i a = load_bytes(rows + 2 * k * row_bytes);
    const __m256i b = load_bytes(rows + (2 * k + 1) * row_bytes);
    pair[0][k] = _mm256_castsi256_ps(_mm256_permute2x128_si256(a, b, 0x20));
    pair[1][k] = _mm256_castsi256_ps(_mm256_permute2x128_si256(a, b, 0x31));
  }
  for (int piece = 0; piece < 2; ++piece) {
    const FloatColumns turned = columns_of(pair[piece][0], pair[piece][1], pair[piece][2], pair[piece][3]);
    for (int i = 0; i < 4; ++i) lanes[4 * piece + i] = _mm256_castps_si256(turned.column[i]);
  }
}

template <DType kDType>
void widen_weights(const std::byte* tile, WideBlock<kDType>* blocks) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  __m256i fifth[4];  // by c
  __m256i pairs[8];  // by 2*c + h
  if constexpr (kHasFifthBit<kDType>) {
    const auto two_rows = [&](int k) { return _mm256_castsi256_ps(load_bytes(tile + kLayout.high_bits + 32 * k)); };
    const FloatColumns words = columns_of(two_rows(0), two_rows(1), two_rows(2), two_rows(3));
    for (int c = 0; c < 4; ++c) fifth[c] = _mm256_castps_si256(words.column[c]);
  } else if constexpr (kIsSix<kDType>) {
    load_turned(tile + kLayout.high_bits, 32, pairs);
  }
  for (int k = 0; k < 2; ++k) {
    __m256i raw[8];   // by 4 * (c mod 2) + j
    __m256i high[8];  // the other half's bytes, where they are a plane of their own
    load_turned(tile + 32 * k, 64, raw);
    if constexpr (kIsEight<kDType>) load_turned(tile + 512 + 32 * k, 64, high);
#pragma GCC unroll 8
    for (int lane = 0; lane < 8; ++lane) {
      const int c = 2 * k + lane / 4;
      const int j = lane % 4;
      __m256i n[2];
      if constexpr (kIsEight<kDType>) {
        n[0] = raw[lane];
        n[1] = high[lane];
      } else {
        n[0] = _mm256_and_si256(raw[lane], bytes_of(0x0f));
        n[1] = _mm256_and_si256(_mm256_srli_epi16(raw[lane], 4), bytes_of(0x0f));
      }
      if constexpr (kHasFifthBit<kDType>) {
        n[0] = or_masked(n[0], _mm256_slli_epi32(fifth[c], 4 - j), 0x10);
        n[1] = or_masked(n[1], _mm256_srli_epi32(fifth[c], j), 0x10);
      } else if constexpr (kIsSix<kDType>) {
        for (int h = 0; h < 2; ++h)
          n[h] = or_masked(n[h], _mm256_slli_epi32(_mm256_srli_epi32(pairs[2 * c + h], 2 * j), 4), 0x30);
      }
      blocks[j].n[c] = n[0];
      blocks[j].n[4 + c] = n[1];
    }
  }
}

template <DType kDType>
void widen_tile_of(const std::byte* tile, WideBlock<kDType>* blocks) {
  widen_weights<kDType>(tile, blocks);
  Factors pairs[4];
  for (int k = 0; k < 4; ++k) pairs[k] = load_factors<kDType>(tile, k);
  const auto turned = [&](auto member) {
    return columns_of(member(pairs[0]), member(pairs[1]), member(pairs[2]), member(pairs[3]));
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

// The dot of vectors first .. first + kCount - 1 of a block with row r of the activations.
template <DType kDType, int kCount, int kRows>
inline __m256i wide_dot(const WideBlock<kDType>& block, const Activations<kRows>& x, int r, int first) {
  constexpr int kTogether = kPairSums<kDType> < kCount ? kPairSums<kDType> : kCount;
  __m256i dot = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int begin = 0; begin < kCount; begin += kTogether) {
    __m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = 0; k < kTogether; ++k) {
      const int vector = first + begin + k;
      const __m256i q = _mm256_set1_epi32(x.four(r, vector));
      const __m256i products = pair_products<kDType>(block.n[vector], q);
      sums = k == 0 ? products : _mm256_add_epi16(sums, products);
    }
    dot = begin == 0 ? widen_pairs(sums) : _mm256_add_epi32(dot, widen_pairs(sums));
  }
  return dot;
}

struct Avx2Path {
  using Lanes = Avx2;
  template <DType kDType>
  using Block = WideBlock<kDType>;
  static constexpr int kStrips = 1;
  static constexpr int kWideRows = 4;
  template <DType kDType>
  static constexpr std::int32_t kNarrowRows = kIsEight<kDType>                    ? 8
                                              : tile_layout(kDType).high_bits < 0 ? 6
                                                                                  : 2;

  template <DType kDType>
  static __m256 narrow(const std::byte* const (&strips)[kStrips], const ActivationTile* tiles,
                       std::int64_t tile_count) {
    return narrow_strip<kDType>(strips[0], tiles, tile_count);
  }
  template <DType kDType>
  static void widen_tile(const std::byte* const (&strips)[kStrips], std::int64_t offset, WideBlock<kDType>* blocks) {
    widen_tile_of<kDType>(strips[0] + offset, blocks);
  }
  template <DType kDType, int kRows>
  static void wide_step(__m256 (&p)[kRows], const WideBlock<kDType>& block, const Activations<kRows>& x) {
    Factors factors{};
    factors.scale = block.scale;
    if constexpr (kHasMinimum<kDType>) factors.minimum = block.minimum[0];
    if constexpr (kHasSubScale<kDType>) factors.sub[0] = block.sub[0];
    if constexpr (kIsSix<kDType>) factors.sub[1] = block.sub[1];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m256i low, high = _mm256_setzero_si256();
      const std::int32_t sums[2] = {x.half_sum(r, 0), x.half_sum(r, 1)};
      if constexpr (kIsSix<kDType>) {
        low = _mm256_sub_epi32(wide_dot<kDType, 4>(block, x, r, 0), _mm256_set1_epi32(kZeroPoint<kDType> * sums[0]));
        high = _mm256_sub_epi32(wide_dot<kDType, 4>(block, x, r, 4), _mm256_set1_epi32(kZeroPoint<kDType> * sums[1]));
      } else {
        low = wide_dot<kDType, 8>(block, x, r, 0);
        if constexpr (kZeroPoint<kDType> != 0)
          low = _mm256_sub_epi32(low, _mm256_set1_epi32(kZeroPoint<kDType> * (sums[0] + sums[1])));
      }
      p[r] = vector::accumulate_block<Avx2, kDType>(p[r], low, high, factors, _mm256_set1_ps(x.scale(r)),
                                                    _mm256_set1_ps(x.sum(r)));
    }
  }
  template <DType kDType>
  void wide(const MatmulJob& job, const vector::WideJob& wide_job, const WideBlock<kDType>* blocks) const {
    vector::broadcast_wide<Avx2Path, kDType>(job, wide_job, blocks);
  }
  [[gnu::noinline]] static void finish(const MatmulJob& job, std::int32_t m, int m_count, std::int64_t first_row,
                                       int count, const __m256* y) {
    static_assert(kLaneRows[1] == 2 && kLaneRows[4] == 1);
    const __m256i by_row = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 in_order[kWideRows];
    for (int r = 0; r < m_count; ++r) in_order[r] = _mm256_permutevar8x32_ps(y[r], by_row);
    vector::finish_rows<Avx2>(job, m, m_count, first_row, count, in_order);
  }
};

}  // namespace

void matmul_quantized_avx2(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                           std::byte* workspace) {
  vector::matmul_quantized(Avx2Path{}, job, first_strip, strip_count, workspace);
}

}  // namespace genai
#endif
