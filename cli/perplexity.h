// perplexity.h - the verb `perplexity`: how well a model predicts a text, and how far it is from another model.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Returns the exit code. The text is cut into windows of -c tokens that do not overlap; where the model adds a BOS
// token, it takes the place of each window's first one. Every token of a window but the first counts. Throws what went
// wrong.
int perplexity(const PerplexityOptions& options, Output& output, Console& console);

}  // namespace genai::cli
