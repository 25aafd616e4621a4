// tokenize.h - the verb `tokenize`: the ids of a text, as the model would see it.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Returns the exit code. Needs the file's vocabulary only, not its weights.
int tokenize(const TokenizeOptions& options, Output& output, Console& console);

}  // namespace genai::cli
