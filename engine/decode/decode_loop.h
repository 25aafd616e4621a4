// decode_loop.h - prompts in, tokens out. The prompt is evaluated in passes of up to max_rows; then one token of each
// text a step. Texts by themselves or in a batch, in any order, with or without a captured step: same bits.
//
// What passes and steps promise is in decode_step.h, what a batch promises in batch.h. One thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/batch.h"
#include "engine/decode/counters.h"
#include "engine/decode/decode_step.h"
#include "engine/decode/generation.h"
#include "engine/model/model.h"

namespace genai {

class DecodeLoop {
 public:
  using Options = DecodeStep::Options;

  DecodeLoop(Model& model, const Options& options) : model_(model), step_(model, options) {}

  // Called for each token; false ends the generation with FinishReason::stop.
  using OnToken = std::function<bool(std::int32_t token)>;
  using OnPrefill = std::function<void(std::int32_t done, std::int32_t total)>;

  // Throws ContextError where the prompt has more tokens than the context, UsageError where it has none, Error where
  // logits are not finite. `interrupted` may be set by a signal handler; the loop looks at it between passes.
  Generation generate(const GenerationRequest& request, const OnToken& on_token, const std::atomic<bool>& interrupted,
                      const OnPrefill& on_prefill = {});
  // As many at once as the model has sequences. In the order of the requests.
  std::vector<Generation> generate_all(std::span<const GenerationRequest> requests, const BatchEvents& events,
                                       const std::atomic<bool>& interrupted);

  // Feeds `tokens` from position 0 and shows the logits (vocabulary) after each. Same bits as generate.
  // `hash` is that of the row (engine/README.md), as the device computed it beside the logits.
  using OnLogits = std::function<void(std::int32_t position, std::span<const float> logits, std::uint64_t hash)>;
  void evaluate(std::span<const std::int32_t> tokens, const OnLogits& on_logits);

  // Of the last call of generate or generate_all.
  const DecodeCounters& counters() const { return counters_; }
  std::size_t captured_widths() const { return step_.captured_widths(); }
  std::optional<std::uint64_t> graph_bytes() const { return step_.graph_bytes(); }

 private:
  Model& model_;
  DecodeStep step_;
  DecodeCounters counters_;
};

}  // namespace genai
