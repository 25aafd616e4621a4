// log_probability.h - probabilities of tokens from a row of logits, in double and fixed to the bit: add, subtract,
// multiply and divide only, sums in one stated order, no C library. Compile with -ffp-contract=off. A logit that is NaN
// or -inf has probability 0. Natural logarithms everywhere.
#pragma once
#include <bit>
#include <cstdint>
#include <span>

namespace genai {

inline constexpr double kLn2High = 0x1.62e42feep-1;  // 33 bits: a product with an exponent is exact
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kExpFloor = -700.0;

// e^x for x <= 0, within 2 ulp. At and below kExpFloor, and for NaN, it is e^kExpFloor, which vanishes beside any sum
// that holds a 1. Branch-free, so that a loop of fixed length becomes vector instructions.
inline double exp_nonpositive(double x) {
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, ties to even
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  x = x > kExpFloor ? x : kExpFloor;
  const double shifted = x * kLog2E + kMagic;
  const double exponent = shifted - kMagic;
  const double r = (x - exponent * kLn2High) - exponent * kLn2Low;
  double p = 1.0 / 6227020800.0;  // the Taylor series to r^13 / 13!; |r| <= ln(2) / 2
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(shifted) - std::bit_cast<std::uint64_t>(kMagic) + 1023u;
  return (p + 1.0) * std::bit_cast<double>(bits << 52);
}

// Each x becomes e^x, exactly 0 at and below kExpFloor and for NaN.
void exp_nonpositive(std::span<double> exponents);

// ln(x) for a positive, finite, normal x, within 2 ulp. x = m * 2^e with m in [sqrt(1/2), sqrt(2)),
// ln(m) = 2 atanh(s), s = (m - 1) / (m + 1).
inline double log_positive(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t from_sqrt_half = bits - 0x3fe6a09e667f3bcdull;
  const std::int64_t exponent = static_cast<std::int64_t>(from_sqrt_half) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(exponent) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double p = 1.0 / 23.0;
  for (double odd = 21.0; odd > 2.0; odd -= 2.0) p = p * s2 + 1.0 / odd;
  const double scale = static_cast<double>(exponent);
  const double tail = 2.0 * s * (s2 * p) + scale * kLn2Low;
  return scale * kLn2High + (tail + 2.0 * s);
}

// Index of the highest logit, the lowest among equals; NaN never wins. Throws Error if no logit is a number above -inf,
// or if one is +inf: such a row is the fault of a weight or of the arithmetic, not a choice.
std::int32_t highest_logit(std::span<const float> logits);

// ln(sum of e^logit): eight partial sums (index i in partial i mod 8) of e^(logit - highest), then left to right.
// REQUIRES: `highest` = the highest logit.
double log_sum_exp(std::span<const float> logits, float highest);

// log p(token). Throws Error as highest_logit does. REQUIRES: token within the row.
double log_probability(std::span<const float> logits, std::int32_t token);

}  // namespace genai
