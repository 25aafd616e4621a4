#include "engine/decode/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/decode/log_probability.h"
#include "engine/decode/random.h"
#include "engine/error.h"

namespace genai {
namespace {

// Sorting starts with this many candidates and takes eight times as many whenever their mass does not suffice.
constexpr std::size_t kFirstSorted = 512;

void require_setting(bool in_range, const char* name, double value, const char* range) {
  if (!in_range) throw UsageError(fmt::format("{} is {}: it must be {}", name, value, range));
}

bool is_probability(double value) { return value >= 0.0 && value <= 1.0; }  // false for NaN

// Order of rank: the higher logit first, then the lower token.
constexpr auto kHigherLogit = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

constexpr auto kLowerToken = [](const auto& a, const auto& b) { return a.token < b.token; };

}  // namespace

void SamplerSettings::validate() const {
  require_setting(temperature >= 0.0 && std::isfinite(temperature), "temperature", temperature,
                  "0 (greedy) or a positive number");
  require_setting(top_k >= 0, "top_k", top_k, "0 (off) or a number of tokens");
  require_setting(is_probability(typical_p), "typical_p", typical_p, "from 0 to 1 (off)");
  require_setting(is_probability(top_p), "top_p", top_p, "from 0 to 1 (off)");
  require_setting(is_probability(min_p), "min_p", min_p, "from 0 (off) to 1");
  require_setting(repeat_penalty > 0.0 && std::isfinite(repeat_penalty), "repeat_penalty", repeat_penalty,
                  "a positive number; 1 is off");
  require_setting(repeat_last_n >= -1, "repeat_last_n", repeat_last_n,
                  "-1 (the whole context), 0 (off) or a number of tokens");
  require_setting(std::isfinite(presence_penalty), "presence_penalty", presence_penalty, "a finite number; 0 is off");
  require_setting(std::isfinite(frequency_penalty), "frequency_penalty", frequency_penalty,
                  "a finite number; 0 is off");
}

bool SamplerSettings::has_penalties() const {
  return repeat_last_n != 0 && (repeat_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0);
}

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings) { settings_.validate(); }

Choice Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> history, std::uint64_t sequence,
                       std::uint64_t position) {
  const std::int32_t token = choose(logits, history, sequence, position);
  return {token, log_probability(logits, token)};
}

std::int32_t Sampler::choose(std::span<const float> logits, std::span<const std::int32_t> history,
                             std::uint64_t sequence, std::uint64_t position) {
  collect(logits, history);
  if (candidates_.size() == 1) return candidates_[0].token;
  // The draw walks the candidates in the order of their tokens, which no filter and no way of sorting can change.
  const double target = uniform_random(settings_.seed, sequence, position) * total_weight();
  std::int32_t token = 0;
  double mass = 0.0;
  for (const Candidate& candidate : candidates_) {
    if (!(candidate.weight > 0.0)) continue;
    token = candidate.token;
    mass += candidate.weight;
    if (mass > target) break;
  }
  return token;
}

std::span<const TokenProbability> Sampler::distribution(std::span<const float> logits,
                                                        std::span<const std::int32_t> history) {
  collect(logits, history);
  distribution_.clear();
  const double total = total_weight();
  for (const Candidate& candidate : candidates_)
    if (candidate.weight > 0.0) distribution_.push_back({candidate.token, candidate.weight / total});
  return distribution_;
}

// Fills penalized_, or returns false where no penalty applies.
bool Sampler::penalize(std::span<const float> logits, std::span<const std::int32_t> history) {
  if (!settings_.has_penalties() || history.empty()) return false;
  const auto last_n = static_cast<std::size_t>(settings_.repeat_last_n);
  if (settings_.repeat_last_n > 0 && last_n < history.size()) history = history.last(last_n);
  for (const std::int32_t token : history)
    GENAI_EXPECT(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "the history has an unknown token");

  if (occurrences_.size() < logits.size()) occurrences_.resize(logits.size());
  window_tokens_.clear();
  for (const std::int32_t token : history)
    if (occurrences_[static_cast<std::size_t>(token)]++ == 0) window_tokens_.push_back(token);
  penalized_.assign(logits.begin(), logits.end());
  for (const std::int32_t token : window_tokens_) {
    const auto index = static_cast<std::size_t>(token);
    const double count = occurrences_[index];
    occurrences_[index] = 0;
    double logit = logits[index];
    if (!std::isfinite(logit)) continue;
    logit = logit > 0.0 ? logit / settings_.repeat_penalty : logit * settings_.repeat_penalty;
    logit = logit - count * settings_.frequency_penalty - settings_.presence_penalty;
    // Saturates: a penalty makes a token unlikely or likely, but neither impossible nor an error.
    constexpr double kLargest = std::numeric_limits<float>::max();
    penalized_[index] = static_cast<float>(std::clamp(logit, -kLargest, kLargest));
  }
  return true;
}

// Fills candidates_ with the tokens that may be drawn and their final weights, ascending by token.
void Sampler::collect(std::span<const float> logits, std::span<const std::int32_t> history) {
  std::int32_t best = highest_logit(logits);
  if (penalize(logits, history)) {
    logits = penalized_;
    best = highest_logit(logits);
  }
  const float highest = logits[static_cast<std::size_t>(best)];
  candidates_.clear();
  candidates_.reserve(logits.size());
  if (settings_.temperature == 0.0 || settings_.top_k == 1) {
    candidates_.push_back({1.0, highest, best});
    return;
  }
  const auto top_k = static_cast<std::size_t>(settings_.top_k);
  if (top_k > 0 && top_k < logits.size())
    collect_top_k(logits, top_k);
  else
    collect_all(logits);
  const bool filters = settings_.typical_p < 1.0 || settings_.top_p < 1.0 || settings_.min_p > 0.0;
  if (filters) compute_weights(highest, 1.0);
  if (settings_.typical_p < 1.0) keep_typical();
  if (settings_.top_p < 1.0 || settings_.min_p > 0.0) keep_top_p_and_min_p();
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), kLowerToken))
    std::sort(candidates_.begin(), candidates_.end(), kLowerToken);
  if (!filters || settings_.temperature != 1.0) apply_temperature();
}

void Sampler::collect_all(std::span<const float> logits) {
  for (std::size_t token = 0; token < logits.size(); ++token)
    if (logits[token] > -std::numeric_limits<float>::infinity())
      candidates_.push_back({0.0, logits[token], static_cast<std::int32_t>(token)});
}

// Linear in the vocabulary: up to 2k candidates are gathered, then the better half of them is kept and its last member
// becomes the bar for the rest. A later token with the same logit ranks lower, so `>` is the whole order.
void Sampler::collect_top_k(std::span<const float> logits, std::size_t count) {
  float bar = -std::numeric_limits<float>::infinity();
  const auto keep_best = [&] {
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end(), kHigherLogit);
    bar = last->logit;
    candidates_.resize(count);
  };
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (!(logits[token] > bar)) continue;
    candidates_.push_back({0.0, logits[token], static_cast<std::int32_t>(token)});
    if (candidates_.size() >= 2 * count) keep_best();
  }
  if (candidates_.size() > count) keep_best();
  std::sort(candidates_.begin(), candidates_.end(), kLowerToken);
}

void Sampler::compute_weights(float highest, double temperature) {
  constexpr std::size_t kBlock = 512;
  std::array<double, kBlock> weights;
  for (std::size_t first = 0; first < candidates_.size(); first += kBlock) {
    const std::span<Candidate> block =
        std::span(candidates_).subspan(first, std::min(kBlock, candidates_.size() - first));
    for (std::size_t i = 0; i < block.size(); ++i)
      weights[i] = (static_cast<double>(block[i].logit) - static_cast<double>(highest)) / temperature;
    exp_nonpositive(std::span(weights).first(block.size()));
    for (std::size_t i = 0; i < block.size(); ++i) block[i].weight = weights[i];
  }
}

double Sampler::total_weight() const {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  return total;
}

// Sorts by `before`, a total order, and drops what follows the first candidate with which the sum of weights reaches
// `mass` (`beyond`: exceeds it). Only as long a prefix as is needed gets sorted.
template <class Before>
void Sampler::sort_until_mass(Before before, double mass, bool beyond) {
  double sum = 0.0;
  std::size_t sorted = 0;
  for (std::size_t batch = kFirstSorted; sorted < candidates_.size(); batch *= 8) {
    const std::size_t end = std::min(candidates_.size(), sorted + batch);
    const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), before);
    std::sort(first, last, before);
    for (; sorted < end; ++sorted) {
      sum += candidates_[sorted].weight;
      if (beyond ? sum > mass : sum >= mass) {
        candidates_.resize(sorted + 1);
        return;
      }
    }
  }
}

// The surprise of token i is ln(total) - logit_i, the entropy is the mean surprise, ln(total) - (mean logit): what is
// closest to the entropy is closest to the mean logit, and no logarithm is needed.
void Sampler::keep_typical() {
  double total = 0.0;
  double logit_sum = 0.0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
    logit_sum += candidate.weight * static_cast<double>(candidate.logit);
  }
  const double mean = logit_sum / total;
  const auto closer = [mean](const Candidate& a, const Candidate& b) {
    const double distance_a = std::abs(static_cast<double>(a.logit) - mean);
    const double distance_b = std::abs(static_cast<double>(b.logit) - mean);
    return distance_a != distance_b ? distance_a < distance_b : a.token < b.token;
  };
  sort_until_mass(closer, settings_.typical_p * total, true);
  std::sort(candidates_.begin(), candidates_.end(), kLowerToken);
}

// What top_p and min_p keep is the head of the same ranking, so the shorter head is the result of one after the other.
// The tokens that min_p drops are not sorted, but they count in the total of which top_p is a share.
void Sampler::keep_top_p_and_min_p() {
  const double total = total_weight();
  double least = 0.0;
  for (const Candidate& candidate : candidates_) least = std::max(least, candidate.weight);
  least *= settings_.min_p;
  // All tokens below an even share of half of the mass that top_p leaves out are together lighter than that half: they
  // cannot be among the kept. The other half covers rounding, as long as there is something to halve.
  const double left_out = 1.0 - settings_.top_p;
  if (left_out > 1e-6) least = std::max(least, 0.5 * left_out * total / static_cast<double>(candidates_.size()));
  std::erase_if(candidates_, [least](const Candidate& candidate) { return candidate.weight < least; });
  if (settings_.top_p < 1.0) sort_until_mass(kHigherLogit, settings_.top_p * total, false);
}

void Sampler::apply_temperature() {
  float highest = -std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : candidates_) highest = std::max(highest, candidate.logit);
  compute_weights(highest, settings_.temperature);
}

}  // namespace genai
