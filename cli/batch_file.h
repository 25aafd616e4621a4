// batch_file.h - the prompts of --batch-file: plain text with one prompt a line, or JSONL, one object a line with a
// prompt and settings of its own. It is JSONL if its first byte that is no white space is '{'.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/row_settings.h"

namespace genai::cli {

struct BatchFile {
  std::string name;  // for messages
  std::string_view text;
  bool replace_escapes = false;  // in plain lines
};

// In the order of the lines. What a line does not say is as in `defaults`. Something that is allowed but does nothing
// is added to `warnings`. Throws UsageError with file and line: no prompt, an unknown key, a value of the wrong kind or
// out of range, JSON that ends early; or where there is no line at all.
std::vector<PromptRow> read_batch_file(const BatchFile& file, const RowSettings& defaults,
                                       std::vector<std::string>& warnings);

}  // namespace genai::cli
