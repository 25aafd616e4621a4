#include "engine/residency/lane_times.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace genai {
namespace {

// How much longer than predicted lane by lane a pass takes, in parts of that, where two memories are read at once:
// lanes do not begin and end together. Measured on an H200 from 2 % to 100 % cold: 0.00 to 0.12.
constexpr double kLanesMisfit = 0.06;
// Rows that host cores have in their caches, beside rows that they have not.
constexpr double kCacheGain = 2.7;
// What an exchange and a chunk of the ring cost the device besides waiting, in kernels: two and one, and that the
// kernels around them do not overlap. Fitted to 48 to 121 exchanges a pass, with 0 to 53 chunks.
constexpr double kExchangeKernels = 4.5;
constexpr double kChunkKernels = 5.0;
// Where one kernel serves many calls, what it costs to begin a call hides that many kernels' time of reading its rows.
constexpr double kKernelsAhead = 1.0;
// An exchange costs no more than this part of its call, where all of that overlapped: small models have small kernels.
constexpr double kOverlap = 0.9;

struct Call {
  double bytes[kLaneCount] = {};
  double kernels = 0.0;  // but those that read over the link
};

std::vector<Call> calls_of(const PlanRequest& request, const ResidencyPlan& plan) {
  std::vector<Call> calls;
  const auto slot_bytes = static_cast<double>(plan.ring_slot_bytes);
  double ring_bytes = slot_bytes;  // since a chunk was begun: the first rows of the ring begin one
  for (std::size_t index = 0; index < plan.matrices.size(); ++index) {
    const MatrixSize& size = request.matrices[index];
    if (!size.read_every_pass) continue;
    if (!size.same_call || calls.empty()) calls.emplace_back();
    Call& call = calls.back();
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const auto bytes = static_cast<double>(plan.matrices[index].strips[lane] * size.strip_bytes);
      const bool has_kernel = lane == static_cast<int>(Lane::resident) || lane == static_cast<int>(Lane::ring);
      if (has_kernel && bytes > 0.0 && call.bytes[lane] == 0.0) call.kernels += 1.0;
      if (lane == static_cast<int>(Lane::ring) && slot_bytes > 0.0) {
        ring_bytes += bytes;
        const double chunks = std::floor(ring_bytes / slot_bytes);
        call.kernels += kChunkKernels * chunks;
        ring_bytes -= chunks * slot_bytes;
      }
      call.bytes[lane] += bytes;
    }
  }
  return calls;
}

// Of the rows of host cores, what is still in their caches from the pass before. They are read in turn, so of twice of
// what caches hold nothing is.
double share_in_caches(const PlanRequest& request, const ResidencyPlan& plan) {
  const auto held = static_cast<double>(request.host_cache_bytes);
  return held > 0.0 ? std::clamp(2.0 - static_cast<double>(plan.pass_of(Lane::host)) / held, 0.0, 1.0) : 0.0;
}

// Whether one kernel serves many calls, with the exchanges of those that have resident rows.
bool has_shared_kernels(const PlanRequest& request, const ResidencyPlan& plan) {
  return request.calls_share_kernels && request.step_rows == 1 && plan.pass_of(Lane::ring) == 0 &&
         plan.pass_of(Lane::zero_copy) == 0;
}

// How much of a pass host memory is read while the device reads its own: by the ring, or by host cores.
double share_beside_device(const PlanRequest& request, const ResidencyPlan& plan) {
  if (plan.pass_of(Lane::ring) > 0) return 1.0;
  return plan.pass_of(Lane::host) > 0 ? 1.0 - share_in_caches(request, plan) : 0.0;
}

// By what was measured with one row and with many: each row adds as much.
double seconds_of_rows(double of_one, double of_many, std::int32_t row_count) {
  return of_one + (of_many - of_one) / (kManySpeedRows - 1) * (row_count - 1);
}

// Each row is handed over, and by each thread read.
double exchange_time(const LaneSpeeds& speeds, std::int32_t row_count) {
  if (speeds.exchange_8_rows_seconds <= 0.0) return speeds.exchange_seconds;
  return seconds_of_rows(speeds.exchange_seconds, speeds.exchange_8_rows_seconds, row_count);
}

struct Computing {
  double seconds = 0.0;
  double waiting_seconds = 0.0;  // of the device, for host cores
  double link_seconds = 0.0;     // of kernels that read over the link
};

// `cached_rate`: of host cores for rows that are in their caches.
Computing compute_calls(const PlanRequest& request, const ResidencyPlan& plan, double host_rate, double cached_rate) {
  const LaneSpeeds& speeds = request.speeds;
  const std::vector<Call> calls = calls_of(request, plan);
  const double exchange_seconds = exchange_time(speeds, request.step_rows);
  const double small_kernels = request.small_kernels / std::max(1.0, static_cast<double>(calls.size()));
  const auto most_ahead = static_cast<double>(request.host_ahead_bytes);
  const double stays = share_in_caches(request, plan);
  const bool shared_kernels = has_shared_kernels(request, plan);
  double ahead = 0.0;
  Computing computing{.seconds = speeds.pass_seconds};
  for (const Call& call : calls) {
    const double host_bytes = call.bytes[static_cast<int>(Lane::host)];
    const double reading = call.bytes[static_cast<int>(Lane::resident)] / speeds.resident;
    const double beginning = (call.kernels + small_kernels) * speeds.matrix_seconds;
    double device = reading + beginning;
    if (shared_kernels) device = std::max(beginning, device - kKernelsAhead * speeds.matrix_seconds);
    if (const double link_bytes = call.bytes[static_cast<int>(Lane::zero_copy)]; link_bytes > 0.0) {
      const double link_seconds = std::max(speeds.matrix_seconds, link_bytes / speeds.zero_copy);
      device += link_seconds;
      computing.link_seconds += link_seconds;
    }
    double host_reading = 0.0;
    double seconds = device;
    if (host_bytes > 0.0) {
      const double far_bytes = (1.0 - stays) * host_bytes;
      const double fetched = std::min(far_bytes, ahead);
      ahead -= fetched;
      const double far_reading = (far_bytes - fetched) / host_rate;
      if (shared_kernels && reading > 0.0) {  // rows in caches are computed while others are on their way
        host_reading = std::max(far_reading, host_bytes / cached_rate);
      } else {
        device += std::min(kExchangeKernels * speeds.matrix_seconds, kOverlap * device);
        host_reading = far_reading + (host_bytes - far_bytes + fetched) / cached_rate;
      }
      seconds = std::max(device, host_reading + exchange_seconds);
      computing.waiting_seconds += seconds - device;
    }
    computing.seconds += seconds;
    ahead = std::min(most_ahead, ahead + (seconds - host_reading) * host_rate);
  }
  return computing;
}

const char* bottleneck_of(const Computing& computing) {
  if (computing.waiting_seconds > computing.seconds / 4.0) return "host cores";
  return computing.link_seconds > computing.seconds / 2.0 ? "link (zero-copy)" : "device memory";
}

struct Term {
  const char* bottleneck;
  double seconds;
};

// `rate` may be unknown where there are no bytes.
double seconds_of(std::uint64_t bytes, double rate) { return bytes > 0 ? static_cast<double>(bytes) / rate : 0.0; }

// One processor does everything, so there are no exchanges either.
void predict_turns(const PlanRequest& request, ResidencyPlan& plan) {
  const LaneSpeeds& speeds = request.speeds;
  const double calls = static_cast<double>(calls_of(request, plan).size()) + request.small_kernels;
  const Term terms[] = {
      {"link (ring)", seconds_of(plan.pass_of(Lane::ring), speeds.ring)},
      {"link (zero-copy)", seconds_of(plan.pass_of(Lane::zero_copy), speeds.zero_copy)},
      {"host cores", seconds_of(plan.pass_of(Lane::host), host_speed(speeds, request.step_rows, false))},
      {"device memory", seconds_of(plan.pass_of(Lane::resident) + plan.pass_of(Lane::ring), speeds.resident)}};
  plan.pass_seconds = speeds.pass_seconds + calls * speeds.matrix_seconds;
  double longest = 0.0;
  for (const Term& term : terms) {
    plan.pass_seconds += term.seconds;
    if (term.seconds <= longest) continue;
    longest = term.seconds;
    plan.bottleneck = term.bottleneck;
  }
}

}  // namespace

double host_speed(const LaneSpeeds& speeds, std::int32_t row_count, bool beside_ring) {
  const double one_row = beside_ring ? speeds.host_beside_ring : speeds.host;
  if (one_row <= 0.0 || speeds.host <= 0.0 || speeds.host_8_rows <= 0.0 || row_count <= 1) return one_row;
  // The time for a byte grows with the rows; where memory is the limit it hides the first of them.
  const double byte_seconds = seconds_of_rows(1.0 / speeds.host, 1.0 / speeds.host_8_rows, row_count);
  return std::min(one_row, 1.0 / std::max(byte_seconds, 1.0 / one_row));
}

void predict_pass(const PlanRequest& request, ResidencyPlan& plan) {
  plan.pass_seconds = 0.0;
  plan.bottleneck.clear();
  const LaneSpeeds& speeds = request.speeds;
  const bool both = plan.pass_of(Lane::ring) > 0 && plan.pass_of(Lane::host) > 0;
  const double ring_rate = both ? speeds.ring_beside_host : speeds.ring;
  const double host_rate = host_speed(speeds, request.step_rows, both);
  const std::pair<Lane, double> rates[] = {
      {Lane::ring, ring_rate}, {Lane::zero_copy, speeds.zero_copy}, {Lane::host, host_rate}};
  for (const auto& [lane, rate] : rates)
    if (plan.pass_of(lane) > 0 && rate <= 0.0) return;
  if (!speeds.are_known()) return;
  if (request.lanes_take_turns) return predict_turns(request, plan);
  // Many rows of activations make arithmetic the limit, in caches too.
  const double cached_rate = host_rate < host_speed(speeds, 1, both) ? host_rate : kCacheGain * host_rate;
  const Computing computing = compute_calls(request, plan, host_rate, cached_rate);
  const Term terms[] = {{"link (ring)", seconds_of(plan.pass_of(Lane::ring), ring_rate)},
                        {bottleneck_of(computing), computing.seconds}};
  for (const auto& [name, time] : terms) {
    if (time <= plan.pass_seconds) continue;
    plan.pass_seconds = time;
    plan.bottleneck = name;
  }
  plan.pass_seconds *= 1.0 + kLanesMisfit * share_beside_device(request, plan);
}

}  // namespace genai
