// decode_step.h - passes over the weights and what they leave behind: a pass over tokens of a prompt, and the step,
// which takes one token of each of several sequences on by one position. A step of one width is always the same calls,
// so it is captured once a width and replayed, or run eagerly: same bits.
//
// Invariants
//   D1 A step reads tokens, positions and sequences from device memory only. Rows may change from step to step; a width
//      is captured once.
//   D2 The cache is backed up to every position of a pass before the pass is enqueued.
//   D3 No memory call happens inside a pass, only between passes when a chunk of 64 positions begins.
//
// One thread. A pass is enqueued; read_* wait for it. REQUIRES: what a step left is read, or given up by a pass over a
// prompt, before the next step.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/counters.h"
#include "engine/decode/step_clock.h"
#include "engine/model/model.h"

namespace genai {

// Of one row of logits.
struct RowResult {
  std::int32_t token = 0;  // the greedy choice
  std::uint64_t hash = 0;
  std::int32_t nonfinite = 0;  // logits that are no finite numbers
};

class DecodeStep {
 public:
  struct Options {
    bool graph = true;
    bool check = false;  // on non-finite logits, find the layer in which numbers stop being finite
  };

  DecodeStep(Model& model, const Options& options);

  // Rows of one pass that get logits: [first, first + count).
  struct LogitRows {
    std::int32_t first = 0;
    std::int32_t count = 0;
  };
  // `tokens` stand at first_position, first_position + 1, ... of the sequence.
  PassTraffic run_prompt(std::span<const std::int32_t> tokens, std::int32_t sequence, std::int32_t first_position,
                         const LogitRows& logit_rows);
  // Row m of the step is rows[m]. What the device already holds from the step before is not sent again: a greedy row
  // that goes on costs no transfer. REQUIRES: rows of different sequences, at most a pass and its logits hold.
  void run(std::span<const StepRow> rows, DecodeCounters& counters);
  // The device's time of a step is added when the next one runs; this adds that of the last one.
  void finish_timing(DecodeCounters& counters) { clock_.finish(counters.device_time); }

  // Of the first `row_count` rows of logits.
  std::span<const RowResult> read_results(std::int32_t row_count);
  // Throws Error where logits are not finite. REQUIRES: a result of the last pass.
  void require_finite(const RowResult& result);
  std::span<const float> read_logits(std::int32_t first_row, std::int32_t row_count);

  // Graphs that there are, one a width.
  std::size_t captured_widths() const { return captured_.size(); }
  // Device memory that they take, as measured; nothing where that is not known of one.
  std::optional<std::uint64_t> graph_bytes() const;

 private:
  struct CapturedStep {
    std::unique_ptr<Graph> graph;
    PassTraffic traffic;  // of one launch
  };

  void place(std::span<const StepRow> rows);
  PassTraffic enqueue(std::int32_t width);
  CapturedStep& captured(std::int32_t width, DecodeCounters& counters);
  // The layer in which numbers of the last pass stop being finite, as a part of a sentence.
  std::string find_nonfinite_layer();

  Model& model_;
  Options options_;
  StepClock clock_;
  std::map<std::int32_t, CapturedStep> captured_;  // by width

  // What workspace.rows and workspace.tokens hold once all that is enqueued has run.
  std::vector<StepRow> rows_;
  std::vector<std::int32_t> tokens_;  // empty: not known
  // Sources of uploads: unchanged until the stream has passed them.
  std::vector<StepRow> sent_rows_;
  std::vector<std::int32_t> sent_tokens_;

  std::vector<RowResult> results_;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::int32_t> nonfinite_;
  std::vector<float> logits_;
};

}  // namespace genai
