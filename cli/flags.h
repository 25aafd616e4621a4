// flags.h - every flag there is: its spellings, which verbs know it, and what the help says. The table is the one list
// that parsing, help, environment twins and suggestions are made from; what a value means is in options.cpp.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/verbs.h"

namespace genai::cli {

enum class Flag : std::uint8_t {
  model,
  prompt,
  file,
  batch_file,
  escape,
  parse_special,
  no_parse_special,
  force,
  predict,
  ctx_size,
  parallel,
  batch_size,
  ubatch_size,
  ignore_eos,
  stop,
  special,
  dump_prompt,
  seed,
  temp,
  top_k,
  top_p,
  min_p,
  typical,
  repeat_penalty,
  repeat_last_n,
  presence_penalty,
  frequency_penalty,
  device,
  threads,
  gpu_budget,
  gpu_layers,
  cpu_offload_gb,
  weight_offload,
  allocator,
  cold,
  lane_speeds,
  lanes,
  max_bytes,
  chunks,
  reference,
  cache_type_k,
  cache_type_v,
  cuda_graph,
  no_cuda_graph,
  json,
  ids,
  no_bos,
  check,
  report,
  report_file,
  quiet,
  log_level,
  help,
  version,
};

enum class FlagKind : std::uint8_t {
  toggle,    // takes no value; "--quiet=false" is possible
  value,     // takes one; the last one counts
  repeated,  // takes one; all count
};

struct FlagSpec {
  Flag flag;
  FlagKind kind;
  std::vector<std::string> names;  // as typed: "-m", "--model", "-ub"
  std::string value_name;          // empty for a toggle
  std::uint8_t verbs;              // Verb values, or'ed
  std::string group;
  std::string help;

  bool is_known_to(Verb verb) const { return (verbs & static_cast<std::uint8_t>(verb)) != 0; }
  // The first long spelling, by which messages name the flag.
  const std::string& long_name() const;
};

const std::vector<FlagSpec>& flag_table();
// Null if no flag of any verb is spelled so.
const FlagSpec* find_flag(std::string_view name);
// The spellings that `verb` knows.
std::vector<std::string> flag_names(Verb verb);

}  // namespace genai::cli
