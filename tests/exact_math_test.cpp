// The scalar functions of exact_math.h against the C library's in float64, and the conversions against a definition in
// float64, exhaustively where the domain is small.
#include "engine/exact_math.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"

using namespace genai;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The distance of `actual` from the real number `expected`, in ulps of the float nearest to it.
double ulps_off(float actual, double expected) {
  const float nearest = static_cast<float>(expected);
  const double ulp = double{std::nextafter(std::fabs(nearest), kInfinity)} - std::fabs(nearest);
  return std::fabs(actual - expected) / ulp;
}

// Calls check(x) for floats spread evenly over the bit patterns of [low, high], both of one sign.
template <class Check>
void for_floats(float low, float high, std::uint32_t step, const Check& check) {
  const std::uint32_t begin = std::min(float_bits(low), float_bits(high));
  const std::uint32_t end = std::max(float_bits(low), float_bits(high));
  for (std::uint64_t bits = begin; bits <= end; bits += step) check(bits_float(static_cast<std::uint32_t>(bits)));
}

double half_value(int half) {
  const int exponent = half >> 10 & 31;
  const double mantissa = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("exp is within 2 ulp wherever its result is a normal float") {
  double worst = 0.0;
  const auto check = [&](float x) { worst = std::max(worst, ulps_off(exact_exp(x), std::exp(double{x}))); };
  for_floats(1e-30f, kExpHighest, 997, check);
  for_floats(-1e-30f, kExpLowest, 997, check);
  CHECK(worst <= 2.0);
}

TEST_CASE("exp has its exact values at the ends") {
  CHECK(exact_exp(0.0f) == 1.0f);
  CHECK(exact_exp(-0.0f) == 1.0f);
  CHECK(exact_exp(-kInfinity) == 0.0f);
  CHECK(exact_exp(std::nextafter(kExpLowest, -100.0f)) == 0.0f);
  CHECK(exact_exp(kExpLowest) > 0.0f);
  CHECK(std::isfinite(exact_exp(kExpHighest)));
  CHECK(exact_exp(std::nextafter(kExpHighest, 100.0f)) == kInfinity);
  CHECK(exact_exp(kInfinity) == kInfinity);
  CHECK(std::isnan(exact_exp(kNaN)));
}

TEST_CASE("silu, gelu and tanh are within their bounds") {
  double silu = 0.0, gelu = 0.0, tanh = 0.0;
  const auto check = [&](float x) {
    const double wide = x;
    silu = std::max(silu, ulps_off(exact_silu(x), wide / (1.0 + std::exp(-wide))));
    const double u = std::sqrt(2.0 / M_PI) * (wide + 0.044715 * wide * wide * wide);
    // Far to the left the exponent's own rounding dominates: relative error grows with |u|.
    gelu = std::max(gelu, ulps_off(exact_gelu(x), wide / (1.0 + std::exp(-2.0 * u))) / (1.0 + 4.0 * std::fabs(u)));
    // Near 0 the result is a difference from 1: the error is absolute, in ulps of 1.
    tanh = std::max(tanh, std::fabs(exact_tanh(x) - std::tanh(wide)) * (1 << 24));
  };
  for_floats(1e-3f, 80.0f, 1009, check);
  for_floats(-1e-3f, -10.0f, 1009, check);
  CHECK(silu <= 5.0);
  CHECK(gelu <= 3.0);
  CHECK(tanh <= 4.0);
}

TEST_CASE("silu, gelu and tanh end in their limits") {
  CHECK(exact_silu(1000.0f) == 1000.0f);
  CHECK(exact_silu(-1000.0f) == 0.0f);
  CHECK(exact_gelu(1000.0f) == 1000.0f);
  CHECK(exact_gelu(-1000.0f) == 0.0f);
  CHECK(exact_tanh(1000.0f) == 1.0f);
  CHECK(exact_tanh(-1000.0f) == -1.0f);
  CHECK(float_bits(exact_tanh(-0.0f)) == 0x80000000u);
  CHECK(exact_tanh(0.0f) == 0.0f);
  for (const float nan : {exact_silu(kNaN), exact_gelu(kNaN), exact_tanh(kNaN)}) CHECK(std::isnan(nan));
}

TEST_CASE("every half widens to its value and narrows back to itself") {
  std::int64_t wrong = 0;
  for (int half = 0; half < 0x10000; ++half) {
    const std::uint16_t bits = static_cast<std::uint16_t>(half);
    const float wide = half_to_float(bits);
    if ((half & 0x7c00) == 0x7c00) {
      const bool nan = (half & 0x3ff) != 0;
      wrong += nan ? !std::isnan(wide) : wide != ((half & 0x8000) != 0 ? -kInfinity : kInfinity);
      wrong += nan ? (float_to_half(wide) & 0x7fff) <= 0x7c00 : float_to_half(wide) != bits;
    } else {
      wrong += double{wide} != half_value(half) || std::signbit(wide) != ((half & 0x8000) != 0);
      wrong += float_to_half(wide) != bits;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a float narrows to the nearest half, to the even one halfway between two") {
  std::int64_t wrong = 0;
  const auto check = [&](float x, std::uint16_t expected) {
    wrong += float_to_half(x) != expected;
    wrong += float_to_half(-x) != (expected | 0x8000);
  };
  // Between each pair of neighbours: the midpoint, and its neighbours among the floats. 0x7c00 stands for 65536 here.
  for (int half = 0; half < 0x7c00; ++half) {
    const double low = half_value(half);
    const double high = half == 0x7bff ? 65536.0 : half_value(half + 1);
    const float middle = static_cast<float>((low + high) / 2);
    const std::uint16_t below = static_cast<std::uint16_t>(half);
    const std::uint16_t above = static_cast<std::uint16_t>(half + 1);
    check(middle, half % 2 == 0 ? below : above);
    check(std::nextafter(middle, 0.0f), below);
    check(std::nextafter(middle, kInfinity), above);
  }
  check(std::numeric_limits<float>::max(), 0x7c00);
  check(std::numeric_limits<float>::denorm_min(), 0);
  check(0.0f, 0);
  CHECK(wrong == 0);
}

TEST_CASE("the terms of the logits hash differ where position, index or bits differ") {
  const std::uint64_t term = logit_hash_term(5, 7, 0x3f800000u);
  CHECK(term != logit_hash_term(6, 7, 0x3f800000u));
  CHECK(term != logit_hash_term(5, 8, 0x3f800000u));
  CHECK(term != logit_hash_term(5, 7, 0xbf800000u));
  CHECK(logit_hash_term(1, 0, 0) != logit_hash_term(0, 1, 0));
}
