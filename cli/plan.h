// plan.h - the verb `plan`: which rows of a model would live where under a budget, without loading a weight.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Returns the exit code. Throws what went wrong, BudgetError among it.
int plan(const PlanOptions& options, Output& output, Console& console);

}  // namespace genai::cli
