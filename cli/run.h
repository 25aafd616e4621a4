// run.h - the verb `run`: a prompt in, text out.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Returns the exit code: 0, or 130 after Ctrl-C, when the text so far and the report are out. Throws what went wrong.
int run(const RunOptions& options, Output& output, Console& console);

}  // namespace genai::cli
