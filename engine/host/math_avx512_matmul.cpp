// Products of one row or many rows with quantised weights in AVX-512 VNNI. Narrow: lanes are (c, j) of one row of
// weights, then (row, j) of four rows. Wide: lanes are the 16 rows of two strips. What is between is the business of
// math_avx512_few.cpp.
#if defined(__x86_64__)
#include "engine/host/math_avx512_unpack.h"

namespace genai {
namespace {

template <int kRows>
using Activations = vector::ActivationBlocks<kRows>;

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
    // Words (j, h, c) to words (c, j) of either half.
    const __m512i low_words = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i high_words = _mm512_add_epi32(low_words, _mm512_set1_epi32(4));
    const __m512i q01 = _mm512_load_si512(x.q);
    const __m512i q23 = _mm512_load_si512(x.q + 64);
    const __m512i q0 = _mm512_permutex2var_epi32(q01, low_words, q23);
    const __m512i q1 = _mm512_permutex2var_epi32(q01, high_words, q23);
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
      p = vector::accumulate_block<Avx512, kDType>(p, dot[0], dot[1], load_factors<kDType>(tile, quad), x_scale, x_sum);
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

// p[r] after one block of each row. kRows sums wait for nothing but themselves, so rows are the innermost loop.
template <DType kDType, int kRows>
inline void wide_step(__m512 (&p)[kRows], const WideBlock<kDType>& block, const Activations<kRows>& x) {
  __m512i low[kRows];
  __m512i high[kRows];  // Q6_K only
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    low[r] = high[r] = _mm512_setzero_si512();
    if constexpr (kZeroPoint<kDType> != 0) {
      const std::int32_t low_sum = x.half_sum(r, 0);
      const std::int32_t high_sum = x.half_sum(r, 1);
      low[r] = _mm512_set1_epi32(-kZeroPoint<kDType> * (kIsSix<kDType> ? low_sum : low_sum + high_sum));
      if constexpr (kIsSix<kDType>) high[r] = _mm512_set1_epi32(-kZeroPoint<kDType> * high_sum);
    }
  }
#pragma GCC unroll 8
  for (int vector = 0; vector < 8; ++vector) {
    __m512i(&dot)[kRows] = kIsSix<kDType> && vector >= 4 ? high : low;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      dot[r] = _mm512_dpbusd_epi32(dot[r], block.n[vector], _mm512_set1_epi32(x.four(r, vector)));
  }
  Factors factors{};
  factors.scale = block.scale;
  if constexpr (kHasMinimum<kDType>) factors.minimum = block.minimum[0];
  if constexpr (kHasSubScale<kDType>) factors.sub[0] = block.sub[0];
  if constexpr (kIsSix<kDType>) factors.sub[1] = block.sub[1];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    p[r] = vector::accumulate_block<Avx512, kDType>(p[r], low[r], high[r], factors, _mm512_set1_ps(x.scale(r)),
                                                    _mm512_set1_ps(x.sum(r)));
}

struct Avx512Path {
  using Lanes = Avx512;
  template <DType kDType>
  using Block = WideBlock<kDType>;
  static constexpr int kStrips = 2;
  static constexpr int kWideRows = 8;
  template <DType kDType>
  static constexpr std::int32_t kNarrowRows = 1;

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
    genai::widen_tile<kDType, false>(strips[0] + offset, strips[1] + offset, blocks);
  }
  template <DType kDType, int kRows>
  static void wide_step(__m512 (&p)[kRows], const WideBlock<kDType>& block, const Activations<kRows>& x) {
    genai::wide_step<kDType, kRows>(p, block, x);
  }
  template <DType kDType>
  void wide(const MatmulJob& job, const vector::WideJob& wide_job, const WideBlock<kDType>* blocks) const {
    vector::broadcast_wide<Avx512Path, kDType>(job, wide_job, blocks);
  }
  [[gnu::noinline]] static void finish(const MatmulJob& job, std::int32_t m, int m_count, std::int64_t first_row,
                                       int count, const __m512* y) {
    vector::finish_rows<Avx512>(job, m, m_count, first_row, count, y);
  }
};

}  // namespace

void matmul_quantized_avx512(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                             std::byte* workspace) {
  if (is_turned(job.row_count)) {
    MatmulJob turned_job = job;
    if (job.turned == nullptr) {
      auto* turned = reinterpret_cast<TurnedTile*>(workspace);
      for (std::int32_t m = 0; m < job.row_count; ++m)
        turn_row_avx512(reinterpret_cast<const ActivationTile*>(job.input + m * job.input_stride_bytes),
                        job.matrix.cols, turned + m, job.row_count);
      turned_job.turned = turned;
    }
    return matmul_few_avx512(turned_job, first_strip, strip_count);
  }
  vector::matmul_quantized(Avx512Path{}, job, first_strip, strip_count, workspace);
}

}  // namespace genai
#endif
