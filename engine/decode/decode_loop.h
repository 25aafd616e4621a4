// decode_loop.h - prompt in, tokens out, for one sequence. The prompt is evaluated in passes of up to max_rows; then
// one token a step. A step is always the same calls, so it is captured once and replayed, or run eagerly: same bits.
//
// Invariants
//   D1 A step reads its token and position from device memory only; the graph is captured once per loop.
//   D2 The cache is backed up to the position of a step before the step is enqueued.
//   D3 No memory call happens inside a step, only between steps when a chunk of 64 positions begins.
//   D4 `on_token` sees every generated token exactly once, in order; a token that ends the text is not among them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/counters.h"
#include "engine/decode/sampler.h"
#include "engine/model/model.h"

namespace genai {

enum class FinishReason { end_of_generation, length, stop, interrupted };
std::string_view finish_reason_name(FinishReason reason);

struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = -1;  // negative: until the context is full
  SamplerSettings sampler;
  std::vector<std::int32_t> end_ids;  // tokens that end the text
};

struct Generation {
  std::vector<std::int32_t> tokens;  // without the one that ended it
  FinishReason finish = FinishReason::length;
  std::optional<std::int32_t> end_token;  // the one that ended it, where one did
  // Over every row whose logits were computed: the last one of the prompt, then one a step.
  std::uint64_t logits_hash = 0;
  std::vector<std::uint64_t> step_hashes;
};

class DecodeLoop {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    bool graph = true;
    bool check = false;  // on non-finite logits, find the layer in which numbers stop being finite
  };

  DecodeLoop(Model& model, const Options& options);

  // Called for each token; false ends the generation with FinishReason::stop.
  using OnToken = std::function<bool(std::int32_t token)>;
  using OnPrefill = std::function<void(std::int32_t done, std::int32_t total)>;

  // Throws ContextError where the prompt has more tokens than the context, UsageError where it has none, Error where
  // logits are not finite. `interrupted` may be set by a signal handler; the loop looks at it between passes.
  Generation generate(const GenerationRequest& request, const OnToken& on_token, const std::atomic<bool>& interrupted,
                      const OnPrefill& on_prefill = {});

  // Feeds `tokens` from position 0 and shows the logits (vocabulary) after each. Same bits as generate.
  // `hash` is that of the row (engine/README.md), as the device computed it beside the logits.
  using OnLogits = std::function<void(std::int32_t position, std::span<const float> logits, std::uint64_t hash)>;
  void evaluate(std::span<const std::int32_t> tokens, const OnLogits& on_logits);

  const DecodeCounters& counters() const { return counters_; }

 private:
  struct StepResult {
    std::int32_t token;
    std::uint64_t hash;
  };

  // One pass over `tokens` at first_position, first_position + 1, ..., with logits of some of them.
  PassTraffic run_rows(std::span<const std::int32_t> tokens, std::int32_t first_position, std::int32_t first_logit_row,
                       std::int32_t logit_row_count);
  StepResult prefill(const GenerationRequest& request, const std::atomic<bool>& interrupted,
                     const OnPrefill& on_prefill);
  PassTraffic enqueue_step();
  void run_step(std::int32_t position);
  // Token, hash and finiteness of the first row of logits; waits for the device.
  StepResult read_step();
  std::span<const float> read_logits(std::int32_t row_count);
  std::int32_t choose(const GenerationRequest& request, Sampler& sampler, const StepResult& step,
                      std::span<const std::int32_t> history);
  [[noreturn]] void report_nonfinite(std::int32_t count);

  Model& model_;
  Options options_;
  DecodeCounters counters_;
  std::unique_ptr<Graph> step_graph_;
  PassTraffic step_traffic_;   // of one launch of the graph
  std::vector<StepRow> rows_;  // of the last pass, as uploaded
  std::vector<float> logits_;
};

}  // namespace genai
