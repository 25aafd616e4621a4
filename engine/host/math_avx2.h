// math_avx2.h - 8 lanes of AVX2 with FMA and F16C as math_vector.h wants them. Only for the math_avx2*.cpp units, which
// are compiled with -mavx2 -mfma -mf16c.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "engine/exact_math.h"
#include "engine/host/math.h"

namespace genai {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Ints = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kValueColumns = 2;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats set(float x) { return _mm256_set1_ps(x); }
  static __m256i first_lanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static Floats load_part(const float* from, int count) { return _mm256_maskload_ps(from, first_lanes(count)); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static void store_part(float* to, Floats x, int count) { _mm256_maskstore_ps(to, first_lanes(count), x); }
  static Floats load_halves(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats load_bfloats(const std::uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }

  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
  static Floats from_ints(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats negate(Floats x) { return _mm256_xor_ps(x, set(-0.0f)); }
  static Floats magnitude(Floats x) { return _mm256_andnot_ps(set(-0.0f), x); }
  static Floats or_sign(Floats x, Floats sign) { return _mm256_or_ps(x, _mm256_and_ps(sign, set(-0.0f))); }
  static Floats two(float a, float b) { return _mm256_setr_ps(a, b, 0, 0, 0, 0, 0, 0); }
  static float first(Floats x) { return _mm256_cvtss_f32(x); }
  static float second(Floats x) { return _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(x))); }
  static float sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

  // 2^n where `shifted` is n + kRoundMagic.
  static Floats power_of_two(Floats shifted) {
    const __m256i exponent =
        _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127 - static_cast<int>(kRoundMagicBits)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static Floats exp_ends(Floats x, Floats inside) {
    const Floats high = _mm256_cmp_ps(x, set(kExpHighest), _CMP_GT_OQ);
    const Floats low = _mm256_cmp_ps(x, set(kExpLowest), _CMP_LT_OQ);
    const Floats nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    Floats y = _mm256_blendv_ps(inside, set(__builtin_inff()), high);
    y = _mm256_blendv_ps(y, zero(), low);
    return _mm256_blendv_ps(y, x, nan);
  }

  // Lane i + lane i + stride, for stride = 4, 2, 1.
  static float tree(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  // REQUIRES: no NaN.
  static float largest(Floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  // x in lanes first .. last - 1, `other` elsewhere.
  static Floats keep_range(Floats x, int first, int last, float other) {
    const __m256i inside = _mm256_andnot_si256(first_lanes(first), first_lanes(last));
    return _mm256_blendv_ps(set(other), x, _mm256_castsi256_ps(inside));
  }

  // Lanes 0 2 4 6 and 1 3 5 7 of `low` and then of `high`.
  static void split_pairs(Floats low, Floats high, Floats& even, Floats& odd) {
    even = in_order(_mm256_shuffle_ps(low, high, 0x88));
    odd = in_order(_mm256_shuffle_ps(low, high, 0xdd));
  }
  static void load_pairs(const float* from, Floats& even, Floats& odd) {
    split_pairs(load(from), load(from + kLanes), even, odd);
  }
  static void store_pairs(float* to, Floats even, Floats odd) {
    const Floats low = _mm256_unpacklo_ps(even, odd);
    const Floats high = _mm256_unpackhi_ps(even, odd);
    store(to, _mm256_permute2f128_ps(low, high, 0x20));
    store(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
  static Floats high_half(Floats x) { return _mm256_permute2f128_ps(x, x, 0x11); }

  // Dot products of a query (D) with 8 neighbouring positions of a chunk of keys [D/8][64][8]: tree_8 of partials by
  // element mod 8.
  static Floats dots8(const float* query, const float* keys, std::int32_t head_dim) {
    Floats p[8];  // partials 0..7 of one position each
    for (Floats& partial : p) partial = zero();
    for (std::int32_t i = 0; i < head_dim; i += 8) {
      const Floats q = load(query + i);
      const float* octet = keys + std::int64_t{i} * kChunkPositions;
#pragma GCC unroll 8
      for (int position = 0; position < 8; ++position) p[position] = fma(q, load(octet + 8 * position), p[position]);
    }
    Floats fours[4];  // partials 0..3 of positions 2k and 2k + 1
    for (int k = 0; k < 4; ++k)
      fours[k] = add(_mm256_permute2f128_ps(p[2 * k], p[2 * k + 1], 0x20),
                     _mm256_permute2f128_ps(p[2 * k], p[2 * k + 1], 0x31));
    Floats twos[2];
    for (int k = 0; k < 2; ++k) {
      const __m256d a = _mm256_castps_pd(fours[2 * k]);
      const __m256d b = _mm256_castps_pd(fours[2 * k + 1]);
      twos[k] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    const Floats ones = add(_mm256_shuffle_ps(twos[0], twos[1], 0x88), _mm256_shuffle_ps(twos[0], twos[1], 0xdd));
    // Position n stands in element n / 2 of 128-bit lane n % 2.
    return _mm256_permutevar8x32_ps(ones, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

 private:
  // Pairs of lanes 0 1 | 4 5 | 2 3 | 6 7 to 0 1 2 3 4 5 6 7.
  static Floats in_order(Floats x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
};

}  // namespace

// The quantised products (math_avx2_matmul.cpp).
void matmul_quantized_avx2(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                           std::byte* workspace);

}  // namespace genai
