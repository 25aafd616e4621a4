#include "engine/model/rope_table.h"

#include <algorithm>

#include "engine/error.h"

#ifdef __FAST_MATH__
#error "the tables are exact to the bit: compile without -ffast-math"
#endif

namespace genai {
namespace {

constexpr std::int64_t kMaxPosition = std::int64_t{1} << 31;
constexpr double kMaxFrequency = 256.0;  // with kMaxPosition below the 2^40 that exact_sin_cos takes

DoubleDouble widen(double x) { return {x, 0.0}; }

// Between which pairs yarn blends, as numbers of pairs (not whole ones before rounding).
struct YarnRamp {
  double low;
  double width;
};

// The pair that turns `turns` times in the original context, counted from 0; a real number.
double yarn_pair(const RopeSpec& spec, double turns) {
  const DoubleDouble length = widen(spec.original_context_tokens) / (widen(2.0) * kPi * widen(turns));
  return (widen(spec.rotated) * exact_log(length) / (widen(2.0) * exact_log(widen(spec.base)))).high;
}

double floor_of(double x) {
  const auto truncated = static_cast<double>(static_cast<std::int64_t>(x));
  return truncated > x ? truncated - 1.0 : truncated;
}

YarnRamp yarn_ramp(const RopeSpec& spec) {
  const double low = std::max(0.0, floor_of(yarn_pair(spec, spec.beta_fast)));
  const double high = std::min(spec.rotated - 1.0, -floor_of(-yarn_pair(spec, spec.beta_slow)));
  return {low, std::max(0.001, high - low)};
}

}  // namespace

std::vector<DoubleDouble> rope_frequencies(const RopeSpec& spec) {
  const std::int32_t pair_count = spec.rotated / 2;
  GENAI_EXPECT(spec.rotated > 0 && spec.rotated % 2 == 0, "rotated elements come in pairs");
  GENAI_EXPECT(spec.base > 1.0 && spec.base < 1e300 && spec.factor > 0.0, "rope base or factor out of range");
  GENAI_EXPECT(spec.frequency_factors.empty() || spec.frequency_factors.size() == static_cast<std::size_t>(pair_count),
               "one frequency factor a pair");
  GENAI_EXPECT(spec.scaling != RopeScaling::yarn ||
                   (spec.original_context_tokens > 0.0 && spec.beta_fast > 0.0 && spec.beta_slow > 0.0),
               "yarn needs the original context and both betas");

  const DoubleDouble log_base = exact_log(widen(spec.base));
  const DoubleDouble one = widen(1.0);
  const DoubleDouble shrink = one / widen(spec.factor);
  const YarnRamp ramp = spec.scaling == RopeScaling::yarn ? yarn_ramp(spec) : YarnRamp{};

  std::vector<DoubleDouble> frequencies;
  for (std::int32_t pair = 0; pair < pair_count; ++pair) {
    const DoubleDouble exponent = widen(2.0 * pair) / widen(spec.rotated);
    DoubleDouble frequency = exact_exp(-(exponent * log_base));
    if (!spec.frequency_factors.empty())
      frequency = frequency / widen(spec.frequency_factors[static_cast<std::size_t>(pair)]);
    if (spec.scaling == RopeScaling::linear) frequency = frequency * shrink;
    if (spec.scaling == RopeScaling::yarn) {
      // 0: kept as it is; 1: divided by the factor.
      const DoubleDouble divided = pair <= ramp.low                ? widen(0.0)
                                   : pair >= ramp.low + ramp.width ? one
                                                                   : widen(pair - ramp.low) / widen(ramp.width);
      frequency = frequency * (one - divided + divided * shrink);
    }
    GENAI_EXPECT(frequency.high > 0.0 && frequency.high <= kMaxFrequency, "rope frequency out of range");
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double rope_magnitude(const RopeSpec& spec) {
  if (spec.scaling != RopeScaling::yarn) return spec.attention_factor;
  const DoubleDouble stretch = widen(1.0) + exact_log(widen(spec.factor)) / widen(10.0);
  return (widen(spec.attention_factor) * stretch).high;
}

void fill_rope_table(const RopeSpec& spec, std::int64_t first_position, std::int64_t position_count,
                     std::span<float> out) {
  GENAI_EXPECT(first_position >= 0 && position_count >= 0 && position_count <= kMaxPosition &&
                   first_position <= kMaxPosition - position_count,
               "positions out of range");
  GENAI_EXPECT(out.size() == static_cast<std::uint64_t>(position_count) * static_cast<std::uint64_t>(spec.rotated),
               "the table has one float for each rotated element of each position");
  const std::vector<DoubleDouble> frequencies = rope_frequencies(spec);
  const double magnitude = rope_magnitude(spec);

  float* cell = out.data();
  for (std::int64_t index = 0; index < position_count; ++index) {
    const auto position = static_cast<double>(first_position + index);
    for (const DoubleDouble& frequency : frequencies) {
      DoubleDouble angle = exact_product(position, frequency.high);
      angle.low += position * frequency.low;
      const SinCos turned = exact_sin_cos(angle);
      *cell++ = static_cast<float>(magnitude * turned.cosine);
      *cell++ = static_cast<float>(magnitude * turned.sine);
    }
  }
}

}  // namespace genai
