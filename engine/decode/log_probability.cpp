#include "engine/decode/log_probability.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "engine/error.h"

namespace genai {
namespace {

// The same source once for each width of vector: without contraction the operations, and so the bits, are the same.
// The loader chooses one before the thread sanitizer is ready, which that does not survive.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define GENAI_EACH_VECTOR_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GENAI_EACH_VECTOR_WIDTH
#endif

constexpr std::size_t kLanes = 8;

float highest_value(std::span<const float> logits) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
  for (; i < logits.size(); ++i) lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  for (const float lane : lanes) lanes[0] = lane > lanes[0] ? lane : lanes[0];
  return lanes[0];
}

}  // namespace

std::int32_t highest_logit(std::span<const float> logits) {
  const char* const hint = "run with --check to find the layer that produced it, or verify the model file";
  GENAI_EXPECT(!logits.empty(), "a row of logits is empty");
  const float highest = highest_value(logits);
  if (highest == -std::numeric_limits<float>::infinity())
    throw Error("no token can be chosen: all logits are NaN or minus infinity", hint);
  std::size_t index = 0;
  while (logits[index] != highest) ++index;
  if (highest == std::numeric_limits<float>::infinity())
    throw Error("no token can be chosen: the logit of token " + std::to_string(index) + " is infinite", hint);
  return static_cast<std::int32_t>(index);
}

GENAI_EACH_VECTOR_WIDTH void exp_nonpositive(std::span<double> exponents) {
  constexpr std::size_t kBlock = 16;  // a fixed length lets the compiler use vectors
  const auto power = [](double x) {
    const double y = exp_nonpositive(x);
    return x > kExpFloor ? y : 0.0;
  };
  std::size_t i = 0;
  for (; i + kBlock <= exponents.size(); i += kBlock)
    for (std::size_t lane = 0; lane < kBlock; ++lane) exponents[i + lane] = power(exponents[i + lane]);
  for (; i < exponents.size(); ++i) exponents[i] = power(exponents[i]);
}

double log_sum_exp(std::span<const float> logits, float highest) {
  constexpr std::size_t kBlock = 512;
  std::array<double, kBlock> terms;
  std::array<double, kLanes> sums{};
  for (std::size_t first = 0; first < logits.size(); first += kBlock) {
    const std::span<const float> block = logits.subspan(first, std::min(kBlock, logits.size() - first));
    for (std::size_t i = 0; i < block.size(); ++i)
      terms[i] = static_cast<double>(block[i]) - static_cast<double>(highest);
    std::fill(terms.begin() + static_cast<std::ptrdiff_t>(block.size()), terms.end(), kExpFloor);
    exp_nonpositive(terms);
    for (std::size_t i = 0; i < kBlock; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += terms[i + lane];
  }
  double sum = 0.0;
  for (const double partial : sums) sum += partial;
  return static_cast<double>(highest) + log_positive(sum);
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  GENAI_EXPECT(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "a token outside the row of logits");
  const float highest = logits[static_cast<std::size_t>(highest_logit(logits))];
  const float logit = logits[static_cast<std::size_t>(token)];
  if (!(logit > -std::numeric_limits<float>::infinity())) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(logit) - log_sum_exp(logits, highest);
}

}  // namespace genai
