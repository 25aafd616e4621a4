// perplexity.h - how well a model predicts a text. The text is cut into windows that do not overlap; every token of a
// window but its first is predicted from those before it in the window. Sums are double, in order, without any C
// library function, so the figures are fixed to the bit and do not depend on how a window is cut into passes.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/decode_loop.h"

namespace genai {

struct PerplexityRequest {
  std::vector<std::int32_t> tokens;
  std::int32_t window = 512;                // tokens, at least 2
  std::optional<std::int32_t> first_token;  // takes the place of each window's first token (BOS); nothing: none does
  std::int32_t max_windows = -1;            // negative: all full windows
};

struct WindowScore {
  std::int32_t predictions = 0;
  double nll_sum = 0.0;  // of -ln p(token), natural
  double nll_square_sum = 0.0;
  double reference_nll_sum = 0.0;  // of the reference model, where there is one
  double kl_sum = 0.0;             // of KL(reference || model)
  double kl_max = 0.0;
  std::int32_t same_best = 0;  // positions where both have the same best token
  std::uint64_t logits_hash = 0;
};

struct PerplexityResult {
  std::vector<WindowScore> windows;
  std::int64_t predictions() const;
  double mean_nll() const;
  double mean_nll_error() const;  // standard error of the mean, predictions taken as independent
  double reference_mean_nll() const;
  double mean_kl() const;
  double max_kl() const;
  double same_best_share() const;
  std::uint64_t logits_hash() const;
};

// How many full windows `token_count` tokens make.
std::int32_t window_count(std::int64_t token_count, std::int32_t window);

// `on_window` is called after each window and may throw to give up. `reference`, where not null, is another model with
// the same vocabulary; it holds one window of its logits in host memory. Throws UsageError for a text shorter than one
// window, ContextError for a window longer than the context.
PerplexityResult measure_perplexity(DecodeLoop& loop, DecodeLoop* reference, const PerplexityRequest& request,
                                    const std::function<void(const PerplexityResult&)>& on_window);

// KL(p || q) of two rows of logits, natural. Terms with p = 0 are 0.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

// e^x for x >= 0 as 1 / e^-x; infinite past the range of a double.
double exact_double_exp(double x);

}  // namespace genai
