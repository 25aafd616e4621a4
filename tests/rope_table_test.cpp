#include "engine/model/rope_table.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "engine/error.h"
#include "tests/catch.h"

using namespace genai;

namespace {

constexpr std::int64_t kPositions[] = {0,    1,     2,     3,     7,      63,     64,     100,    511,
                                       4095, 10000, 32767, 65536, 131071, 262144, 524287, 999999, 1048576};

long double wide(DoubleDouble x) { return static_cast<long double>(x.high) + static_cast<long double>(x.low); }

double distance(double ours, long double truth) { return static_cast<double>(std::fabs(ours - truth)); }

RopeSpec spec_of(double base, std::int32_t rotated) {
  RopeSpec spec;
  spec.base = base;
  spec.rotated = rotated;
  return spec;
}

std::vector<float> table_of(const RopeSpec& spec, std::int64_t first, std::int64_t count) {
  std::vector<float> table(static_cast<std::size_t>(count * spec.rotated));
  fill_rope_table(spec, first, count, table);
  return table;
}

// FNV-1a of the bits.
std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xff)) * 1099511628211ull;
  }
  return hash;
}

}  // namespace

TEST_CASE("rope logarithm and exponential agree with the C library's long double", "[rope]") {
  for (const double x :
       {1e-8, 0.1, 0.5, 0.70710678, 1.0, 1.0000001, 1.4142136, 1.5, 2.0, 10.0, 1e4, 5e5, 1e6, 1e7, 1e12}) {
    INFO(x);
    CHECK(std::fabs(wide(exact_log({x, 0.0})) - std::log(static_cast<long double>(x))) < 1e-17L);
  }
  for (const double x : {-40.0, -13.815510557964274, -1.0, -0.5, -1e-9, 0.0, 0.3, 1.0, 20.0}) {
    INFO(x);
    const long double truth = std::exp(static_cast<long double>(x));
    CHECK(std::fabs(wide(exact_exp({x, 0.0})) / truth - 1.0L) < 1e-18L * 4);
  }
  // Far beyond long double: the logarithm of an exponential is the number again.
  for (const double x : {0.1, 1.0, 3.0, 17.0, 300.0}) {
    const DoubleDouble back = exact_log(exact_exp({x, 0.0})) - DoubleDouble{x};
    CHECK(std::fabs(back.high) < 1e-29 * x + 1e-30);
  }
}

TEST_CASE("rope sine and cosine are within 1e-12 of the C library's up to position 1048576", "[rope]") {
  double worst = 0.0;
  for (std::int64_t position = 0; position <= 1048576; position += position < 4096 ? 1 : 977) {
    for (const double frequency : {1.0, 0.8659643, 0.1, 3.1622776601683795e-3, 1e-6, 8.0}) {
      const double angle = static_cast<double>(position) * frequency;
      const SinCos ours = exact_sin_cos({angle, 0.0});
      worst = std::max({worst, std::fabs(ours.sine - std::sin(angle)), std::fabs(ours.cosine - std::cos(angle))});
    }
  }
  CHECK(worst < 4e-16);
  for (const double angle : {-1.0, -1e6, 1e9, 1e11, 0x1p39, std::numbers::pi, std::numbers::pi / 2, 1e-300}) {
    INFO(angle);
    const SinCos ours = exact_sin_cos({angle, 0.0});
    CHECK(std::fabs(ours.sine - std::sin(angle)) < 4e-16);
    CHECK(std::fabs(ours.cosine - std::cos(angle)) < 4e-16);
  }
}

TEST_CASE("rope table rotates by position times base to the minus 2 pair / rotated", "[rope]") {
  for (const double base : {10000.0, 100000.0, 500000.0, 1000000.0}) {
    for (const std::int32_t rotated : {2, 64, 80, 128, 256}) {
      const RopeSpec spec = spec_of(base, rotated);
      const std::vector<DoubleDouble> frequencies = rope_frequencies(spec);
      REQUIRE(frequencies.size() == static_cast<std::size_t>(rotated / 2));
      double worst = 0.0;
      double worst_float = 0.0;
      for (const std::int64_t position : kPositions) {
        const std::vector<float> row = table_of(spec, position, 1);
        for (std::int32_t pair = 0; pair < rotated / 2; ++pair) {
          const long double frequency =
              std::pow(static_cast<long double>(base), -2.0L * static_cast<long double>(pair) / rotated);
          const long double angle = static_cast<long double>(position) * frequency;
          const auto index = static_cast<std::size_t>(pair);
          DoubleDouble ours = exact_product(static_cast<double>(position), frequencies[index].high);
          ours.low += static_cast<double>(position) * frequencies[index].low;
          const SinCos turned = exact_sin_cos(ours);
          worst = std::max({worst, distance(turned.cosine, std::cos(angle)), distance(turned.sine, std::sin(angle))});
          worst_float = std::max(
              {worst_float, distance(row[2 * index], std::cos(angle)), distance(row[2 * index + 1], std::sin(angle))});
        }
      }
      INFO(base << " " << rotated);
      CHECK(worst < 1e-12);
      CHECK(worst_float < 0x1p-25 + 1e-12);  // half an ulp below 1
    }
  }
}

TEST_CASE("rope table of a range is the rows of the whole", "[rope]") {
  const RopeSpec spec = spec_of(10000.0, 64);
  const std::vector<float> whole = table_of(spec, 0, 300);
  const std::vector<float> part = table_of(spec, 100, 50);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 100 * 64));
  CHECK(table_of(spec, 7, 0).empty());
  CHECK(whole[0] == 1.0f);
  CHECK(whole[1] == 0.0f);
  std::vector<float> wrong(63);
  CHECK_THROWS_AS(fill_rope_table(spec, 0, 1, wrong), Error);
  CHECK_THROWS_AS(rope_frequencies(spec_of(10000.0, 63)), Error);
  CHECK_THROWS_AS(rope_frequencies(spec_of(1.0, 64)), Error);
}

TEST_CASE("rope linear scaling divides every angle by the factor", "[rope]") {
  RopeSpec spec = spec_of(1000000.0, 64);
  spec.scaling = RopeScaling::linear;
  spec.factor = 8.0;
  const RopeSpec plain = spec_of(1000000.0, 64);
  CHECK(rope_magnitude(spec) == 1.0);
  for (const std::int64_t position : {1, 5, 1000})
    CHECK(table_of(spec, 8 * position, 1) == table_of(plain, position, 1));
}

TEST_CASE("rope frequency factors divide their own pair", "[rope]") {
  RopeSpec spec = spec_of(500000.0, 8);
  spec.frequency_factors = {1.0f, 2.0f, 4.5f, 8.0f};
  const std::vector<DoubleDouble> plain = rope_frequencies(spec_of(500000.0, 8));
  const std::vector<DoubleDouble> divided = rope_frequencies(spec);
  for (std::size_t pair = 0; pair < 4; ++pair)
    CHECK(divided[pair].high ==
          Approx(plain[pair].high / static_cast<double>(spec.frequency_factors[pair])).epsilon(1e-15));
  spec.frequency_factors.pop_back();
  CHECK_THROWS_AS(rope_frequencies(spec), Error);
}

TEST_CASE("rope yarn keeps fast pairs, divides slow ones, blends between and scales up", "[rope]") {
  RopeSpec spec = spec_of(1000000.0, 128);
  spec.scaling = RopeScaling::yarn;
  spec.factor = 4.0;
  spec.original_context_tokens = 32768.0;
  // The same from the published formula, in the C library's long double.
  const auto pair_of = [&](long double turns) {
    return 128.0L * std::log(32768.0L / (turns * 2.0L * std::numbers::pi_v<long double>)) /
           (2.0L * std::log(1000000.0L));
  };
  const long double low = std::floor(pair_of(32.0L));
  const long double high = std::ceil(pair_of(1.0L));
  REQUIRE(low > 10);
  REQUIRE(high < 60);
  const std::vector<DoubleDouble> ours = rope_frequencies(spec);
  const std::vector<DoubleDouble> plain = rope_frequencies(spec_of(1000000.0, 128));
  for (std::size_t pair = 0; pair < 64; ++pair) {
    const long double share = std::clamp((static_cast<long double>(pair) - low) / (high - low), 0.0L, 1.0L);
    const long double truth = wide(plain[pair]) * (1.0L - share + share / 4.0L);
    CHECK(std::fabs(wide(ours[pair]) / truth - 1.0L) < 1e-17L);
  }
  CHECK(ours[5].high == plain[5].high);
  CHECK(ours[63].high == plain[63].high / 4.0);
  CHECK(distance(rope_magnitude(spec), 1.0L + 0.1L * std::log(4.0L)) < 3e-16);
  CHECK(table_of(spec, 0, 1)[0] == static_cast<float>(rope_magnitude(spec)));
  spec.attention_factor = 0.5;
  CHECK(distance(rope_magnitude(spec), 0.5L + 0.05L * std::log(4.0L)) < 3e-16);
  spec.original_context_tokens = 0.0;
  CHECK_THROWS_AS(rope_frequencies(spec), Error);
}

TEST_CASE("rope tables are the same bits with every compiler and machine", "[rope]") {
  CHECK(hash_of(table_of(spec_of(10000.0, 64), 0, 512)) == 0xf5fa6aad4096104cull);
  CHECK(hash_of(table_of(spec_of(1000000.0, 256), 131000, 64)) == 0x1bde29e55a6fadf3ull);
  RopeSpec yarn = spec_of(1000000.0, 128);
  yarn.scaling = RopeScaling::yarn;
  yarn.factor = 4.0;
  yarn.original_context_tokens = 32768.0;
  CHECK(hash_of(table_of(yarn, 32700, 128)) == 0x309e5ff04d256ff7ull);
}
