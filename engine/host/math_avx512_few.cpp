// Products of 2 to kMostTurnedRows rows of activations with quantised weights in AVX-512 VNNI: each tile of weights is
// unpacked once and meets all rows while it is in registers. Lanes are (row, j) of four rows of weights; activations
// come turned (TurnedTile), 16 bytes for all lanes at a time. Two strips go by side by side, tile by tile: each tile of
// activations is in the first-level cache for the second of them, and what the processor fetches ahead by itself it
// fetches for each of two streams. Beside a ring that copies, eight rows of 14 cores read 94 to 104 GB/s so, and 83 to
// 93 one strip at a time. The 32 partials of each row wait in the first-level cache.
#if defined(__x86_64__)
#include "engine/host/math_avx512_unpack.h"

namespace genai {
namespace {

constexpr int kQuads = 2;  // of a strip
constexpr int kVectors = 8;

// Where TurnedTile has what a dot starts from: minus the zero point of all its weights.
template <DType kDType>
constexpr int kStart = kZeroPoint<kDType> == 8     ? 0
                       : kZeroPoint<kDType> == 16  ? 1
                       : kZeroPoint<kDType> == 128 ? 2
                                                   : 3;

// Of one row of activations: lanes of [tile mod 8][quad] are (row, j).
using RowPartials = __m512[kQuads];

// Four rows with lanes (c, j) become one register for each c, with lanes (row, j).
[[gnu::always_inline]] inline void turn_quad(__m512i (&rows)[4]) {
  const __m512i low_01 = _mm512_shuffle_i32x4(rows[0], rows[1], 0x44);
  const __m512i high_01 = _mm512_shuffle_i32x4(rows[0], rows[1], 0xee);
  const __m512i low_23 = _mm512_shuffle_i32x4(rows[2], rows[3], 0x44);
  const __m512i high_23 = _mm512_shuffle_i32x4(rows[2], rows[3], 0xee);
  rows[0] = _mm512_shuffle_i32x4(low_01, low_23, 0x88);
  rows[1] = _mm512_shuffle_i32x4(low_01, low_23, 0xdd);
  rows[2] = _mm512_shuffle_i32x4(high_01, high_23, 0x88);
  rows[3] = _mm512_shuffle_i32x4(high_01, high_23, 0xdd);
}

// The weights of rows 4 * quad .. + 3 of a tile, their zero point still in them: n[4 * h + c], lanes (row, j).
template <DType kDType>
[[gnu::always_inline]] inline void load_turned_quad(const std::byte* tile, int quad, __m512i (&n)[kVectors]) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  const std::byte* plane = tile + 256 * quad;
  __m512i raw[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) raw[r] = load_bytes(plane + 64 * r);
  turn_quad(raw);
  if constexpr (kDType == DType::Q8_0) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) n[c] = _mm512_xor_si512(raw[c], bytes_of(0x80));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) raw[r] = load_bytes(plane + 512 + 64 * r);
    turn_quad(raw);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) n[4 + c] = _mm512_xor_si512(raw[c], bytes_of(0x80));
    return;
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    n[c] = _mm512_and_si512(raw[c], bytes_of(0x0f));
    n[4 + c] = _mm512_and_si512(_mm512_srli_epi16(raw[c], 4), bytes_of(0x0f));
  }
  if constexpr (kHasFifthBit<kDType>) {
    const __m512i words = load_bytes(tile + kLayout.high_bits + 64 * quad);
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m512i left = _mm512_setr_epi32(4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1);
    const __m512i right = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i bits = _mm512_permutexvar_epi32(_mm512_add_epi32(row, _mm512_set1_epi32(c)), words);
      n[c] = or_masked(n[c], _mm512_sllv_epi32(bits, left), bytes_of(0x10));
      n[4 + c] = or_masked(n[4 + c], _mm512_srlv_epi32(bits, right), bytes_of(0x10));
    }
  }
  if constexpr (kIsSix<kDType>) {
    const __m512i turn = _mm512_setr_epi32(4, 2, 0, 30, 4, 2, 0, 30, 4, 2, 0, 30, 4, 2, 0, 30);
    const std::byte* bits = tile + kLayout.high_bits + 128 * quad;
    const __m512i first_rows = load_bytes(bits);
    const __m512i last_rows = load_bytes(bits + 64);
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24);
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      const int word = 2 * (vector % 4) + vector / 4;
      const __m512i words =
          _mm512_permutex2var_epi32(first_rows, _mm512_add_epi32(row, _mm512_set1_epi32(word)), last_rows);
      n[vector] = or_masked(n[vector], _mm512_rolv_epi32(words, turn), bytes_of(0x30));
    }
  }
}

[[gnu::always_inline]] inline __m512i broadcast_ints(const void* four) {
  return _mm512_broadcast_i32x4(_mm_load_si128(static_cast<const __m128i*>(four)));
}
[[gnu::always_inline]] inline __m512 broadcast_floats(const float* four) {
  return _mm512_broadcast_f32x4(_mm_load_ps(four));
}

// p[r] after one tile of kRows rows of activations.
template <DType kDType, int kRows>
[[gnu::always_inline]] inline void multiply_tile(const __m512i (&n)[kQuads][kVectors], const Factors (&factors)[kQuads],
                                                 const TurnedTile* x, RowPartials* p) {
  __m512i low[kRows][kQuads];
  __m512i high[kRows][kQuads];  // Q6_K only
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int quad = 0; quad < kQuads; ++quad) {
      low[r][quad] = high[r][quad] = _mm512_setzero_si512();
      if constexpr (kZeroPoint<kDType> != 0) low[r][quad] = broadcast_ints(x[r].start[kStart<kDType>]);
      if constexpr (kIsSix<kDType>) high[r][quad] = broadcast_ints(x[r].start[kStart<kDType> + 1]);
    }
#pragma GCC unroll 8
  for (int vector = 0; vector < kVectors; ++vector) {
    auto& dot = kIsSix<kDType> && vector >= 4 ? high : low;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i q = broadcast_ints(x[r].q + 16 * vector);
#pragma GCC unroll 2
      for (int quad = 0; quad < kQuads; ++quad) dot[r][quad] = _mm512_dpbusd_epi32(dot[r][quad], n[quad][vector], q);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = broadcast_floats(x[r].scale);
    const __m512 sum = kHasMinimum<kDType> ? broadcast_floats(x[r].sum) : _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int quad = 0; quad < kQuads; ++quad)
      p[r][quad] =
          vector::accumulate_block<Avx512, kDType>(p[r][quad], low[r][quad], high[r][quad], factors[quad], scale, sum);
  }
}

// Sums p0 + p1 + ... + p31 of all rows, left to right. Two rows of activations make a register, with the rows of the
// strip for one in lanes and then for the other; rows are the inner loop, for each of their sums waits for itself.
[[gnu::noinline]] void finish(const MatmulJob& job, std::int64_t strip, const RowPartials* partials, int used) {
  __m512 y[kMostTurnedRows];  // by row, in its low half
  for (int k = 0; k < used; ++k, partials += job.row_count)
    for (std::int32_t r = 0; r < job.row_count; r += 2) {
      const RowPartials& a = partials[r];
      const RowPartials& b = partials[r + 1 < job.row_count ? r + 1 : r];
      const FloatColumns p = columns_of(a[0], a[1], b[0], b[1]);
      __m512 sum = k == 0 ? p.column[0] : _mm512_add_ps(y[r], p.column[0]);
      for (int j = 1; j < kTileBlocks; ++j) sum = _mm512_add_ps(sum, p.column[j]);
      y[r] = sum;
    }
  for (std::int32_t r = 0; r < job.row_count; r += 2) {
    // All that is left are zeros, and adding one of them is as good as adding all.
    if (used < kPartialTiles) y[r] = _mm512_add_ps(y[r], _mm512_setzero_ps());
    y[r + 1] = Avx512::high_half(y[r]);
  }
  const std::int64_t first_row = strip * kStripRows;
  const std::int64_t rows_left = job.matrix.rows - first_row;
  vector::finish_rows<Avx512>(job, 0, job.row_count, first_row,
                              static_cast<int>(rows_left < kStripRows ? rows_left : kStripRows), y);
}

// kStrips strips from `strip` on, side by side. Lines ahead are asked for a few at a time: a whole tile of them at once
// fills the places in which loads of activations wait too.
template <DType kDType, int kStrips>
void multiply_side_by_side(const MatmulJob& job, std::int64_t strip) {
  constexpr int kTileBytes = tile_layout(kDType).tile_bytes;
  constexpr int kGroup = kIsSix<kDType> ? 2 : 4;  // rows of which all sums fit into registers beside the weights
  constexpr int kAheadTiles = vector::kAheadBytes / kTileBytes;
  constexpr int kLinesAtOnce = (vector::kTileLines<kDType> * kGroup + 7) / 8;  // all of them beside eight rows
  const std::int64_t tile_count = (job.matrix.cols + kTileWidth - 1) / kTileWidth;
  const std::int64_t bytes_each = tile_count * kTileBytes;
  const std::byte* const first_tile = job.matrix.data + strip * bytes_each;
  const int used = static_cast<int>(tile_count < kPartialTiles ? tile_count : kPartialTiles);
  const std::int32_t row_count = job.row_count;
  RowPartials partials[kStrips][kPartialTiles * kMostTurnedRows];  // [tile mod 8][row]
  for (RowPartials* of_strip : partials)
    for (std::int64_t i = 0; i < used * row_count; ++i)
      for (__m512& p : of_strip[i]) p = _mm512_setzero_ps();
  for (std::int64_t t = 0; t < tile_count; ++t) {
    // What comes behind a strip's end in this place lies behind the strips beside it.
    const std::int64_t ahead =
        kAheadTiles * kTileBytes + (t + kAheadTiles < tile_count ? 0 : (kStrips - 1) * bytes_each);
#pragma GCC unroll 2
    for (int s = 0; s < kStrips; ++s) {
      const std::byte* const tile = first_tile + s * bytes_each + t * kTileBytes;
      const TurnedTile* x = job.turned + t * row_count;
      RowPartials* p = partials[s] + t % kPartialTiles * row_count;
      __m512i n[kQuads][kVectors];
      Factors factors[kQuads];
#pragma GCC unroll 2
      for (int quad = 0; quad < kQuads; ++quad) {
        load_turned_quad<kDType>(tile, quad, n[quad]);
        factors[quad] = load_factors<kDType>(tile, quad);
      }
      const std::byte* lines = tile + ahead;
      const std::byte* const lines_end = lines + kTileBytes;
      const auto fetch_some = [&lines] {
        vector::prefetch_lines<kLinesAtOnce>(lines);
        lines += 64 * kLinesAtOnce;
      };
      std::int32_t left = row_count;
      for (; left >= kGroup; left -= kGroup, x += kGroup, p += kGroup) {
        if (lines < lines_end) fetch_some();
        multiply_tile<kDType, kGroup>(n, factors, x, p);
      }
      while (lines < lines_end) fetch_some();
      if constexpr (kGroup > 2)
        if (left >= 2) {
          multiply_tile<kDType, 2>(n, factors, x, p);
          left -= 2;
          x += 2;
          p += 2;
        }
      if (left >= 1) multiply_tile<kDType, 1>(n, factors, x, p);
    }
  }
  for (int s = 0; s < kStrips; ++s) finish(job, strip + s, partials[s], used);
}

template <DType kDType>
void multiply_strips(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count) {
  const std::int64_t end = first_strip + strip_count;
  std::int64_t strip = first_strip;
  if (job.matrix.cols > kPartialTiles * kTileWidth)  // the streams of shorter strips end before they are worth it
    for (; end - strip >= 2; strip += 2) multiply_side_by_side<kDType, 2>(job, strip);
  for (; strip < end; ++strip) multiply_side_by_side<kDType, 1>(job, strip);
}

}  // namespace

void turn_row_avx512(const ActivationTile* tiles, std::int32_t width, TurnedTile* turned, std::int64_t step) {
  const __m512i low_words = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i high_words = _mm512_add_epi32(low_words, _mm512_set1_epi32(4));
  const std::int64_t tile_count = (width + kTileWidth - 1) / kTileWidth;
  for (std::int64_t t = 0; t < tile_count; ++t, turned += step) {
    const ActivationTile& x = tiles[t];
    const __m512i q01 = _mm512_load_si512(x.q);
    const __m512i q23 = _mm512_load_si512(x.q + 64);
    _mm512_store_si512(turned->q, _mm512_permutex2var_epi32(q01, low_words, q23));
    _mm512_store_si512(turned->q + 64, _mm512_permutex2var_epi32(q01, high_words, q23));
    _mm_store_ps(turned->scale, _mm_load_ps(x.scale));
    _mm_store_ps(turned->sum, _mm_load_ps(x.sum));
    const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i*>(x.half_sum[0]));
    const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i*>(x.half_sum[1]));
    const __m128i starts[5] = {_mm_slli_epi32(_mm_add_epi32(low, high), 3), _mm_slli_epi32(_mm_add_epi32(low, high), 4),
                               _mm_slli_epi32(_mm_add_epi32(low, high), 7), _mm_slli_epi32(low, 5),
                               _mm_slli_epi32(high, 5)};
    for (int i = 0; i < 5; ++i)
      _mm_store_si128(reinterpret_cast<__m128i*>(turned->start[i]), _mm_sub_epi32(_mm_setzero_si128(), starts[i]));
  }
}

void matmul_few_avx512(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count) {
  switch (job.matrix.dtype) {
    case DType::Q4_0:
      return multiply_strips<DType::Q4_0>(job, first_strip, strip_count);
    case DType::Q4_1:
      return multiply_strips<DType::Q4_1>(job, first_strip, strip_count);
    case DType::Q5_0:
      return multiply_strips<DType::Q5_0>(job, first_strip, strip_count);
    case DType::Q5_1:
      return multiply_strips<DType::Q5_1>(job, first_strip, strip_count);
    case DType::Q8_0:
      return multiply_strips<DType::Q8_0>(job, first_strip, strip_count);
    case DType::Q4_K:
      return multiply_strips<DType::Q4_K>(job, first_strip, strip_count);
    case DType::Q5_K:
      return multiply_strips<DType::Q5_K>(job, first_strip, strip_count);
    case DType::Q6_K:
      return multiply_strips<DType::Q6_K>(job, first_strip, strip_count);
    default:
      return;
  }
}

}  // namespace genai
#endif
