// exact_math.h - scalar functions whose result is fixed to the bit, for host and device from this one source: IEEE add,
// multiply, divide, square root and fma only, no C library. Compile with -ffp-contract=off (nvcc: -fmad=false).
// The vector paths in engine/host/math_*.cpp repeat the same operations lane by lane.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GENAI_HD __host__ __device__ __forceinline__
#else
#define GENAI_HD inline
#endif

namespace genai {

GENAI_HD std::uint32_t float_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

GENAI_HD float bits_float(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

GENAI_HD float exact_fma(float a, float b, float c) { return fmaf(a, b, c); }

// IEEE half precision to float; every half is a float, so nothing is rounded.
GENAI_HD float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals, exactly.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * bits_float(0x77800000u)));
}

// Float to half, round to nearest even; overflow becomes infinity, NaN stays NaN.
GENAI_HD std::uint16_t float_to_half(float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 aligns the wanted bits at the end of the mantissa
    const float aligned = bits_float(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_bits(aligned) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

GENAI_HD float bfloat_to_float(std::uint16_t x) { return bits_float(static_cast<std::uint32_t>(x) << 16); }

inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
inline constexpr std::uint32_t kRoundMagicBits = 0x4B400000u;

inline constexpr float kExpHighest = 88.376f;
inline constexpr float kExpLowest = -87.3f;

// e^x between kExpLowest and kExpHighest, within 2 ulp; 1 at 0, NaN for NaN.
GENAI_HD float exp_in_range(float x) {
  const float shifted = exact_fma(x, 1.44269504f, kRoundMagic);
  const float n = shifted - kRoundMagic;
  float r = exact_fma(n, -0.693359375f, x);
  r = exact_fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = exact_fma(p, r, 1.3981999507e-3f);
  p = exact_fma(p, r, 8.3334519073e-3f);
  p = exact_fma(p, r, 4.1665795894e-2f);
  p = exact_fma(p, r, 1.6666665459e-1f);
  p = exact_fma(p, r, 5.0000001201e-1f);
  p = exact_fma(p, r * r, r) + 1.0f;
  return p * bits_float((float_bits(shifted) - kRoundMagicBits + 127u) << 23);
}

// e^x. Infinity above kExpHighest, zero below kExpLowest (so exp(-inf) is 0), NaN for NaN.
GENAI_HD float exact_exp(float x) {
  if (!(x <= kExpHighest)) return x != x ? x : bits_float(0x7f800000u);
  if (x < kExpLowest) return 0.0f;
  return exp_in_range(x);
}

GENAI_HD float exact_silu(float x) { return x / (1.0f + exact_exp(-x)); }

// The tanh form of GELU: x/2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) * (x + 0.044715 x^3).
GENAI_HD float exact_gelu(float x) {
  const float inner = exact_fma(0.044715f * (x * x), x, x);
  return x / (1.0f + exact_exp(-1.5957691216f * inner));
}

GENAI_HD float exact_tanh(float x) {
  const float e = exact_exp(-2.0f * bits_float(float_bits(x) & 0x7fffffffu));
  const float t = (1.0f - e) / (1.0f + e);
  return bits_float(float_bits(t) | (float_bits(x) & 0x80000000u));
}

// Term of the logits hash: `bits` of the logit of token `index` at `position`. Terms are added modulo 2^64.
GENAI_HD std::uint64_t logit_hash_term(std::uint32_t position, std::uint32_t index, std::uint32_t bits) {
  std::uint64_t z = (static_cast<std::uint64_t>(index) << 32 | bits) + position * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Scale of a block of 32 activations whose largest magnitude has the bits `amax_bits` (compared as integers, so that a
// NaN is larger than all): NaN if the block is not finite, 0 if it is below 2^-100, else amax / 127.
GENAI_HD float activation_scale(std::uint32_t amax_bits) {
  if (amax_bits >= 0x7f800000u) return bits_float(0x7fc00000u);
  if (amax_bits < 0x0d800000u) return 0.0f;
  return bits_float(amax_bits) / 127.0f;
}

// REQUIRES: `inverse` = 1 / scale, or 0 where the scale is 0 or NaN, and then x is taken as 0.
GENAI_HD std::int8_t quantize_activation(float x, float inverse) {
  if (inverse == 0.0f) return 0;
  return static_cast<std::int8_t>(float_bits(x * inverse + kRoundMagic) - kRoundMagicBits);
}

}  // namespace genai
