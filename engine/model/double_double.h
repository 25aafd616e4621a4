// double_double.h - numbers of about 106 bits as unevaluated sums of two doubles, with the few functions that the
// rotary tables need. IEEE add, multiply, divide and fma only, no C library, so every machine gets the same bits.
// Compile with -ffp-contract=off.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace genai {

// REQUIRES: |low| is at most half an ulp of high, as every function here leaves it.
struct DoubleDouble {
  double high = 0.0;
  double low = 0.0;
};

inline constexpr DoubleDouble kPi{0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53};
inline constexpr DoubleDouble kLn2{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

inline DoubleDouble exact_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

inline DoubleDouble exact_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = exact_sum(a.high, b.high);
  const DoubleDouble low = exact_sum(a.low, b.low);
  const DoubleDouble sum = exact_sum(high.high, high.low + low.high);
  return exact_sum(sum.high, sum.low + low.low);
}

inline DoubleDouble operator-(DoubleDouble a) { return {-a.high, -a.low}; }
inline DoubleDouble operator-(DoubleDouble a, DoubleDouble b) { return a + -b; }

inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble product = exact_product(a.high, b.high);
  return exact_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

inline DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double first = a.high / b.high;
  const DoubleDouble rest = a - b * DoubleDouble{first};
  const double second = rest.high / b.high;
  const double third = (rest - b * DoubleDouble{second}).high / b.high;
  return exact_sum(first, second) + DoubleDouble{third};
}

// To the nearest integer, ties to even. REQUIRES: |x| < 2^51.
inline double nearest_integer(double x) {
  constexpr double kMagic = 0x1.8p52;
  return (x + kMagic) - kMagic;
}

// Natural logarithm. REQUIRES: x is positive, finite and normal.
inline DoubleDouble exact_log(DoubleDouble x) {
  // x.high = m * 2^exponent with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
  const auto bits = std::bit_cast<std::uint64_t>(x.high);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    ++exponent;
  }
  const DoubleDouble s = exact_sum(m, -1.0) / exact_sum(m, 1.0);
  const DoubleDouble s2 = s * s;
  DoubleDouble series{};
  for (int odd = 45; odd >= 1; odd -= 2) series = series * s2 + DoubleDouble{1.0} / DoubleDouble{double(odd)};
  const DoubleDouble log_m = DoubleDouble{2.0} * s * series;
  return kLn2 * DoubleDouble{double(exponent)} + log_m + DoubleDouble{x.low / x.high};
}

// e^x. REQUIRES: |x| < 700.
inline DoubleDouble exact_exp(DoubleDouble x) {
  const double k = nearest_integer(x.high / kLn2.high);
  const DoubleDouble r = x - kLn2 * DoubleDouble{k};
  DoubleDouble series{1.0};
  for (int n = 26; n >= 1; --n) series = series * (r / DoubleDouble{double(n)}) + DoubleDouble{1.0};
  const double scale = std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(k) + 1023) << 52);
  return {series.high * scale, series.low * scale};
}

struct SinCos {
  double sine;
  double cosine;
};

// Within 2e-16 of the true values. REQUIRES: |angle| < 2^40.
inline SinCos exact_sin_cos(DoubleDouble angle) {
  constexpr DoubleDouble kHalfPi{kPi.high / 2, kPi.low / 2};
  const double quarter_turns = nearest_integer(angle.high * 0x1.45f306dc9c883p-1);
  // The first difference is exact: both terms are multiples of 2^-52 (or there are no turns) and it is below 1.
  const double near = std::fma(-quarter_turns, kHalfPi.high, angle.high);
  const DoubleDouble rest = exact_sum(near, std::fma(-quarter_turns, kHalfPi.low, angle.low));
  const double r = rest.high;
  const double r2 = r * r;

  // Taylor series; the first term left out is below 2^-58 for |r| <= pi/4.
  double s = 1.0 / 355687428096000.0;
  s = s * r2 - 1.0 / 1307674368000.0;
  s = s * r2 + 1.0 / 6227020800.0;
  s = s * r2 - 1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  double c = -1.0 / 6402373705728000.0;
  c = c * r2 + 1.0 / 20922789888000.0;
  c = c * r2 - 1.0 / 87178291200.0;
  c = c * r2 + 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  const double sine_r = r + r * (r2 * s);
  const double cosine_r = 1.0 - (0.5 * r2 - r2 * (r2 * c));
  const double sine = sine_r + rest.low * cosine_r;
  const double cosine = cosine_r - rest.low * sine_r;

  switch (static_cast<std::int64_t>(quarter_turns) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace genai
