#include "engine/decode/log_probability.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/decode/random.h"
#include "tests/catch.h"
#include "tests/sampler_reference.h"

using namespace genai;
using genai::test::made_logits;

TEST_CASE("philox gives the words of its published test vectors") {
  REQUIRE(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  REQUIRE(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
          PhiloxWords{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  REQUIRE(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
          PhiloxWords{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("uniform numbers fill [0, 1) evenly and change with each bit of seed, sequence and position") {
  double sum = 0.0;
  std::vector<int> counts(64);
  for (std::uint64_t position = 0; position < 64000; ++position) {
    const double u = uniform_random(0, 0, position);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
    ++counts[static_cast<std::size_t>(u * 64)];
  }
  REQUIRE(sum / 64000 == Approx(0.5).margin(0.006));
  for (const int count : counts) REQUIRE(std::abs(count - 1000) < 200);
  const double base = uniform_random(5, 6, 7);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    REQUIRE(uniform_random(5 ^ flip, 6, 7) != base);
    REQUIRE(uniform_random(5, 6 ^ flip, 7) != base);
    REQUIRE(uniform_random(5, 6, 7 ^ flip) != base);
  }
  REQUIRE(uniform_random(5, 7, 6) != base);
}

TEST_CASE("exponential and logarithm in double are within 2 ulp of the C library") {
  const double epsilon = std::numeric_limits<double>::epsilon();
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const double u = uniform_random(1, 2, i);
    const double x = (i % 2 == 0 ? -1.0 : -690.0) * u;
    REQUIRE(std::abs(exp_nonpositive(x) / std::exp(x) - 1.0) <= 2 * epsilon);
    const double y = i % 3 == 0 ? 0.5 + u : std::ldexp(0.5 + u, static_cast<int>(i % 2000) - 1000);
    const double log_y = std::log(y);
    REQUIRE(std::abs(log_positive(y) - log_y) <= 2 * epsilon * std::abs(log_y));
  }
  REQUIRE(exp_nonpositive(0.0) == 1.0);
  REQUIRE(exp_nonpositive(-0.0) == 1.0);
  REQUIRE(log_positive(1.0) == 0.0);
  REQUIRE(exp_nonpositive(-HUGE_VAL) < 1e-300);
  REQUIRE(exp_nonpositive(std::numeric_limits<double>::quiet_NaN()) < 1e-300);
}

TEST_CASE("the exponential of an array has the bits of the single one at every length") {
  for (std::size_t count = 0; count < 70; ++count) {
    std::vector<double> exponents(count);
    for (std::size_t i = 0; i < count; ++i) exponents[i] = -800.0 * uniform_random(3, count, i);
    std::vector<double> powers = exponents;
    exp_nonpositive(powers);
    for (std::size_t i = 0; i < count; ++i)
      REQUIRE(powers[i] == (exponents[i] > kExpFloor ? exp_nonpositive(exponents[i]) : 0.0));
  }
  std::vector<double> special = {0.0, -HUGE_VAL, std::numeric_limits<double>::quiet_NaN(), kExpFloor};
  exp_nonpositive(special);
  REQUIRE(special == std::vector<double>{1.0, 0.0, 0.0, 0.0});
}

TEST_CASE("log probabilities equal a softmax in double and sum to one") {
  for (const std::size_t count : {1u, 2u, 7u, 8u, 9u, 320u, 511u, 512u, 513u, 5000u}) {
    const std::vector<float> logits = made_logits(count, count, 30.0);
    double highest = *std::max_element(logits.begin(), logits.end());
    double total = 0.0;
    for (const float logit : logits) total += std::exp(logit - highest);
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double log_p = log_probability(logits, static_cast<std::int32_t>(i));
      REQUIRE(log_p == Approx(logits[i] - highest - std::log(total)).margin(1e-12));
      sum += std::exp(log_p);
      if (i > 600) break;
    }
    if (count <= 513) REQUIRE(sum == Approx(1.0).epsilon(1e-12));
  }
  const std::vector<float> masked = {1.0f, -HUGE_VALF, NAN, 1.0f};
  REQUIRE(log_probability(masked, 0) == Approx(std::log(0.5)));
  REQUIRE(log_probability(masked, 1) == -HUGE_VAL);
  REQUIRE(log_probability(masked, 2) == -HUGE_VAL);
}
