// bench.h - genai bench: how fast this machine reads weights from each memory, at sizes from 4 MiB up, and whether the
// results have the same bits.
#pragma once
#include "cli/console.h"
#include "cli/options.h"
#include "cli/output.h"

namespace genai::cli {

// Exit code 1 where bits differ.
int bench(const BenchOptions& options, Output& output, Console& console);

}  // namespace genai::cli
