#include "engine/decode/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/decode/log_probability.h"
#include "engine/error.h"

namespace genai {
namespace {

template <class Value, class Field>
Value total(const std::vector<WindowScore>& windows, Field field) {
  Value sum{};
  for (const WindowScore& window : windows) sum += static_cast<Value>(window.*field);
  return sum;
}

}  // namespace

std::int64_t PerplexityResult::predictions() const { return total<std::int64_t>(windows, &WindowScore::predictions); }

double PerplexityResult::mean_nll() const {
  return total<double>(windows, &WindowScore::nll_sum) / static_cast<double>(predictions());
}

double PerplexityResult::mean_nll_error() const {
  const auto count = static_cast<double>(predictions());
  if (count < 2) return 0.0;
  const double mean = mean_nll();
  const double variance = total<double>(windows, &WindowScore::nll_square_sum) / count - mean * mean;
  return std::sqrt(std::max(variance, 0.0) / (count - 1.0));
}

double PerplexityResult::reference_mean_nll() const {
  return total<double>(windows, &WindowScore::reference_nll_sum) / static_cast<double>(predictions());
}

double PerplexityResult::mean_kl() const {
  return total<double>(windows, &WindowScore::kl_sum) / static_cast<double>(predictions());
}

double PerplexityResult::max_kl() const {
  double largest = 0.0;
  for (const WindowScore& window : windows) largest = std::max(largest, window.kl_max);
  return largest;
}

double PerplexityResult::same_best_share() const {
  return total<double>(windows, &WindowScore::same_best) / static_cast<double>(predictions());
}

std::uint64_t PerplexityResult::logits_hash() const { return total<std::uint64_t>(windows, &WindowScore::logits_hash); }

std::int32_t window_count(std::int64_t token_count, std::int32_t window) {
  return static_cast<std::int32_t>(token_count / window);
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  GENAI_EXPECT(p_logits.size() == q_logits.size(), "two rows of one vocabulary");
  const double p_norm = log_sum_exp(p_logits, p_logits[static_cast<std::size_t>(highest_logit(p_logits))]);
  const double q_norm = log_sum_exp(q_logits, q_logits[static_cast<std::size_t>(highest_logit(q_logits))]);
  double sum = 0.0;
  for (std::size_t index = 0; index < p_logits.size(); ++index) {
    const double p_log = p_logits[index] - p_norm;
    if (!(p_log > kExpFloor)) continue;
    sum += exp_nonpositive(std::min(p_log, 0.0)) * (p_log - (q_logits[index] - q_norm));
  }
  return sum;
}

double exact_double_exp(double x) {
  return x >= -kExpFloor ? std::numeric_limits<double>::infinity() : 1.0 / exp_nonpositive(-x);
}

PerplexityResult measure_perplexity(DecodeLoop& loop, DecodeLoop* reference, const PerplexityRequest& request,
                                    const std::function<void(const PerplexityResult&)>& on_window) {
  if (request.window < 2) throw UsageError("a window of fewer than 2 tokens predicts nothing", "give -c 2 or more");
  const auto token_count = static_cast<std::int64_t>(request.tokens.size());
  std::int32_t windows = window_count(token_count, request.window);
  if (windows == 0)
    throw UsageError(fmt::format("the text has {} tokens, less than one window of {}", token_count, request.window),
                     "give a longer text, or a shorter window with -c");
  if (request.max_windows >= 0) windows = std::min(windows, request.max_windows);

  PerplexityResult result;
  std::vector<float> reference_logits;
  for (std::int32_t index = 0; index < windows; ++index) {
    const auto begin = request.tokens.begin() + std::int64_t{index} * request.window;
    std::vector<std::int32_t> tokens(begin, begin + request.window);
    if (request.first_token) tokens.front() = *request.first_token;
    // The logits after the last token predict nothing that is known.
    const std::span<const std::int32_t> inputs(tokens.data(), tokens.size() - 1);
    if (reference != nullptr) {
      reference_logits.clear();
      reference->evaluate(inputs, [&](std::int32_t, std::span<const float> logits, std::uint64_t) {
        reference_logits.insert(reference_logits.end(), logits.begin(), logits.end());
      });
    }
    WindowScore score;
    loop.evaluate(inputs, [&](std::int32_t position, std::span<const float> logits, std::uint64_t hash) {
      const std::int32_t next = tokens[static_cast<std::size_t>(position) + 1];
      const double nll = -log_probability(logits, next);
      ++score.predictions;
      score.nll_sum += nll;
      score.nll_square_sum += nll * nll;
      score.logits_hash += hash;
      if (reference == nullptr) return;
      const std::size_t row_begin = static_cast<std::size_t>(position) * logits.size();
      if (row_begin + logits.size() > reference_logits.size())
        throw UsageError("the reference model has another vocabulary", "compare models of one family");
      const std::span<const float> expected(reference_logits.data() + row_begin, logits.size());
      const double kl = kl_divergence(expected, logits);
      score.reference_nll_sum -= log_probability(expected, next);
      score.kl_sum += kl;
      score.kl_max = std::max(score.kl_max, kl);
      score.same_best += highest_logit(expected) == highest_logit(logits) ? 1 : 0;
    });
    result.windows.push_back(score);
    if (on_window) on_window(result);
  }
  return result;
}

}  // namespace genai
