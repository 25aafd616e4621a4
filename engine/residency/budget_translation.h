// budget_translation.h - what other engines say instead of a budget, as one: so many layers on the GPU, so many bytes
// of weights off it. Which rows then leave device memory is still the planner's choice, not whole layers.
#pragma once
#include <cstdint>

#include "engine/residency/residency_plan.h"

namespace genai {

// Bytes of the matrices that stay on the host where the last `gpu_layers` layers are on the GPU: llama.cpp's
// --gpu-layers, which counts the output as one more layer behind the others. 0: all of them.
std::uint64_t bytes_off_gpu(const PlanRequest& request, std::int32_t layer_count, std::int32_t gpu_layers);

// The smallest budget of the request's mode under which at most `cold_bytes` of weights are cold; the smallest that
// works at all if that is more. The request's own budget is ignored.
std::uint64_t budget_for_cold_bytes(PlanRequest request, std::uint64_t cold_bytes);

}  // namespace genai
