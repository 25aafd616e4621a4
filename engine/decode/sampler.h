// sampler.h - chooses the next token from a row of logits, on the host, in one thread per Sampler.
// The choice is a function of (bits of the logits, settings, seed, sequence, position, the tokens of the penalty
// window) and of nothing else: no state is carried from token to token, no C library function is used, every order is
// total.
//
// Settings have the names, the meaning and the order of llama.cpp: penalties, top_k, typical, top_p, min_p,
// temperature. Each filter sees the probabilities of what the one before it left, all at temperature 1; the temperature
// comes last. No filter removes the last token. Equal logits rank by token id, lowest first.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace genai {

// The defaults are llama.cpp's, except that the temperature is 0: greedy.
struct SamplerSettings {
  // 0 takes the highest logit after penalties and draws nothing; the filters then have nothing to do.
  double temperature = 0.0;
  // Keeps the k highest logits; 0 keeps all.
  std::int32_t top_k = 40;
  // Keeps the tokens whose surprise is closest to the entropy until their mass is above p; 1 keeps all.
  double typical_p = 1.0;
  // Keeps the most probable tokens until their mass is at least p; 1 keeps all, 0 keeps one.
  double top_p = 0.95;
  // Keeps the tokens with at least this share of the most probable one's probability; 0 keeps all.
  double min_p = 0.05;
  // For the tokens among the last repeat_last_n of the history (0: none, -1: all of it), each once:
  // a positive logit is divided by repeat_penalty, another multiplied; then presence_penalty is taken off once and
  // frequency_penalty once per occurrence. 1, 0 and 0 change nothing; the last two may be negative.
  double repeat_penalty = 1.0;
  std::int32_t repeat_last_n = 64;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  // All 2^64 values are seeds, 0 too. Choosing one at random is up to the command line.
  std::uint64_t seed = 0;

  // Throws UsageError that names the setting, its value and its range.
  void validate() const;

  bool has_penalties() const;
  // The choice is the highest logit, as the device finds it: no need for the logits on the host.
  bool is_plain_greedy() const { return temperature == 0.0 && !has_penalties(); }
};

struct Choice {
  std::int32_t token;
  // ln p(token) in the model's own distribution: the logits as given, before penalties, filters and temperature.
  double log_probability;
};

struct TokenProbability {
  std::int32_t token;
  double probability;
};

class Sampler {
 public:
  // Throws UsageError where the settings are out of range.
  explicit Sampler(const SamplerSettings& settings);

  const SamplerSettings& settings() const { return settings_; }

  // `logits` has one entry a token of the vocabulary; `history` is the sequence so far, prompt included, oldest first;
  // `position` is that of the token to choose. A NaN logit is never chosen. Throws Error if no logit is a number above
  // -inf or one is +inf. Allocates only when the vocabulary grows.
  Choice sample(std::span<const float> logits, std::span<const std::int32_t> history, std::uint64_t sequence,
                std::uint64_t position);

  // The token of sample() without its log probability, which costs a pass over the vocabulary.
  std::int32_t choose(std::span<const float> logits, std::span<const std::int32_t> history, std::uint64_t sequence,
                      std::uint64_t position);

  // The distribution from which sample() draws: the tokens that may be chosen, ascending. Valid until the next call.
  std::span<const TokenProbability> distribution(std::span<const float> logits, std::span<const std::int32_t> history);

 private:
  struct Candidate {
    double weight;  // e^(logit - highest logit), times a constant that all candidates share
    float logit;
    std::int32_t token;
  };

  bool penalize(std::span<const float> logits, std::span<const std::int32_t> history);
  void collect(std::span<const float> logits, std::span<const std::int32_t> history);
  void collect_all(std::span<const float> logits);
  void collect_top_k(std::span<const float> logits, std::size_t count);
  void compute_weights(float highest, double temperature);
  double total_weight() const;
  void keep_typical();
  void keep_top_p_and_min_p();
  void apply_temperature();
  template <class Before>
  void sort_until_mass(Before before, double mass, bool beyond);

  SamplerSettings settings_;
  std::vector<Candidate> candidates_;
  std::vector<float> penalized_;
  std::vector<std::uint32_t> occurrences_;  // one a token of the vocabulary, all 0 between calls
  std::vector<std::int32_t> window_tokens_;
  std::vector<TokenProbability> distribution_;
};

}  // namespace genai
