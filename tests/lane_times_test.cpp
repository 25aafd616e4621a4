// How long a plan says that a pass takes, beside what was measured.
#include "engine/residency/lane_times.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "engine/residency/budget_translation.h"
#include "tests/catch.h"
#include "tests/plan_requests.h"

namespace genai {
namespace {

using test::small_request;
using test::speeds;

// Strips of a decoder's matrices, and bytes of one: of all but the last, and of that.
struct LayerShape {
  std::int64_t width, key_value, gate_up;
  std::int64_t strip_bytes, down_bytes;
};

void add_layers(PlanRequest& request, int count, const LayerShape& shape) {
  for (int layer = 0; layer < count; ++layer) {
    const auto add = [&](const char* name, std::int64_t strips, std::int64_t strip_bytes, bool same_call = false) {
      request.matrices.push_back({.name = "blk." + std::to_string(layer) + name,
                                  .strips = strips,
                                  .strip_bytes = strip_bytes,
                                  .same_call = same_call});
    };
    add(".q", shape.width, shape.strip_bytes);
    add(".k", shape.key_value, shape.strip_bytes, true);
    add(".v", shape.key_value, shape.strip_bytes, true);
    add(".o", shape.width, shape.strip_bytes);
    add(".gate_up", shape.gate_up, shape.strip_bytes);
    add(".down", shape.width, shape.down_bytes);
  }
}

// An H200 and 16 cores, of which 14 compute.
void set_machine(PlanRequest& request) {
  request.granule_bytes = std::uint64_t{2} << 20;
  request.wide_passes_stream = true;
  request.host_ahead_bytes = 14 * (std::uint64_t{512} << 10);
  request.host_cache_bytes = std::uint64_t{120} << 20;
}

// SmolLM2 135M in Q4_1, whose kernels are short and whose cold rows stay in the caches of the host.
PlanRequest small_model() {
  PlanRequest request;
  add_layers(request, 30, {.width = 72, .key_value = 24, .gate_up = 384, .strip_bytes = 3200, .down_bytes = 7680});
  request.matrices.push_back({.name = "output", .strips = 6144, .strip_bytes = 5440, .one_cold_lane = true});
  request.fixed = {.vectors = 140544, .kv = 25165824, .workspace = 27262976};
  set_machine(request);
  request.small_kernels = 93;
  return request;
}

// Cold strips of the small model's matrices, as a plan had them when it was measured.
struct ColdStrips {
  std::int64_t q, k, gate_up, output;  // as many of o and down as of q, of v as of k
};

// Passes a second with those in one lane.
double predicted_passes(const PlanRequest& request, Lane lane, const ColdStrips& cold) {
  ResidencyPlan plan;
  plan.ring_slot_bytes = 1645568;
  for (const MatrixSize& matrix : request.matrices) {
    const auto is = [&](const char* end) { return matrix.name.ends_with(end); };
    const std::int64_t strips = is(".k") || is(".v") ? cold.k
                                : is(".gate_up")     ? cold.gate_up
                                : is("output")       ? cold.output
                                                     : cold.q;
    MatrixPlan matrix_plan;
    for (const auto& [own, count] : {std::pair{lane, strips}, {Lane::resident, matrix.strips - strips}}) {
      matrix_plan.strips[static_cast<int>(own)] = count;
      plan.pass_bytes[static_cast<int>(own)] += static_cast<std::uint64_t>(count * matrix.strip_bytes);
    }
    plan.matrices.push_back(matrix_plan);
  }
  predict_pass(request, plan);
  return 1.0 / plan.pass_seconds;
}

// As probed on the machine whose measurements are of one kernel for many calls.
LaneSpeeds speeds_with_shared_kernels() {
  return {.resident = 3380.8e9,
          .ring = 54.35e9,
          .zero_copy = 51.44e9,
          .host = 115.07e9,
          .ring_beside_host = 42.06e9,
          .host_beside_ring = 98.31e9,
          .host_8_rows = 69.72e9,
          .exchange_seconds = 7.78e-6,
          .exchange_8_rows_seconds = 18.7e-6,
          .matrix_seconds = 2.954e-6,
          .pass_seconds = 7.94e-6};
}

}  // namespace

TEST_CASE("auto predicts what an H200 was measured to do, within 10 percent", "[lane_times]") {
  // 14B in Q4_0 with speeds as probed there; tests/bench/runs has the reports.
  PlanRequest request;
  request.matrices.push_back({.name = "token_embd", .strips = 19008, .strip_bytes = 23040, .read_every_pass = false});
  add_layers(request, 48, {.width = 640, .key_value = 128, .gate_up = 3456, .strip_bytes = 23040, .down_bytes = 62208});
  request.matrices.push_back({.name = "output", .strips = 19008, .strip_bytes = 23040});
  set_machine(request);
  request.small_kernels = 147;
  struct Cold {
    double gib;
    std::int32_t step_rows;
    double measured;
  };
  const auto check = [&](const Cold& cold) {
    request.step_rows = cold.step_rows;
    request.budget_bytes =
        budget_for_cold_bytes(request, static_cast<std::uint64_t>(cold.gib * static_cast<double>(1 << 30)));
    const ResidencyPlan plan = make_residency_plan(request);
    INFO(cold.gib << " GiB cold, " << cold.step_rows << " rows: " << 1.0 / plan.pass_seconds << " passes a second");
    CHECK(plan.of(Lane::host) > 0);
    CHECK(1.0 / plan.pass_seconds == Approx(cold.measured).epsilon(0.1));
  };
  // Every call a kernel of its own.
  request.speeds = {.resident = 3442e9,
                    .ring = 54.4e9,
                    .zero_copy = 51.4e9,
                    .host = 126e9,
                    .ring_beside_host = 42.5e9,
                    .host_beside_ring = 109.8e9,
                    .host_8_rows = 54.5e9,
                    .exchange_seconds = 8e-6,
                    .exchange_8_rows_seconds = 19.2e-6,
                    .matrix_seconds = 2.9e-6,
                    .pass_seconds = 8e-6};
  for (const Cold& cold : {Cold{0.774, 1, 211.8}, {8.0, 1, 17.3}}) check(cold);

  // On three other machines, of one kernel for many calls.
  request.calls_share_kernels = true;
  request.speeds = {.resident = 3540.3e9,
                    .ring = 54.19e9,
                    .zero_copy = 51.13e9,
                    .host = 108.77e9,
                    .ring_beside_host = 46.97e9,
                    .host_beside_ring = 95.15e9,
                    .host_8_rows = 65.96e9,
                    .exchange_seconds = 6.93e-6,
                    .exchange_8_rows_seconds = 16.6e-6,
                    .matrix_seconds = 2.819e-6,
                    .pass_seconds = 8.09e-6};
  for (const Cold& cold : {Cold{4.07, 1, 36.92}, {4.07, 8, 221.0 / 8}}) check(cold);
  // Exchanges as all cores take part in them.
  request.speeds = {.resident = 3527.6e9,
                    .ring = 54.54e9,
                    .zero_copy = 51.57e9,
                    .host = 121.89e9,
                    .ring_beside_host = 45.72e9,
                    .host_beside_ring = 111.21e9,
                    .host_8_rows = 75.41e9,
                    .exchange_seconds = 7.544e-6,
                    .exchange_8_rows_seconds = 24.81e-6,
                    .matrix_seconds = 2.916e-6,
                    .pass_seconds = 7.825e-6};
  for (const Cold& cold : {Cold{0.784, 1, 262.1}, {4.17, 1, 33.48}, {7.933, 1, 17.49}, {4.07, 8, 222.7 / 8}})
    check(cold);
  request.speeds = speeds_with_shared_kernels();
  for (const Cold& cold : {Cold{0.784, 1, 254.1}, {7.933, 1, 17.39}}) check(cold);
  request.budget_bytes.reset();
  CHECK(1.0 / make_residency_plan(request).pass_seconds == Approx(353.1).epsilon(0.1));
}

TEST_CASE("modes of a small model are predicted as an H200 was measured, within 10 percent", "[lane_times]") {
  PlanRequest request = small_model();
  request.speeds = {.resident = 3473e9,
                    .ring = 52.9e9,
                    .zero_copy = 51.3e9,
                    .host = 66.8e9,
                    .ring_beside_host = 44.0e9,
                    .host_beside_ring = 93.7e9,
                    .host_8_rows = 41.3e9,
                    .exchange_seconds = 9.2e-6,
                    .matrix_seconds = 2.87e-6,
                    .pass_seconds = 9.5e-6};
  struct Measured {
    Lane lane;
    ColdStrips cold;
    double passes;  // a second
  };
  for (const Measured& measured : {Measured{Lane::ring, {10, 4, 128, 1182}, 756.9},
                                   {Lane::zero_copy, {4, 2, 100, 661}, 858.1},
                                   {Lane::host, {10, 4, 128, 1182}, 800.4},
                                   {Lane::ring, {28, 10, 199, 2557}, 657.9},
                                   {Lane::zero_copy, {21, 7, 174, 2079}, 696.8},
                                   {Lane::host, {28, 10, 199, 2557}, 733.3},
                                   {Lane::ring, {58, 20, 324, 4986}, 521.2},
                                   {Lane::zero_copy, {52, 17, 298, 4471}, 463.4},
                                   {Lane::host, {58, 20, 324, 4986}, 638.4}}) {
    INFO(lane_name(measured.lane) << " with " << measured.cold.gate_up << " cold strips of gate and up");
    CHECK(predicted_passes(request, measured.lane, measured.cold) == Approx(measured.passes).epsilon(0.1));
  }
}

TEST_CASE("host rows of a small model inside of kernels are predicted likewise", "[lane_times]") {
  PlanRequest request = small_model();
  request.calls_share_kernels = true;
  request.speeds = speeds_with_shared_kernels();
  CHECK(predicted_passes(request, Lane::host, {7, 3, 114, 920}) == Approx(1009.0).epsilon(0.1));
  CHECK(predicted_passes(request, Lane::host, {26, 9, 193, 2456}) == Approx(914.0).epsilon(0.1));
}

TEST_CASE("where one processor does everything, the times of lanes add up", "[lane_times]") {
  PlanRequest request = small_request();
  request.speeds = {.resident = 40,
                    .ring = 20,
                    .zero_copy = 30,
                    .host = 35,
                    .ring_beside_host = 20,
                    .host_beside_ring = 35,
                    .matrix_seconds = 0.5,
                    .pass_seconds = 3};
  request.lanes_take_turns = true;
  const double calls = static_cast<double>(request.matrices.size()) - 1.0;  // not the table
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
    INFO(offload_mode_name(mode));
    request.mode = mode;
    request.budget_bytes.reset();
    request.budget_bytes = smallest_budget(request) + 20000;
    const ResidencyPlan plan = make_residency_plan(request);
    const auto bytes = [&](Lane lane) { return static_cast<double>(plan.pass_of(lane)); };
    const double seconds = 3.0 + calls * 0.5 + (bytes(Lane::resident) + bytes(Lane::ring)) / 40.0 +
                           bytes(Lane::ring) / 20.0 + bytes(Lane::zero_copy) / 30.0 + bytes(Lane::host) / 35.0;
    CHECK(plan.pass_seconds == Approx(seconds));
  }
  request.mode = OffloadMode::automatic;
  CHECK(make_residency_plan(request).mode == OffloadMode::host);
}

TEST_CASE("what each exchange costs moves rows from host cores into the ring", "[lane_times]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::split;
  request.speeds = speeds();
  request.budget_bytes = smallest_budget(request) + 20000;
  const auto ring_share = [&] {
    const ResidencyPlan plan = make_residency_plan(request);
    const auto ring = static_cast<double>(plan.pass_of(Lane::ring));
    return ring / (ring + static_cast<double>(plan.pass_of(Lane::host)));
  };
  const double share = ring_share();
  CHECK(share == Approx(48.0 / (48.0 + 106.0)).margin(0.03));
  request.speeds.exchange_seconds = 100.0;
  CHECK(ring_share() > share + 0.05);
  request.speeds.exchange_seconds = 1e6;
  CHECK(ring_share() == 1.0);
}

TEST_CASE("an exchange inside of a kernel costs the device nothing but waiting", "[lane_times]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::host;
  request.speeds = speeds();
  request.speeds.host = request.speeds.host_beside_ring = 1e9;  // so that nothing waits for host cores
  request.speeds.matrix_seconds = 1.0;
  request.budget_bytes = smallest_budget(request) + 60000;
  const double apart = make_residency_plan(request).pass_seconds;
  request.calls_share_kernels = true;
  const double inside = make_residency_plan(request).pass_seconds;
  CHECK(inside < apart);
  request.step_rows = 2;  // then every call is a kernel of its own
  CHECK(make_residency_plan(request).pass_seconds == Approx(apart));
  request.step_rows = 1;
  request.mode = OffloadMode::stream;
  const double stream = make_residency_plan(request).pass_seconds;
  request.calls_share_kernels = false;
  CHECK(make_residency_plan(request).pass_seconds == stream);
}

TEST_CASE("matrices of one call need one exchange, and wide steps leave more rows to the ring", "[lane_times]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::host;
  request.speeds = speeds();
  request.speeds.exchange_seconds = 10.0;
  request.budget_bytes = smallest_budget(request);
  const double apart = make_residency_plan(request).pass_seconds;
  for (MatrixSize& matrix : request.matrices) matrix.same_call = matrix.name.ends_with(".up");
  CHECK(make_residency_plan(request).pass_seconds == Approx(apart - 4 * 10.0 * 1.06));

  request.mode = OffloadMode::split;
  request.budget_bytes = smallest_budget(request) + 20000;
  request.speeds.exchange_seconds = 0.0;
  request.speeds.host_8_rows = 30;
  const auto ring_bytes = [&](std::int32_t rows) {
    request.step_rows = rows;
    return make_residency_plan(request).pass_of(Lane::ring);
  };
  CHECK(ring_bytes(4) > ring_bytes(1));
  CHECK(ring_bytes(8) > ring_bytes(4));
}

TEST_CASE("each row adds as much to an exchange", "[lane_times]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::host;
  request.speeds = test::speeds();
  request.speeds.exchange_seconds = 10.0;
  request.budget_bytes = smallest_budget(request);
  const auto pass_seconds = [&](double exchange_8_rows_seconds, std::int32_t rows) {
    request.speeds.exchange_8_rows_seconds = exchange_8_rows_seconds;
    request.step_rows = rows;
    return make_residency_plan(request).pass_seconds;
  };
  const double of_one = pass_seconds(24.0, 1);
  CHECK(pass_seconds(0.0, 8) == Approx(of_one));  // unknown
  const double row_seconds = pass_seconds(24.0, 2) - of_one;
  CHECK(row_seconds > 0.0);
  CHECK(pass_seconds(24.0, 8) == Approx(of_one + 7 * row_seconds));
}

}  // namespace genai
