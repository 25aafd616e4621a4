// math_avx512.h - 16 lanes of AVX-512 as math_vector.h wants them. Only for the math_avx512*.cpp units, which are
// compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of these intrinsics for uninitialised variables.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "engine/exact_math.h"
#include "engine/host/math.h"

namespace genai {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kValueColumns = 4;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats set(float x) { return _mm512_set1_ps(x); }
  static __mmask16 first_lanes(int count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffffu : (1u << count) - 1u);
  }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static Floats load_part(const float* from, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static void store_part(float* to, Floats x, int count) { _mm512_mask_storeu_ps(to, first_lanes(count), x); }
  static Floats load_halves(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats load_bfloats(const std::uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }

  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
  static Floats from_ints(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats negate(Floats x) { return _mm512_xor_ps(x, set(-0.0f)); }
  static Floats magnitude(Floats x) { return _mm512_andnot_ps(set(-0.0f), x); }
  static Floats or_sign(Floats x, Floats sign) { return _mm512_or_ps(x, _mm512_and_ps(sign, set(-0.0f))); }
  static Floats two(float a, float b) { return _mm512_zextps128_ps512(_mm_setr_ps(a, b, 0.0f, 0.0f)); }
  static float first(Floats x) { return _mm512_cvtss_f32(x); }
  static float second(Floats x) { return _mm_cvtss_f32(_mm_movehdup_ps(_mm512_castps512_ps128(x))); }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  // 2^n where `shifted` is n + kRoundMagic.
  static Floats power_of_two(Floats shifted) {
    const __m512i exponent =
        _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127 - static_cast<int>(kRoundMagicBits)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static Floats exp_ends(Floats x, Floats inside) {
    const __mmask16 high = _mm512_cmp_ps_mask(x, set(kExpHighest), _CMP_GT_OQ);
    const __mmask16 low = _mm512_cmp_ps_mask(x, set(kExpLowest), _CMP_LT_OQ);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    Floats y = _mm512_mask_mov_ps(inside, high, set(__builtin_inff()));
    y = _mm512_mask_mov_ps(y, low, zero());
    return _mm512_mask_mov_ps(y, nan, x);
  }

  // Lane i + lane i + stride, for stride = 8, 4, 2, 1.
  static float tree(Floats x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  // REQUIRES: no NaN.
  static float largest(Floats x) { return _mm512_reduce_max_ps(x); }

  // x in lanes first .. last - 1, `other` elsewhere.
  static Floats keep_range(Floats x, int first, int last, float other) {
    const unsigned below_last = last >= kLanes ? 0xffffu : last <= 0 ? 0u : (1u << last) - 1u;
    const unsigned below_first = first >= kLanes ? 0xffffu : first <= 0 ? 0u : (1u << first) - 1u;
    return _mm512_mask_mov_ps(set(other), static_cast<__mmask16>(below_last & ~below_first), x);
  }

  // Lanes 0 2 4 ... and 1 3 5 ... of `low` and then of `high`.
  static void split_pairs(Floats low, Floats high, Floats& even, Floats& odd) {
    const __m512i indices = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(low, indices, high);
    odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(indices, _mm512_set1_epi32(1)), high);
  }
  static void load_pairs(const float* from, Floats& even, Floats& odd) {
    split_pairs(load(from), load(from + kLanes), even, odd);
  }
  static void store_pairs(float* to, Floats even, Floats odd) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    store(to, _mm512_permutex2var_ps(even, low, odd));
    store(to + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd));
  }
  static Floats high_half(Floats x) { return _mm512_shuffle_f32x4(x, x, 0xee); }

  // Dot products of a query (D) with 16 neighbouring positions of a chunk of keys [D/8][64][8]: tree_8 of partials by
  // element mod 8.
  static Floats dots8(const float* query, const float* keys, std::int32_t head_dim) {
    Floats p[8];  // two positions each: partials 0..7 of one, then of the other
    for (Floats& partial : p) partial = zero();
    for (std::int32_t i = 0; i < head_dim; i += 8) {
      const Floats q = _mm512_broadcast_f32x8(_mm256_loadu_ps(query + i));
      const float* octet = keys + std::int64_t{i} * kChunkPositions;
#pragma GCC unroll 8
      for (int pair = 0; pair < 8; ++pair) p[pair] = fma(q, load(octet + 16 * pair), p[pair]);
    }
    Floats fours[4];  // partials 0..3 of four positions each
    for (int k = 0; k < 4; ++k)
      fours[k] =
          add(_mm512_shuffle_f32x4(p[2 * k], p[2 * k + 1], 0x88), _mm512_shuffle_f32x4(p[2 * k], p[2 * k + 1], 0xdd));
    Floats twos[2];
    for (int k = 0; k < 2; ++k) {
      const __m512d a = _mm512_castps_pd(fours[2 * k]);
      const __m512d b = _mm512_castps_pd(fours[2 * k + 1]);
      twos[k] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const Floats ones = add(_mm512_shuffle_ps(twos[0], twos[1], 0x88), _mm512_shuffle_ps(twos[0], twos[1], 0xdd));
    // Position n stands in element n / 4 of 128-bit lane n % 4.
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), ones);
  }
};

}  // namespace

// The quantised products (math_avx512_matmul.cpp, math_avx512_few.cpp, math_avx512_amx.cpp).
void matmul_quantized_avx512(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                             std::byte* workspace);
// REQUIRES: turned rows, kMostTurnedRows at most.
void matmul_few_avx512(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count);
void matmul_quantized_amx(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                          std::byte* workspace);
void turn_row_avx512(const ActivationTile* tiles, std::int32_t width, TurnedTile* turned, std::int64_t step);

}  // namespace genai
