#include "engine/residency/cold_order.h"

#include <algorithm>

namespace genai {
namespace {

// Matrices by the bytes of their call, in parts of the average of all calls: from least_share to below most_share. And
// the resident share of the large ones at which they begin to be cold. Where there are no large ones, the first group
// that has any takes their place.
struct Group {
  double least_share;
  double most_share;
  double begin;
};
constexpr double kHuge = 4.0;
constexpr double kLarge = 1.5;
constexpr double kMiddle = 0.75;
constexpr double kEverything = 1e300;
constexpr Group kGroups[] = {
    {kLarge, kHuge, 1.0}, {kMiddle, kLarge, 0.05}, {kHuge, kEverything, 0.85}, {0.0, kMiddle, 0.01}};

// For each matrix the bytes of its call, in parts of the average.
std::vector<double> call_shares(const std::vector<MatrixSize>& matrices) {
  std::vector<double> shares(matrices.size());
  double all_bytes = 0.0, call_count = 0.0;
  for (std::size_t first = 0, end; first < matrices.size(); first = end) {
    double bytes = 0.0;
    for (end = first; end < matrices.size() && (end == first || matrices[end].same_call); ++end)
      bytes += static_cast<double>(matrices[end].total_bytes());
    for (std::size_t index = first; index < end; ++index) shares[index] = bytes;
    if (!matrices[first].read_every_pass) continue;
    all_bytes += bytes;
    call_count += 1.0;
  }
  for (double& share : shares) share *= call_count / std::max(all_bytes, 1.0);
  return shares;
}

}  // namespace

std::vector<double> cold_from(const std::vector<MatrixSize>& matrices) {
  const std::vector<double> shares = call_shares(matrices);
  std::vector<double> from(matrices.size(), 1.0);
  bool are_first = true;
  for (const Group& group : kGroups) {
    bool has_any = false;
    for (std::size_t index = 0; index < matrices.size(); ++index) {
      if (!matrices[index].read_every_pass) continue;
      if (shares[index] < group.least_share || shares[index] >= group.most_share) continue;
      from[index] = are_first ? 1.0 : group.begin;
      has_any = true;
    }
    are_first = are_first && !has_any;
  }
  return from;
}

}  // namespace genai
