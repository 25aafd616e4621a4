#include "engine/decode/decode_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/error.h"

namespace genai {

Generation DecodeLoop::generate(const GenerationRequest& request, const OnToken& on_token,
                                const std::atomic<bool>& interrupted, const OnPrefill& on_prefill) {
  BatchEvents events;
  if (on_token) events.on_token = [&](std::size_t, std::int32_t token) { return on_token(token); };
  if (on_prefill)
    events.on_prefill = [&](std::size_t, std::int32_t done, std::int32_t total) { on_prefill(done, total); };
  return std::move(generate_all({&request, 1}, events, interrupted).front());
}

std::vector<Generation> DecodeLoop::generate_all(std::span<const GenerationRequest> requests, const BatchEvents& events,
                                                 const std::atomic<bool>& interrupted) {
  step_.finish_timing(counters_);  // of a batch that threw: its last step is none of this one's
  counters_ = {};
  const std::uint64_t growth_before = model_.cache().growth_events();
  std::vector<Generation> generations = Batch(model_, step_, counters_, requests, events, interrupted).run();
  step_.finish_timing(counters_);
  counters_.kv_growth_events = model_.cache().growth_events() - growth_before;
  return generations;
}

void DecodeLoop::evaluate(std::span<const std::int32_t> tokens, const OnLogits& on_logits) {
  const PassLimits& limits = model_.transformer().limits();
  const auto vocabulary_size = static_cast<std::size_t>(model_.config().vocabulary_size);
  const auto token_count = static_cast<std::int32_t>(tokens.size());
  if (token_count > model_.options().context)
    throw ContextError(fmt::format("{} tokens > ctx {}", token_count, model_.options().context),
                       "raise the context with -c");
  for (std::int32_t done = 0; done < token_count;) {
    const std::int32_t row_count = std::min(limits.max_rows, token_count - done);
    step_.run_prompt(tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(row_count)), 0, done,
                     {.first = 0, .count = std::min(limits.max_logit_rows, row_count)});
    for (std::int32_t first = 0; first < row_count; first += limits.max_logit_rows) {
      const std::int32_t logit_rows = std::min(limits.max_logit_rows, row_count - first);
      if (first > 0) model_.transformer().run_logits(model_.stream(), first, logit_rows);
      const std::span<const RowResult> results = step_.read_results(logit_rows);
      const std::span<const float> logits = step_.read_logits(0, logit_rows);
      for (std::int32_t row = 0; row < logit_rows; ++row)
        on_logits(done + first + row, logits.subspan(static_cast<std::size_t>(row) * vocabulary_size, vocabulary_size),
                  results[static_cast<std::size_t>(row)].hash);
    }
    done += row_count;
  }
}

}  // namespace genai
