// inspect.h - the verb `inspect`: what is in a model file, and whether it can be trusted.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Returns the exit code. A file that this build cannot run is shown all the same, with the reason; with `check` the
// reason, or a weight that is not a finite number, is a ModelFileError.
int inspect(const InspectOptions& options, Output& output, Console& console);

}  // namespace genai::cli
