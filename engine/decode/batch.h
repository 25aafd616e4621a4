// batch.h - several texts at once: their rows share each pass over the weights. A request takes a slot (a sequence of
// the cache) when one is free, its prompt is read between two steps, and its slot goes to the next request when its
// text ends. One text is a batch of one.
//
// Invariants
//   B1 What a request yields is what it yields alone. No operation of a pass mixes rows, a row of the cache is read
//      only at positions that its own request has written, and the sampler is keyed by seed and position, not by slot.
//   B2 The widths of steps are few: 1, 2, 4, 8, 16, and the number of slots where that is less. Rows that a width has
//      to spare stand at position 0 of slots that nobody has.
//   B3 `on_token` sees every generated token of a request exactly once, in order; a token that ends the text is not
//      among them.
// States of a request: waiting -> (its prompt is read, its first token chosen) running -> finished.
//
// One thread.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/decode/decode_step.h"
#include "engine/decode/generation.h"

namespace genai {

// What the caller of a batch is told, and may answer. `request` counts from 0.
struct BatchEvents {
  // False ends the text with FinishReason::stop.
  std::function<bool(std::size_t request, std::int32_t token)> on_token;
  std::function<void(std::size_t request, const Generation& generation)> on_finished;
  std::function<void(std::size_t request, std::int32_t done, std::int32_t total)> on_prefill;
  // False: no waiting request takes a slot any more; they finish with FinishReason::stop and without a token.
  std::function<bool()> may_enter;
};

// The width of a step for `row_count` rows.
std::int32_t step_width(std::int32_t row_count, std::int32_t slot_count);

class Batch {
 public:
  // `interrupted` may be set by a signal handler; it is looked at between passes. Throws ContextError where a prompt
  // has more tokens than the context, UsageError where one has none.
  Batch(Model& model, DecodeStep& step, DecodeCounters& counters, std::span<const GenerationRequest> requests,
        const BatchEvents& events, const std::atomic<bool>& interrupted);

  // In the order of the requests. Throws Error where logits are not finite. Once.
  std::vector<Generation> run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Row {
    std::size_t request = 0;
    std::int32_t slot = 0;
    Sampler sampler;
    std::vector<std::int32_t> history;  // prompt and text
    std::int32_t wanted = 0;            // most tokens of the text
    bool token_is_new = false;          // the last one of the history has not been shown yet
    bool finished = false;
    Clock::time_point token_time;
  };

  bool is_interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  void check_requests() const;
  std::int32_t wanted_tokens(const GenerationRequest& request) const;
  void admit_waiting();
  void start(std::size_t request);
  // False where it was interrupted.
  bool read_prompt(const Row& row);
  // Takes the next token of a row from row `index` of the logits.
  void accept(Row& row, const RowResult& result, std::int32_t index);
  std::int32_t choose(Row& row, const RowResult& result, std::int32_t index);
  bool has_all_tokens(const Row& row) const;
  // Rows that go on stand in front afterwards; returns how many those are.
  std::int32_t launch_step();
  void show_tokens();
  void accept_step(std::int32_t row_count);
  void finish(Row& row, FinishReason reason);
  void drop_finished();
  void finish_all(FinishReason reason);
  void finish_waiting(FinishReason reason);

  Model& model_;
  DecodeStep& step_;
  DecodeCounters& counters_;
  std::span<const GenerationRequest> requests_;
  const BatchEvents& events_;
  const std::atomic<bool>& interrupted_;

  std::vector<Generation> generations_;  // by request
  std::size_t next_request_ = 0;         // the first one that waits
  std::vector<Row> rows_;                // running
  std::vector<std::int32_t> free_slots_;
  std::vector<StepRow> step_rows_;
  Clock::time_point start_time_;
  Clock::time_point step_begin_;
};

}  // namespace genai
