#include "engine/residency/residency_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/error.h"
#include "engine/residency/cold_order.h"
#include "engine/residency/lane_times.h"
#include "engine/residency/strip_order.h"

namespace genai {
namespace {

constexpr std::uint64_t kPartAlignment = 256;
constexpr std::int32_t kRingSlots = 4;
constexpr std::uint64_t kLargestSlotBytes = std::uint64_t{8} << 20;
// A slot is this part of all weights, within the limits above: the ring is a small fixed cost at any model size.
constexpr std::uint64_t kSlotsInModel = 64;
// Matrices with rows in the ring, at least, where host cores compute others.
constexpr double kLeastPieces = 16.0;
// How much faster reading over the link must be to be chosen: passes over prompts are far slower with it.
constexpr double kZeroCopyGain = 1.1;

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Everything about a request that does not depend on the budget.
class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request) {
    std::uint64_t total_bytes = 0;
    for (std::size_t index = 0; index < request.matrices.size(); ++index) {
      const MatrixSize& matrix = request.matrices[index];
      total_bytes += static_cast<std::uint64_t>(matrix.total_bytes());
      largest_strip_bytes_ = std::max(largest_strip_bytes_, static_cast<std::uint64_t>(matrix.strip_bytes));
      forced_cold_.push_back(std::find(request.forced_cold.begin(), request.forced_cold.end(), matrix.name) !=
                             request.forced_cold.end());
      if (forced_cold_.back()) has_forced_cold_ = true;
    }
    slot_bytes_ = rounded(std::max(largest_strip_bytes_, std::min(kLargestSlotBytes, total_bytes / kSlotsInModel)),
                          kPartAlignment);
    order_strips();
  }

  // Device bytes of everything when `strips[i]` strips of matrix i are resident.
  std::uint64_t committed(const std::vector<std::int64_t>& strips, bool with_ring) const {
    std::uint64_t resident = 0;
    for (std::size_t index = 0; index < strips.size(); ++index) resident += part_bytes(index, strips[index]);
    return committed_with(resident, with_ring);
  }

  std::vector<std::int64_t> all_strips() const {
    std::vector<std::int64_t> strips;
    for (std::size_t index = 0; index < request_.matrices.size(); ++index)
      strips.push_back(forced_cold_[index] ? 0 : request_.matrices[index].strips);
    return strips;
  }

  // The longest prefix of the order that fits; nothing where not even the part that must be resident does.
  std::optional<std::vector<std::int64_t>> longest_fitting(std::uint64_t budget_bytes, bool with_ring) const {
    if (committed(obligatory_, with_ring) > budget_bytes) return std::nullopt;
    return order_.longest_prefix(obligatory_, [&](const std::vector<std::int64_t>& strips) {
      return committed(strips, with_ring) <= budget_bytes;
    });
  }

  std::uint64_t least_committed(bool with_ring) const { return committed(obligatory_, with_ring); }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  bool has_forced_cold() const { return has_forced_cold_; }
  std::uint64_t ring_bytes() const { return rounded(slot_bytes_ * kRingSlots, request_.granule_bytes); }

 private:
  std::uint64_t part_bytes(std::size_t matrix, std::int64_t strips) const {
    return rounded(static_cast<std::uint64_t>(strips * request_.matrices[matrix].strip_bytes), kPartAlignment);
  }

  std::uint64_t committed_with(std::uint64_t resident_bytes, bool with_ring) const {
    return request_.fixed.kv + request_.fixed.workspace + request_.fixed.graphs +
           rounded(request_.fixed.vectors + resident_bytes, request_.granule_bytes) + (with_ring ? ring_bytes() : 0);
  }

  void order_strips() {
    const std::vector<double> from = cold_from(request_.matrices);
    for (std::size_t index = 0; index < request_.matrices.size(); ++index) {
      const MatrixSize& matrix = request_.matrices[index];
      obligatory_.push_back(matrix.may_be_cold ? 0 : matrix.strips);
      if (!matrix.may_be_cold || forced_cold_[index]) continue;
      if (matrix.read_every_pass)
        order_.add(index, matrix.strips, from[index]);
      else  // Reading one row of it from host memory costs next to nothing.
        order_.add_last(index, matrix.strips);
    }
  }

  const PlanRequest& request_;
  std::vector<bool> forced_cold_;
  bool has_forced_cold_ = false;
  std::uint64_t largest_strip_bytes_ = 1;
  std::uint64_t slot_bytes_ = 0;
  std::vector<std::int64_t> obligatory_;
  StripOrder order_;
};

bool uses_host(OffloadMode mode) { return mode == OffloadMode::host || mode == OffloadMode::split; }

bool needs_ring(const PlanRequest& request, OffloadMode mode) {
  return mode == OffloadMode::stream || mode == OffloadMode::split || (uses_host(mode) && request.wide_passes_stream);
}

// Of the cold rows, how many belong into the ring.
double ring_share(OffloadMode mode, const PlanRequest& request) {
  const LaneSpeeds& speeds = request.speeds;
  switch (mode) {
    case OffloadMode::stream:
      return 1.0;
    case OffloadMode::split: {
      const double both = speeds.ring_beside_host + host_speed(speeds, request.step_rows, true);
      return both > 0.0 ? speeds.ring_beside_host / both : 0.5;
    }
    default:
      return 0.0;
  }
}

struct RingShares {
  double last = 0.0;  // of the last matrix's cold rows
  double others = 0.0;
  double least_bytes = 0.0;  // of one matrix
};

// Rows in the ring are spread evenly over a pass, but for the last matrix: behind it slots fill for the next pass, and
// nothing but host cores computes meanwhile, so they get those bytes more. Rows in the ring are a kernel more: it is
// for few of the matrices then, and for many bytes of each.
RingShares ring_shares(const PlanRequest& request, const Planner& planner,
                       const std::vector<std::int64_t>& resident_strips, double share) {
  double cold_bytes = 0.0, last_bytes = 0.0;
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    const MatrixSize& size = request.matrices[index];
    if (!size.read_every_pass) continue;
    last_bytes = static_cast<double>((size.strips - resident_strips[index]) * size.strip_bytes);
    cold_bytes += last_bytes;
  }
  const auto slot_bytes = static_cast<double>(planner.slot_bytes());
  const double ring_bytes = share * cold_bytes;
  const double for_host = std::min(share * last_bytes, kRingSlots * slot_bytes);
  const double last_ring_bytes = std::max(share * last_bytes - for_host, ring_bytes - (cold_bytes - last_bytes));
  RingShares shares{
      .last = share, .others = share, .least_bytes = std::min(slot_bytes / 2.0, ring_bytes / kLeastPieces)};
  if (last_bytes > 0.0) shares.last = last_ring_bytes / last_bytes;
  if (cold_bytes > last_bytes) shares.others = (ring_bytes - last_ring_bytes) / (cold_bytes - last_bytes);
  return shares;
}

// `share`: of the cold rows, how many go into the ring.
ResidencyPlan plan_with(const PlanRequest& request, const Planner& planner, OffloadMode mode,
                        const std::vector<std::int64_t>& resident_strips, double share) {
  ResidencyPlan plan;
  plan.mode = mode;
  const Lane other = mode == OffloadMode::zero_copy ? Lane::zero_copy : Lane::host;
  double owed = 0.0;  // ring bytes that have been kept back so far
  const RingShares shares = ring_shares(request, planner, resident_strips, share);
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    const MatrixSize& size = request.matrices[index];
    MatrixPlan matrix;
    const std::int64_t cold = size.strips - resident_strips[index];
    matrix.strips[static_cast<int>(Lane::resident)] = resident_strips[index];
    if (!size.read_every_pass) {
      matrix.strips[static_cast<int>(Lane::zero_copy)] = cold;
    } else {
      const bool is_last = index + 1 == request.matrices.size();
      if (is_last) owed = 0.0;
      owed += (is_last ? shares.last : shares.others) * static_cast<double>(cold * size.strip_bytes);
      std::int64_t ring = cold;
      if (size.one_cold_lane) {
        ring = share > 0.0 ? cold : 0;
      } else if (share < 1.0 && owed < shares.least_bytes && !is_last) {
        ring = 0;
      } else if (share < 1.0) {
        ring = std::clamp<std::int64_t>(
            std::llround(owed / static_cast<double>(std::max<std::int64_t>(size.strip_bytes, 1))), 0, cold);
      }
      owed -= static_cast<double>(ring * size.strip_bytes);
      matrix.strips[static_cast<int>(Lane::ring)] = ring;
      matrix.strips[static_cast<int>(other)] += cold - ring;
    }
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const auto bytes = static_cast<std::uint64_t>(matrix.strips[lane] * size.strip_bytes);
      plan.lane_bytes[lane] += bytes;
      if (size.read_every_pass) plan.pass_bytes[lane] += bytes;
    }
    plan.matrices.push_back(matrix);
  }
  plan.wide_passes_stream = request.wide_passes_stream && plan.of(Lane::host) > 0;
  const bool ring = plan.of(Lane::ring) > 0 || plan.wide_passes_stream;
  plan.ring_slots = ring ? kRingSlots : 0;
  plan.ring_slot_bytes = ring ? planner.slot_bytes() : 0;
  plan.committed_bytes = planner.committed(resident_strips, ring);
  return plan;
}

ResidencyPlan plan_of(const PlanRequest& request, const Planner& planner, OffloadMode mode,
                      const std::vector<std::int64_t>& resident_strips) {
  const auto predicted = [&](double share) {
    ResidencyPlan plan = plan_with(request, planner, mode, resident_strips, share);
    predict_pass(request, plan);
    return plan;
  };
  double share = ring_share(mode, request);
  ResidencyPlan best = predicted(share);
  if (mode != OffloadMode::split || best.pass_seconds == 0.0) return best;
  // The ratio of speeds is best where nothing but them counts. Where kernels and exchanges do, more on one side is.
  const auto try_share = [&](double other) {
    if (other < 0.0 || other > 1.0) return;
    ResidencyPlan plan = predicted(other);
    if (plan.pass_seconds == 0.0 || plan.pass_seconds >= best.pass_seconds) return;
    best = std::move(plan);
    share = other;
  };
  constexpr int kFirstSteps = 16;
  for (int step = 0; step <= kFirstSteps; ++step) try_share(static_cast<double>(step) / kFirstSteps);
  for (double step = 0.5 / kFirstSteps; step > 1e-4; step /= 2.0) {
    const double middle = share;
    try_share(middle - step);
    try_share(middle + step);
  }
  return best;
}

std::string ledger(const PlanRequest& request, const Planner& planner, OffloadMode mode) {
  std::uint64_t weights = 0;
  for (const MatrixSize& matrix : request.matrices) weights += static_cast<std::uint64_t>(matrix.total_bytes());
  return fmt::format("{} weights in matrices, {} in vectors, {} kv cache, {} workspace, {} graphs{}", weights,
                     request.fixed.vectors, request.fixed.kv, request.fixed.workspace, request.fixed.graphs,
                     needs_ring(request, mode) ? fmt::format(", {} ring", planner.ring_bytes()) : std::string());
}

[[noreturn]] void refuse(const PlanRequest& request, const Planner& planner, OffloadMode mode, std::uint64_t needed) {
  throw BudgetError(
      fmt::format("the model does not fit a budget of {} bytes with offload mode {}: {}", *request.budget_bytes,
                  offload_mode_name(mode), ledger(request, planner, mode)),
      needed, *request.budget_bytes,
      fmt::format("the smallest budget that works is {} bytes; a smaller context (-c) or batch (-ub) needs less{}",
                  needed, mode == OffloadMode::off ? ", and so does another --weight-offload" : ""));
}

std::optional<ResidencyPlan> plan_cold(const PlanRequest& request, const Planner& planner, OffloadMode mode) {
  const auto strips =
      planner.longest_fitting(request.budget_bytes.value_or(~std::uint64_t{0}), needs_ring(request, mode));
  if (!strips) return std::nullopt;
  return plan_of(request, planner, mode, *strips);
}

constexpr OffloadMode kColdModes[] = {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host,
                                      OffloadMode::split};

ResidencyPlan best_cold(const PlanRequest& request, const Planner& planner) {
  std::optional<ResidencyPlan> best;
  for (const OffloadMode mode : kColdModes) {
    if (uses_host(mode) && !request.has_host_lane) continue;
    std::optional<ResidencyPlan> plan = plan_cold(request, planner, mode);
    if (!plan) continue;
    // A mode of unknown speed is taken only where nothing better is known: the first, copies ahead of use, is the safe
    // one.
    const auto weight = [](const ResidencyPlan& any) {
      return any.pass_seconds * (any.mode == OffloadMode::zero_copy ? kZeroCopyGain : 1.0);
    };
    const bool is_better =
        best && plan->pass_seconds > 0.0 && (best->pass_seconds == 0.0 || weight(*plan) < weight(*best));
    if (!best || is_better) best = std::move(plan);
  }
  if (!best) refuse(request, planner, OffloadMode::zero_copy, planner.least_committed(false));
  return *best;
}

}  // namespace

std::string_view lane_name(Lane lane) {
  constexpr std::string_view kNames[] = {"resident", "ring", "zero_copy", "host"};
  return kNames[static_cast<int>(lane)];
}

std::string_view offload_mode_name(OffloadMode mode) {
  constexpr std::string_view kNames[] = {"auto", "off", "stream", "zerocopy", "host", "split"};
  return kNames[static_cast<int>(mode)];
}

std::int64_t MatrixPlan::first_strip(Lane lane) const {
  std::int64_t first = 0;
  for (int before = 0; before < static_cast<int>(lane); ++before) first += strips[before];
  return first;
}

ResidencyPlan make_residency_plan(const PlanRequest& request) {
  if (uses_host(request.mode) && !request.has_host_lane)
    throw UsageError(fmt::format("offload mode {} needs host cores that compute rows, and this device has no such lane",
                                 offload_mode_name(request.mode)),
                     "use --weight-offload stream, zerocopy or auto");
  const Planner planner(request);
  const std::vector<std::int64_t> everything = planner.all_strips();
  const std::uint64_t whole = planner.committed(everything, false);
  const bool fits = !request.budget_bytes || whole <= *request.budget_bytes;
  if (request.mode == OffloadMode::off) {
    if (planner.has_forced_cold())
      throw UsageError("matrices are asked to be cold while offload is off", "choose another --weight-offload");
    if (!fits) refuse(request, planner, OffloadMode::off, whole);
  }
  if (fits && !planner.has_forced_cold()) return plan_of(request, planner, OffloadMode::off, everything);
  if (request.mode == OffloadMode::automatic) return best_cold(request, planner);
  std::optional<ResidencyPlan> plan = plan_cold(request, planner, request.mode);
  if (!plan) refuse(request, planner, request.mode, planner.least_committed(needs_ring(request, request.mode)));
  return *plan;
}

std::uint64_t smallest_budget(const PlanRequest& request) {
  const Planner planner(request);
  const std::uint64_t whole = planner.committed(planner.all_strips(), false);
  switch (request.mode) {
    case OffloadMode::off:
      return whole;
    case OffloadMode::automatic:
      return planner.least_committed(false);
    default:
      return std::min(whole, planner.least_committed(needs_ring(request, request.mode)));
  }
}

}  // namespace genai
