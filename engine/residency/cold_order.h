// cold_order.h - which matrices begin to be cold first. Each exchange and each kernel costs the same whatever it is
// for: measured on an H200 with 5 % cold, rows for host cores in every matrix are slower than rows in large ones alone.
// A huge one (an output matrix) comes late, since host cores have only so much of it in their caches when it is asked
// for: waiting for the rest would be one long wait.
#pragma once
#include <vector>

#include "engine/residency/residency_plan.h"

namespace genai {

// For each matrix the resident share of the large ones at which it begins to be cold, above 0; its own resident share
// falls from there in proportion. 1 for large ones, and for those that passes do not read.
std::vector<double> cold_from(const std::vector<MatrixSize>& matrices);

}  // namespace genai
