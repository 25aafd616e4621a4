// options.h - the command line as one validated value a verb: everything that can be refused without opening a file has
// been refused. Plain values; nothing here opens, reads or prints.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/byte_size.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/lane_speed_values.h"
#include "cli/row_settings.h"
#include "engine/device/kernels.h"
#include "engine/open_device.h"
#include "engine/residency/residency_arena.h"
#include "engine/residency/residency_plan.h"

namespace genai::cli {

struct PromptOptions {
  enum class Source { text, file, standard_input };
  Source source = Source::text;
  std::string text;  // the text, escapes already replaced, or the file's path
  bool parse_special = true;
};

enum class ReportForm { automatic, json, human, none };

// How a model is placed on a device: what the verbs that compute have in common.
struct PlacementOptions {
  std::optional<std::int32_t> context;  // nothing: the model's, 4096 at most; 0: the model's
  std::int32_t pass_rows = 512;         // prompt tokens in one pass
  DeviceRequest device;
  MemoryLimit budget;
  // What a budget is made from instead; one of the three at most.
  std::optional<std::int32_t> gpu_layers;
  std::optional<std::uint64_t> cpu_offload_bytes;
  OffloadMode offload = OffloadMode::automatic;
  Allocator allocator = Allocator::arena;  // plain: none of the three above is given
  std::vector<std::string> cold;           // names of matrices that must not be resident, or parts
  LaneSpeedSource lane_speeds;
  CacheType cache_type = CacheType::f16;
  static constexpr std::int32_t kMostParallel = 16;
  std::int32_t parallel = 1;  // texts generated at once, each with a sequence of the cache
};

struct RunOptions {
  std::string model_path;
  PromptOptions prompt;
  bool is_batch_file = false;  // the prompt's source has many prompts (batch_file.h)
  bool escapes = false;        // to replace in its plain lines
  bool force_pre_tokenizer = false;

  RowSettings row;  // of every text, but for what a line of a batch file says
  bool ignore_end = false;

  PlacementOptions placement;
  bool graph = true;
  bool check = false;

  bool show_special = false;
  bool dump_prompt = false;
  bool json = false;
  ReportForm report = ReportForm::automatic;
  std::string report_file;  // empty: none
};

struct TokenizeOptions {
  enum class Form { lines, ids, json };
  std::string model_path;
  PromptOptions prompt;
  bool force_pre_tokenizer = false;
  bool add_special = true;
  Form form = Form::lines;
};

struct InspectOptions {
  std::string model_path;
  bool json = false;
  bool check = false;
};

struct PlanOptions {
  std::string model_path;
  PlacementOptions placement;
  struct Sweep {
    MemoryLimit first;  // in bytes, or in percent of what the model needs to be resident
    MemoryLimit last;
  };
  std::optional<Sweep> sweep;  // a plan for each of several budgets; placement.budget is none
  bool json = false;
};

struct BenchOptions {
  DeviceRequest device;
  MemoryLimit budget;
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{4} << 20;
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  bool json = false;
};

struct PerplexityOptions {
  std::string model_path;
  PromptOptions text;
  bool force_pre_tokenizer = false;
  PlacementOptions placement;
  std::int32_t window = 512;
  std::int32_t max_windows = -1;
  std::string reference_path;  // empty: none
  bool json = false;
};

// What a replay does otherwise than its report says: the flags that are there, whose meaning needs the rest.
class ReplayOverrides {
 public:
  ReplayOverrides() = default;
  // Throws UsageError, as do the others.
  ReplayOverrides(const RawCommandLine& line, const Environment& environment);
  PlacementOptions applied_to(PlacementOptions placement) const;
  bool graph(bool otherwise) const;

 private:
  RawCommandLine line_;
  Environment environment_;
};

struct VerifyOptions {
  std::string report_path;
  std::string model_path;  // empty: the report's
  ReplayOverrides overrides;
  bool json = false;
};

// All of these throw UsageError. Something that is allowed but does nothing is added to `warnings`.
LogLevel make_log_level(const RawCommandLine& line);
RunOptions make_run_options(const RawCommandLine& line, const Environment& environment,
                            std::vector<std::string>& warnings);
PlanOptions make_plan_options(const RawCommandLine& line, const Environment& environment);
BenchOptions make_bench_options(const RawCommandLine& line, const Environment& environment);
VerifyOptions make_verify_options(const RawCommandLine& line, const Environment& environment);
PerplexityOptions make_perplexity_options(const RawCommandLine& line, const Environment& environment);
TokenizeOptions make_tokenize_options(const RawCommandLine& line);
InspectOptions make_inspect_options(const RawCommandLine& line);

}  // namespace genai::cli
