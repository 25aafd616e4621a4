// cold_order.h - which matrices begin to be cold first. Each exchange and each kernel costs the same whatever it is
// for, and reading a vector that host cores are handed costs each of them more the wider it is and the more rows there
// are. So one kind of matrix after the other becomes cold, those with the most bytes a call first: measured on an H200
// with half of a decoder cold, eight rows take 0.8 of the time that they take with some cold rows in every matrix, one
// row 0.98. A huge one (an output matrix) comes late, since host cores have only so much of it in their caches when it
// is asked for: waiting for the rest would be one long wait.
#pragma once
#include <vector>

#include "engine/residency/residency_plan.h"

namespace genai {

// For each matrix the resident share of the large ones at which it begins to be cold, above 0; its own resident share
// falls from there in proportion. 1 for large ones, and for those that passes do not read.
std::vector<double> cold_from(const std::vector<MatrixSize>& matrices);

}  // namespace genai
