#include "engine/residency/ring_share.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>

namespace genai {
namespace {

// Matrices with rows in the ring, at least, where host cores compute others.
constexpr double kLeastPieces = 16.0;
// A call of which nearly all or hardly any rows would be in the ring has all of them there, or none.
constexpr double kHardlyAny = 0.1;

// What one kernel of a lane reads: matrices with the same input.
struct Call {
  std::int64_t strips = 0;
  std::int64_t bytes = 0;
  auto operator<=>(const Call&) const = default;
};

// For each matrix the number of its call, and the calls.
struct Calls {
  std::vector<std::size_t> of_matrix;
  std::vector<Call> calls;
};

double cold_bytes_of(const MatrixSize& matrix, std::int64_t resident) {
  return matrix.read_every_pass ? static_cast<double>((matrix.strips - resident) * matrix.strip_bytes) : 0.0;
}

Calls calls_of(const std::vector<MatrixSize>& matrices) {
  Calls found;
  for (const MatrixSize& matrix : matrices) {
    if (!matrix.same_call || found.calls.empty()) found.calls.emplace_back();
    found.calls.back().strips += matrix.strips;
    found.calls.back().bytes += matrix.total_bytes();
    found.of_matrix.push_back(found.calls.size() - 1);
  }
  return found;
}

// The ring's part of each matrix's cold bytes: calls with the fewest rows first, of these the smallest, until
// `ring_bytes` are shared out. Not of the last matrix.
std::vector<double> few_rows_first(const std::vector<MatrixSize>& matrices, const std::vector<std::int64_t>& resident,
                                   double ring_bytes) {
  const Calls found = calls_of(matrices);
  std::map<Call, double> groups;  // of like calls: their cold bytes, then the ring's part of them
  const auto group_of = [&](std::size_t index) { return found.calls[found.of_matrix[index]]; };
  for (std::size_t index = 0; index + 1 < matrices.size(); ++index)
    groups[group_of(index)] += cold_bytes_of(matrices[index], resident[index]);
  for (auto& [call, part] : groups) {
    const double bytes = part;
    part = bytes > 0.0 ? std::clamp(ring_bytes / bytes, 0.0, 1.0) : 0.0;
    if (part < kHardlyAny) part = 0.0;
    if (part > 1.0 - kHardlyAny) part = 1.0;
    ring_bytes -= part * bytes;
  }
  std::vector<double> parts;
  for (std::size_t index = 0; index + 1 < matrices.size(); ++index) parts.push_back(groups[group_of(index)]);
  return parts;
}

}  // namespace

// Rows in the ring are spread over a pass, but for the last matrix: behind it slots fill for the next pass, and nothing
// but host cores computes meanwhile, so they get those bytes more. Of a matrix they are many or none.
std::vector<std::int64_t> share_with_ring(const std::vector<MatrixSize>& matrices,
                                          const std::vector<std::int64_t>& resident, const RingShare& share,
                                          const RingSlots& slots) {
  double cold_bytes = 0.0;
  for (std::size_t index = 0; index < matrices.size(); ++index)
    cold_bytes += cold_bytes_of(matrices[index], resident[index]);
  const double last_bytes = matrices.empty() ? 0.0 : cold_bytes_of(matrices.back(), resident.back());
  const auto slot_bytes = static_cast<double>(slots.slot_bytes);
  const double ring_bytes = share.of_cold * cold_bytes;
  const double for_host = std::min(share.of_cold * last_bytes, slots.slot_count * slot_bytes);
  const double last_ring_bytes =
      std::max(share.of_cold * last_bytes - for_host, ring_bytes - (cold_bytes - last_bytes));
  const double least_bytes = std::min(slot_bytes / 2.0, ring_bytes / kLeastPieces);
  const double even =
      cold_bytes > last_bytes ? (ring_bytes - last_ring_bytes) / (cold_bytes - last_bytes) : share.of_cold;
  std::vector<double> parts(matrices.size(), even);
  if (share.spread == RingSpread::few_rows_first)
    parts = few_rows_first(matrices, resident, ring_bytes - last_ring_bytes);
  parts.resize(matrices.size());
  if (!parts.empty()) parts.back() = last_bytes > 0.0 ? last_ring_bytes / last_bytes : share.of_cold;

  std::vector<std::int64_t> strips;
  double owed = 0.0;  // bytes that have been kept back so far
  for (std::size_t index = 0; index < matrices.size(); ++index) {
    const MatrixSize& matrix = matrices[index];
    const bool is_last = index + 1 == matrices.size();
    const std::int64_t cold = matrix.strips - resident[index];
    if (is_last) owed = 0.0;
    owed += parts[index] * cold_bytes_of(matrix, resident[index]);
    std::int64_t ring = cold;
    if (!matrix.read_every_pass) {
      ring = 0;
    } else if (matrix.one_cold_lane) {
      ring = share.of_cold > 0.0 ? cold : 0;
    } else if (share.of_cold < 1.0 && (parts[index] == 0.0 || (owed < least_bytes && !is_last))) {
      ring = 0;
    } else if (share.of_cold < 1.0) {
      ring = std::clamp<std::int64_t>(
          std::llround(owed / static_cast<double>(std::max<std::int64_t>(matrix.strip_bytes, 1))), 0, cold);
    }
    owed -= static_cast<double>(ring * matrix.strip_bytes);
    strips.push_back(ring);
  }
  return strips;
}

}  // namespace genai
