// sampler_reference.h - rows of logits that are the same on every machine, and what the sampler's settings mean when
// they are taken at their word: full sorts, the C library, one filter after the other.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/decode/random.h"
#include "engine/decode/sampler.h"

namespace genai::test {

// Exact on every machine. `step` > 0 rounds to its multiples, which makes many ties.
inline std::vector<float> made_logits(std::size_t count, std::uint64_t seed, double spread, double step = 0.0) {
  std::vector<float> logits(count);
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0.0;
    for (std::uint64_t k = 0; k < 4; ++k) value += spread * (uniform_random(seed, k, i) - 0.5);
    if (step > 0.0) value = std::floor(value / step) * step;
    logits[i] = static_cast<float>(value);
  }
  return logits;
}

struct RankedToken {
  std::int32_t token;
  double logit;
};

inline std::vector<double> softmax(const std::vector<RankedToken>& tokens) {
  double highest = tokens[0].logit;
  for (const RankedToken& each : tokens) highest = std::max(highest, each.logit);
  std::vector<double> probabilities;
  double total = 0.0;
  for (const RankedToken& each : tokens) total += probabilities.emplace_back(std::exp(each.logit - highest));
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

// The distribution that the sampler must draw from, ascending by token.
inline std::vector<TokenProbability> reference_distribution(const std::vector<float>& logits,
                                                            const std::vector<std::int32_t>& history,
                                                            const SamplerSettings& settings) {
  std::vector<RankedToken> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double logit = logits[i];
    const auto token = static_cast<std::int32_t>(i);
    auto begin = history.begin();
    if (settings.repeat_last_n >= 0 && history.size() > static_cast<std::size_t>(settings.repeat_last_n))
      begin = history.end() - settings.repeat_last_n;
    const auto count = std::count(begin, history.end(), token);
    if (count > 0) {
      logit = logit > 0 ? logit / settings.repeat_penalty : logit * settings.repeat_penalty;
      logit -= settings.presence_penalty + static_cast<double>(count) * settings.frequency_penalty;
      logit = static_cast<float>(logit);
    }
    if (logit > -HUGE_VAL) tokens.push_back({token, logit});
  }
  const auto rank = [](const RankedToken& a, const RankedToken& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  std::sort(tokens.begin(), tokens.end(), rank);
  if (settings.top_k > 0 && tokens.size() > static_cast<std::size_t>(settings.top_k))
    tokens.resize(static_cast<std::size_t>(settings.top_k));
  if (settings.typical_p < 1.0) {
    const std::vector<double> p = softmax(tokens);
    double entropy = 0.0;
    for (const double each : p)
      if (each > 0.0) entropy -= each * std::log(each);
    std::vector<std::size_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0u);
    // Rounded, so that equal logits are equally far whatever the last bit of their logarithm.
    const auto distance = [&](std::size_t i) { return std::round(std::abs(-std::log(p[i]) - entropy) * 1e10); };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return distance(a) != distance(b) ? distance(a) < distance(b) : tokens[a].token < tokens[b].token;
    });
    std::vector<RankedToken> kept;
    double mass = 0.0;
    for (const std::size_t i : order) {
      kept.push_back(tokens[i]);
      if ((mass += p[i]) > settings.typical_p) break;
    }
    tokens = kept;
    std::sort(tokens.begin(), tokens.end(), rank);
  }
  if (settings.top_p < 1.0) {
    const std::vector<double> p = softmax(tokens);
    double mass = 0.0;
    std::size_t kept = 0;
    while (kept < tokens.size() && (kept == 0 || mass < settings.top_p)) mass += p[kept++];
    tokens.resize(kept);
  }
  if (settings.min_p > 0.0) {
    const std::vector<double> p = softmax(tokens);
    std::size_t kept = 1;
    while (kept < tokens.size() && p[kept] >= settings.min_p * p[0] * (1 - 1e-12)) ++kept;
    tokens.resize(kept);
  }
  if (settings.temperature == 0.0) tokens.resize(1);
  for (RankedToken& each : tokens) each.logit /= settings.temperature == 0.0 ? 1.0 : settings.temperature;
  const std::vector<double> p = softmax(tokens);
  std::vector<TokenProbability> result;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (p[i] > 1e-300) result.push_back({tokens[i].token, p[i]});
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  return result;
}

}  // namespace genai::test
