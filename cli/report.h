// report.h - what a run did, for people and for programs. A field that is empty was not measured and is left out; 0 is
// a measured zero. cli/README.md says what each field means.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace genai::cli {

struct Report {
  std::string device_name;
  std::optional<int> sm_count;
  std::string device_driver;    // empty: the device has none
  std::string fallback_reason;  // empty: none

  std::string cpu_name;  // empty: the system does not say
  int threads = 0;
  std::string threads_reason;
  std::string instruction_set;  // empty: the host computed nothing

  std::string model_path;
  std::string model_arch;
  std::uint64_t model_bytes = 0;
  std::uint64_t model_hash = 0;

  std::string mode = "resident";  // where the weights are read from, as it came out
  std::string allocator = "arena";
  std::optional<std::uint64_t> budget_bytes;
  // Of the arena; empty where memory is not its.
  std::optional<std::uint64_t> committed_peak_bytes;
  struct CommittedBytes {
    std::string kind;
    std::uint64_t bytes = 0;
  };
  std::vector<CommittedBytes> committed_bytes;  // at the end of the run, of the device and of cold weights
  std::uint64_t resident_bytes = 0;
  std::uint64_t cold_bytes = 0;
  std::optional<std::uint64_t> pinned_bytes;     // of the arena, in page-locked host memory
  std::optional<std::uint64_t> pageable_bytes;   // likewise, in other host memory, where that was refused
  std::uint64_t step_weight_bytes = 0;           // weights that one step reads
  std::optional<double> predicted_pass_seconds;  // of the plan
  std::string bottleneck;                        // of the plan; empty: not predicted
  // Of the steps of decoding; empty where there was none.
  struct Traffic {
    std::uint64_t steps = 0;
    std::uint64_t step_rows = 0;  // tokens taken on by all steps together
    std::uint64_t htod_bytes = 0;
    std::uint64_t page_ins = 0;
    std::uint64_t evictions = 0;
    std::uint64_t zero_copy_bytes = 0;
    std::uint64_t host_computed_bytes = 0;
    std::uint64_t floor_bytes_per_step = 0;  // of rows that are neither resident nor computed by the host
  };
  std::optional<Traffic> traffic;

  std::optional<std::uint64_t> captures, replays, fallbacks, invalidations, segments, eager_nodes;
  std::optional<std::uint64_t> graph_bytes;  // of device memory, as measured when graphs were made
  std::uint64_t kv_committed_bytes = 0;
  std::optional<std::uint64_t> kv_growth_events, kv_bytes_moved;

  std::int32_t context_tokens = 0;
  std::int32_t pass_rows = 0;
  int batch = 1;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generated_tokens = 0;

  double load_seconds = 0.0;
  std::uint64_t load_file_bytes = 0;  // of weights, read in load_weights_seconds
  double load_weights_seconds = 0.0;
  std::optional<double> prefill_seconds;
  std::optional<double> decode_seconds;  // in which the tokens behind the gaps came
  std::optional<double> time_to_first_token_seconds;
  std::vector<double> inter_token_seconds;
  // Of a GPU: what steps read from its memory over their time by its own clock, and what it can read.
  std::optional<double> hbm_gbps, read_peak_gbps;

  // One text, or one of several.
  struct Text {
    std::uint64_t prompt_tokens = 0;
    std::uint64_t generated_tokens = 0;
    std::uint64_t seed = 0;
    std::string finish_reason;
    std::uint64_t prompt_hash = 0;
    std::uint64_t output_hash = 0;
    std::optional<std::uint64_t> logits_hash;  // empty: no logits were computed
    std::vector<std::uint64_t> step_logits_hashes;
  };
  std::vector<Text> texts;  // in the order of the prompts
  // Of all texts together.
  std::uint64_t prompt_hash = 0;
  std::uint64_t output_hash = 0;
  std::optional<std::uint64_t> logits_hash;
  std::string replay;  // what was asked for (replay.h), as JSON; empty: not said
  std::optional<std::uint64_t> rss_peak_bytes;
  std::optional<std::uint64_t> huge_page_bytes;
};

// The smallest of `values` that at least `share` of them do not exceed. REQUIRES: values, sorted; 0 < share <= 1.
double percentile(const std::vector<double>& values, double share);

// How much of what grows with the text is in the JSON.
enum class ReportDetail {
  run,    // totals
  steps,  // and a value for each step, and what was asked for
};

// One line, no line break.
std::string report_json(const Report& report, ReportDetail detail);
// One of the texts, with the names that the fields have in the report of a single one.
std::string text_report_json(const Report::Text& text);
std::string report_summary(const Report& report);

}  // namespace genai::cli
