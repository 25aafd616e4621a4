// step_bytes.h - what a step has to read from device memory: a pure function of the model, of the lanes of its weights
// and of the positions at which its rows stand.
#pragma once
#include <cstdint>
#include <span>

#include "engine/device/kernels.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "engine/residency/pass_traffic.h"

namespace genai {

// Weights of the resident lane and of the ring's slots, and of each row the keys and values that it sees, once: what
// kernels read beyond that (a row of the embedding, activations, the unused part of a chunk) is not counted.
std::uint64_t step_read_bytes(const ModelConfig& config, const CacheShape& cache, const PassTraffic& traffic,
                              std::span<const StepRow> rows);

}  // namespace genai
