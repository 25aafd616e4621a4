#include "engine/residency/budget_translation.h"

#include <string>

namespace genai {

std::uint64_t bytes_off_gpu(const PlanRequest& request, std::int32_t layer_count, std::int32_t gpu_layers) {
  const std::int64_t first_on_gpu = std::int64_t{layer_count} + 1 - gpu_layers;  // the output is the last of all
  std::uint64_t bytes = 0;
  for (const MatrixSize& matrix : request.matrices) {
    if (!matrix.may_be_cold || !matrix.read_every_pass) continue;  // a table that is looked up costs a pass nothing
    constexpr std::string_view kLayer = "blk.";
    const std::int32_t layer =
        matrix.name.starts_with(kLayer) ? std::stoi(matrix.name.substr(kLayer.size())) : layer_count;
    if (layer < first_on_gpu) bytes += static_cast<std::uint64_t>(matrix.total_bytes());
  }
  return bytes;
}

std::uint64_t budget_for_cold_bytes(PlanRequest request, std::uint64_t cold_bytes) {
  // Without a limit on cold bytes there is none that would forbid a ring, which all but the slowest mode need.
  PlanRequest with_ring = request;
  if (request.mode == OffloadMode::automatic) with_ring.mode = OffloadMode::stream;
  std::uint64_t lowest = smallest_budget(with_ring);
  PlanRequest resident = request;
  resident.mode = OffloadMode::off;
  std::uint64_t enough = smallest_budget(resident);
  const auto suffices = [&](std::uint64_t budget) {
    request.budget_bytes = budget;
    return make_residency_plan(request).cold_bytes() <= cold_bytes;
  };
  while (lowest < enough) {
    const std::uint64_t middle = lowest + (enough - lowest) / 2 / request.granule_bytes * request.granule_bytes;
    if (suffices(middle))
      enough = middle;
    else
      lowest = middle + request.granule_bytes;
  }
  return enough;
}

}  // namespace genai
