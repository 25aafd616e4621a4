#include "engine/residency/lane_times.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace genai {
namespace {

// How many times longer than its longest lane a pass takes, where weights are in several memories: lanes do not begin
// and end together. Measured on an H200 from 2 % to 100 % cold: 1.00 to 1.12.
constexpr double kLanesMisfit = 1.07;

struct Calls {
  std::int64_t kernels = 0;
  std::int64_t exchanges = 0;
};

Calls count_calls(const PlanRequest& request, const ResidencyPlan& plan) {
  Calls calls;
  bool is_in_call[kLaneCount] = {};
  for (std::size_t index = 0; index < plan.matrices.size(); ++index) {
    if (!request.matrices[index].read_every_pass) continue;
    if (!request.matrices[index].same_call) std::fill(std::begin(is_in_call), std::end(is_in_call), false);
    for (int lane = 0; lane < kLaneCount; ++lane) {
      if (plan.matrices[index].strips[lane] == 0 || std::exchange(is_in_call[lane], true)) continue;
      ++(lane == static_cast<int>(Lane::host) ? calls.exchanges : calls.kernels);
    }
  }
  if (plan.ring_slot_bytes > 0)
    calls.kernels += static_cast<std::int64_t>(plan.pass_bytes[static_cast<int>(Lane::ring)] / plan.ring_slot_bytes);
  return calls;
}

}  // namespace

double host_speed(const LaneSpeeds& speeds, std::int32_t row_count, bool beside_ring) {
  const double one_row = beside_ring ? speeds.host_beside_ring : speeds.host;
  if (one_row <= 0.0 || speeds.host <= 0.0 || speeds.host_8_rows <= 0.0 || row_count <= 1) return one_row;
  // The time for a byte grows with the rows; where memory is the limit it hides the first of them.
  const double row_seconds = (1.0 / speeds.host_8_rows - 1.0 / speeds.host) / 7.0;
  return std::min(one_row, 1.0 / std::max(1.0 / speeds.host + row_seconds * (row_count - 1), 1.0 / one_row));
}

LaneTimes::LaneTimes(const PlanRequest& request, const ResidencyPlan& plan) {
  const LaneSpeeds& speeds = request.speeds;
  const auto reads = [&](Lane lane) { return plan.pass_bytes[static_cast<int>(lane)] > 0; };
  reads_cold_rows_ = reads(Lane::ring) || reads(Lane::zero_copy) || reads(Lane::host);
  const bool both = reads(Lane::ring) && reads(Lane::host);
  const Calls calls = count_calls(request, plan);
  const double exchange_seconds = static_cast<double>(calls.exchanges) * speeds.exchange_seconds;
  ring_ = seconds(plan, Lane::ring, both ? speeds.ring_beside_host : speeds.ring);
  zero_copy_ = seconds(plan, Lane::zero_copy, speeds.zero_copy);
  host_ = seconds(plan, Lane::host, host_speed(speeds, request.step_rows, both)) + exchange_seconds;
  device_ = seconds(plan, Lane::resident, speeds.resident) + exchange_seconds + speeds.pass_seconds +
            static_cast<double>(calls.kernels + request.small_kernels) * speeds.matrix_seconds;
  is_known_ = is_known_ && speeds.are_known();
}

double LaneTimes::seconds(const ResidencyPlan& plan, Lane lane, double speed) {
  const std::uint64_t bytes = plan.pass_bytes[static_cast<int>(lane)];
  if (bytes == 0) return 0.0;
  if (speed > 0.0) return static_cast<double>(bytes) / speed;
  is_known_ = false;
  return 0.0;
}

void LaneTimes::predict(ResidencyPlan& plan) const {
  plan.pass_seconds = 0.0;
  plan.bottleneck.clear();
  if (!is_known_) return;
  const std::pair<const char*, double> terms[] = {
      {"link (ring)", ring_}, {"link (zero-copy)", zero_copy_}, {"host cores", host_}, {"device memory", device_}};
  for (const auto& [name, time] : terms) {
    if (time <= plan.pass_seconds) continue;
    plan.pass_seconds = time;
    plan.bottleneck = name;
  }
  if (reads_cold_rows_) plan.pass_seconds *= kLanesMisfit;
}

}  // namespace genai
