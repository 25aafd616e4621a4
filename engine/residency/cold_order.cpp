#include "engine/residency/cold_order.h"

#include <algorithm>

namespace genai {
namespace {

// Matrices by the bytes of their call, in parts of the average of all calls: from least_share to below most_share. And
// how much of all bytes is cold when they begin to be.
struct Group {
  double least_share;
  double most_share;
  double cold_from;
};
constexpr double kHuge = 4.0;
constexpr double kLarge = 1.5;
constexpr double kMiddle = 0.75;
constexpr double kEverything = 1e300;
constexpr Group kGroups[] = {
    {kLarge, kHuge, 0.0}, {kMiddle, kLarge, 0.06}, {kHuge, kEverything, 0.06}, {0.0, kMiddle, 0.1}};
constexpr double kLeastBegin = 0.1;

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
  double all_bytes = 0.0;
  for (const MatrixSize& matrix : matrices)
    if (matrix.read_every_pass) all_bytes += static_cast<double>(matrix.total_bytes());
  std::vector<double> from(matrices.size(), 1.0);
  double group_bytes = 0.0;  // of the groups so far
  double lost_bytes = 0.0;   // of them, for each unit that the large matrices' resident share falls by
  double begin = 1.0;
  for (const Group& group : kGroups) {
    if (group_bytes > 0.0)
      begin = std::clamp((group_bytes - group.cold_from * all_bytes) / lost_bytes, kLeastBegin, begin);
    for (std::size_t index = 0; index < matrices.size(); ++index) {
      if (!matrices[index].read_every_pass) continue;
      if (shares[index] < group.least_share || shares[index] >= group.most_share) continue;
      const auto bytes = static_cast<double>(matrices[index].total_bytes());
      from[index] = begin;
      group_bytes += bytes;
      lost_bytes += bytes / begin;
    }
  }
  return from;
}

}  // namespace genai
