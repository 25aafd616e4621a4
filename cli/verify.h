// verify.h - genai verify: runs again what a report says, there or elsewhere, in the same memory or less, and compares
// hashes step by step. The result goes to stdout.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// 0 where all agrees, 1 where something differs. Throws UsageError where the report cannot be replayed: it is damaged,
// of another arithmetic, or of another model.
int verify(const VerifyOptions& options, Output& output, Console& console);

}  // namespace genai::cli
