// row_settings.h - how one text is to be generated: what the command line says, a line of a batch file, or a report.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/sampler.h"

namespace genai::cli {

struct RowSettings {
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 27;

  std::int32_t max_tokens = -1;       // negative: until the model ends or the context is full
  std::optional<std::uint64_t> seed;  // nothing: a random one
  SamplerSettings sampler;            // but for the seed
  std::vector<std::string> stops;
};

struct PromptRow {
  std::string prompt;
  RowSettings settings;
  std::string origin;  // "prompts.jsonl:3", for messages; empty: the command line
};

}  // namespace genai::cli
