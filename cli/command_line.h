// command_line.h - from argv and the environment to one raw value a flag, each with its origin, and no meaning yet.
// A flag beats its environment twin: --top-k is GENAI_TOP_K, every long spelling has one.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"

namespace genai::cli {

struct RawValue {
  std::string text;
  std::string origin;  // "--temp" or "GENAI_TEMP", for messages
  bool from_environment = false;
};

struct RawCommandLine {
  Verb verb = Verb::run;
  std::map<Flag, std::vector<RawValue>> values;  // more than one only for a repeated flag
  std::vector<std::string> positional;
  std::vector<std::string> warnings;  // unknown GENAI_ variables

  // Null where neither a flag nor the environment gave it.
  const RawValue* find(Flag flag) const;
};

// NAME -> value of the variables that begin with GENAI_.
using Environment = std::map<std::string, std::string>;
Environment read_environment();

// "--top-k" -> "GENAI_TOP_K".
std::string environment_twin(std::string_view long_name);

// `arguments` is argv without the program. Throws UsageError: an unknown verb or flag (with a suggestion), a value
// missing, two twins of one flag that differ.
RawCommandLine read_command_line(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace genai::cli
