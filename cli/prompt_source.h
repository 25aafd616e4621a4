// prompt_source.h - the bytes of the prompt, exactly as they are in the text, the file or stdin.
#pragma once
#include <string>

#include "cli/options.h"

namespace genai::cli {

// Throws UsageError with the reason for a file that cannot be read; each kind (missing, a folder, no permission, a pipe
// that nobody writes to) has its own. Waits for the writer of a pipe or a terminal, and throws Interrupted on Ctrl-C.
std::string read_prompt(const PromptOptions& options);
// Another small text file, in the same way.
std::string read_text_file(const std::string& path);

}  // namespace genai::cli
