#include "engine/decode/step_bytes.h"

#include <algorithm>

namespace genai {
namespace {

// Positions that one row sees, summed over the layers.
std::uint64_t seen_positions(const ModelConfig& config, std::int32_t position) {
  const std::int32_t all = position + 1;
  const std::int32_t in_window = config.sliding_window > 0 ? std::min(all, config.sliding_window) : all;
  std::uint64_t seen = 0;
  for (std::int32_t layer = 0; layer < config.layer_count; ++layer)
    seen += static_cast<std::uint64_t>(config.is_local_layer(layer) ? in_window : all);
  return seen;
}

// Keys and values of one position in one layer.
std::uint64_t position_bytes(const CacheShape& cache) {
  const std::uint64_t element_bytes = cache.type == CacheType::f16 ? 2 : 4;
  return 2 * static_cast<std::uint64_t>(cache.kv_head_count) * static_cast<std::uint64_t>(cache.head_dim) *
         element_bytes;
}

}  // namespace

std::uint64_t step_read_bytes(const ModelConfig& config, const CacheShape& cache, const PassTraffic& traffic,
                              std::span<const StepRow> rows) {
  std::uint64_t positions = 0;
  for (const StepRow& row : rows) positions += seen_positions(config, row.position);
  return traffic.read_bytes[static_cast<std::size_t>(Lane::resident)] +
         traffic.read_bytes[static_cast<std::size_t>(Lane::ring)] + positions * position_bytes(cache);
}

}  // namespace genai
