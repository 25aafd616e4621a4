#include "engine/residency/residency_plan.h"

#include <algorithm>
#include <limits>
#include <random>
#include <tuple>

#include "engine/error.h"
#include "engine/residency/budget_translation.h"
#include "tests/catch.h"

namespace genai {
namespace {

PlanRequest small_request() {
  PlanRequest request;
  request.matrices = {{.name = "embedding", .strips = 100, .strip_bytes = 544, .read_every_pass = false}};
  for (int layer = 0; layer < 4; ++layer) {
    request.matrices.push_back({.name = "blk." + std::to_string(layer) + ".q", .strips = 13, .strip_bytes = 576});
    request.matrices.push_back({.name = "blk." + std::to_string(layer) + ".up", .strips = 40, .strip_bytes = 1152});
  }
  request.matrices.push_back({.name = "output", .strips = 100, .strip_bytes = 1088});
  request.fixed = {.vectors = 3000, .kv = 8192, .workspace = 4096};
  request.granule_bytes = 1024;
  return request;
}

constexpr OffloadMode kModes[] = {OffloadMode::automatic, OffloadMode::stream, OffloadMode::zero_copy,
                                  OffloadMode::host, OffloadMode::split};

bool uses_host_cores(const ResidencyPlan& plan) { return plan.of(Lane::host) > 0; }

LaneSpeeds speeds() {
  return {.resident = 4000, .ring = 55, .zero_copy = 50, .host = 120, .ring_beside_host = 48, .host_beside_ring = 106};
}

}  // namespace

TEST_CASE("without a budget everything is resident", "[residency_plan]") {
  const ResidencyPlan plan = make_residency_plan(small_request());
  CHECK(plan.mode == OffloadMode::off);
  CHECK(plan.cold_bytes() == 0);
  CHECK(plan.ring_slots == 0);
  CHECK(plan.committed_bytes == smallest_budget([] {
          PlanRequest request = small_request();
          request.mode = OffloadMode::off;
          return request;
        }()));
}

TEST_CASE(
    "more budget never takes a strip out of device memory, never commits beyond the budget, wastes less than a strip",
    "[residency_plan]") {
  for (const OffloadMode mode : kModes) {
    PlanRequest request = small_request();
    request.mode = mode;
    const std::uint64_t whole = make_residency_plan(request).committed_bytes;
    const std::uint64_t least = smallest_budget(request);
    INFO(offload_mode_name(mode));
    REQUIRE(least < whole);
    std::vector<std::int64_t> before(request.matrices.size(), 0);
    for (std::uint64_t budget = least; budget <= whole; budget += 128) {
      request.budget_bytes = budget;
      const ResidencyPlan plan = make_residency_plan(request);
      REQUIRE(plan.committed_bytes <= budget);
      for (std::size_t index = 0; index < before.size(); ++index) {
        // `auto` may change its mode on the way, and only some modes pay for a ring.
        if (mode != OffloadMode::automatic) REQUIRE(plan.matrices[index].of(Lane::resident) >= before[index]);
        before[index] = plan.matrices[index].of(Lane::resident);
        std::int64_t strips = 0;
        for (const std::int64_t of_lane : plan.matrices[index].strips) strips += of_lane;
        REQUIRE(strips == request.matrices[index].strips);
      }
      // The next step of the order is one strip of a matrix, or the whole table that passes only look rows up in.
      if (plan.mode != OffloadMode::off && plan.matrices.front().of(Lane::resident) == 0 && before.back() < 100)
        REQUIRE(budget - plan.committed_bytes < 1152 + 256 + request.granule_bytes);
    }
    request.budget_bytes = whole - 1;
    CHECK(make_residency_plan(request).mode != OffloadMode::off);
    request.budget_bytes = least;
    CHECK_NOTHROW(make_residency_plan(request));
    request.budget_bytes = least - 1;
    CHECK_THROWS_AS(make_residency_plan(request), BudgetError);
    request.budget_bytes = 0;
    CHECK_THROWS_AS(make_residency_plan(request), BudgetError);
    request.budget_bytes = 10 * whole;
    CHECK(make_residency_plan(request).mode == OffloadMode::off);
  }
}

TEST_CASE("what does not fit says what works, and that works", "[residency_plan]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::off;
  request.budget_bytes = 20000;
  try {
    make_residency_plan(request);
    FAIL("a plan that cannot exist");
  } catch (const BudgetError& error) {
    CHECK(std::string(error.what()).find("kv cache") != std::string::npos);
    request.budget_bytes = error.asked_bytes();
    CHECK(make_residency_plan(request).mode == OffloadMode::off);
  }
}

TEST_CASE("each mode puts cold rows where it says", "[residency_plan]") {
  PlanRequest request = small_request();
  request.speeds = speeds();
  for (const auto& [mode, lane] : std::vector<std::pair<OffloadMode, Lane>>{{OffloadMode::stream, Lane::ring},
                                                                            {OffloadMode::zero_copy, Lane::zero_copy},
                                                                            {OffloadMode::host, Lane::host}}) {
    request.mode = mode;
    request.budget_bytes = smallest_budget(request) + 20000;
    const ResidencyPlan plan = make_residency_plan(request);
    CHECK(plan.mode == mode);
    CHECK(plan.pass_of(lane) > 0);
    CHECK(plan.pass_of(lane) + plan.pass_of(Lane::resident) == 4 * (13 * 576 + 40 * 1152) + 100 * 1088);
    CHECK((plan.ring_slots > 0) == (lane == Lane::ring));
  }
  request.mode = OffloadMode::split;
  request.budget_bytes = smallest_budget(request) + 20000;
  const ResidencyPlan plan = make_residency_plan(request);
  const auto ring = static_cast<double>(plan.pass_of(Lane::ring));
  const auto host = static_cast<double>(plan.pass_of(Lane::host));
  CHECK(ring / (ring + host) == Approx(48.0 / (48.0 + 106.0)).margin(0.03));
}

TEST_CASE("auto takes the mode that is predicted fastest", "[residency_plan]") {
  PlanRequest request = small_request();
  request.speeds = speeds();
  request.budget_bytes = smallest_budget(request) + 30000;
  const ResidencyPlan best = make_residency_plan(request);
  CHECK(best.pass_seconds > 0.0);
  CHECK_FALSE(best.bottleneck.empty());
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
    request.mode = mode;
    if (smallest_budget(request) > *request.budget_bytes) continue;
    CHECK(make_residency_plan(request).pass_seconds >= best.pass_seconds);
  }
  request.mode = OffloadMode::automatic;
  request.has_host_lane = false;
  CHECK(make_residency_plan(request).of(Lane::host) == 0);
  request.mode = OffloadMode::split;
  CHECK_THROWS_AS(make_residency_plan(request), UsageError);
}

TEST_CASE("auto predicts what an H200 was measured to do, within 10 percent", "[residency_plan]") {
  // 14B in Q4_0 with speeds as probed there; tests/bench/runs has the reports.
  PlanRequest request;
  request.matrices.push_back({.name = "token_embd", .strips = 19008, .strip_bytes = 23040, .read_every_pass = false});
  for (int layer = 0; layer < 48; ++layer) {
    const std::string name = "blk." + std::to_string(layer);
    request.matrices.push_back({.name = name + ".q", .strips = 640, .strip_bytes = 23040});
    request.matrices.push_back({.name = name + ".k", .strips = 128, .strip_bytes = 23040, .same_call = true});
    request.matrices.push_back({.name = name + ".v", .strips = 128, .strip_bytes = 23040, .same_call = true});
    request.matrices.push_back({.name = name + ".o", .strips = 640, .strip_bytes = 23040});
    request.matrices.push_back({.name = name + ".gate_up", .strips = 3456, .strip_bytes = 23040});
    request.matrices.push_back({.name = name + ".down", .strips = 640, .strip_bytes = 62208});
  }
  request.matrices.push_back({.name = "output", .strips = 19008, .strip_bytes = 23040});
  request.granule_bytes = std::uint64_t{2} << 20;
  request.wide_passes_stream = true;
  request.small_kernels = 147;
  request.host_ahead_bytes = 14 * (std::uint64_t{512} << 10);
  request.speeds = {.resident = 3442e9,
                    .ring = 54.4e9,
                    .zero_copy = 51.4e9,
                    .host = 126e9,
                    .ring_beside_host = 42.5e9,
                    .host_beside_ring = 109.8e9,
                    .host_8_rows = 54.5e9,
                    .exchange_seconds = 8e-6,
                    .matrix_seconds = 2.9e-6,
                    .pass_seconds = 8e-6};
  for (const auto& [cold_gib, step_rows, measured] :
       {std::tuple{0.774, 1, 211.8}, {2.24, 1, 68.8}, {4.07, 1, 34.1}, {8.0, 1, 17.3}, {4.07, 8, 155.7 / 8}}) {
    request.step_rows = step_rows;
    request.budget_bytes =
        budget_for_cold_bytes(request, static_cast<std::uint64_t>(cold_gib * static_cast<double>(1 << 30)));
    const ResidencyPlan plan = make_residency_plan(request);
    INFO(cold_gib << " GiB cold, " << step_rows << " rows: " << 1.0 / plan.pass_seconds << " passes a second");
    CHECK(uses_host_cores(plan));
    CHECK(1.0 / plan.pass_seconds == Approx(measured).epsilon(0.1));
  }
}

TEST_CASE("where one processor does everything, the times of lanes add up", "[residency_plan]") {
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

TEST_CASE("what each exchange costs moves rows from host cores into the ring", "[residency_plan]") {
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

TEST_CASE("matrices of one call need one exchange, and wide steps leave more rows to the ring", "[residency_plan]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::host;
  request.speeds = speeds();
  request.speeds.exchange_seconds = 10.0;
  request.budget_bytes = smallest_budget(request);
  const double apart = make_residency_plan(request).pass_seconds;
  for (MatrixSize& matrix : request.matrices) matrix.same_call = matrix.name.ends_with(".up");
  CHECK(make_residency_plan(request).pass_seconds == Approx(apart - 4 * 10.0 * 1.07));

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

TEST_CASE("while little is cold, all of it is in large matrices", "[residency_plan]") {
  PlanRequest request = small_request();
  request.mode = OffloadMode::stream;
  const auto cold_of = [&](std::uint64_t cold_bytes) {
    request.budget_bytes = budget_for_cold_bytes(request, cold_bytes);
    const ResidencyPlan plan = make_residency_plan(request);
    std::int64_t small = 0, large = 0;
    for (std::size_t index = 1; index < request.matrices.size(); ++index)
      (request.matrices[index].name.ends_with(".q") ? small : large) +=
          request.matrices[index].strips - plan.matrices[index].of(Lane::resident);
    return std::pair(small, large);
  };
  const auto little = cold_of(54'400 + 25'000);  // the table that is looked up is cold first
  CHECK(little.first == 0);
  CHECK(little.second > 10);
  CHECK(cold_of(54'400 + 150'000).first > 0);
}

TEST_CASE("auto never predicts a slower pass for more budget, but for reading what came in", "[residency_plan]") {
  PlanRequest request = small_request();
  request.speeds = speeds();
  request.speeds.exchange_seconds = 1.0;
  request.speeds.matrix_seconds = 0.5;
  request.speeds.pass_seconds = 10.0;
  const std::uint64_t least = smallest_budget(request);
  const std::uint64_t whole = make_residency_plan(request).committed_bytes;
  request.budget_bytes = least;
  ResidencyPlan before = make_residency_plan(request);
  for (std::uint64_t budget = least; budget <= whole; budget += 512) {
    request.budget_bytes = budget;
    const ResidencyPlan plan = make_residency_plan(request);
    REQUIRE(plan.pass_seconds > 0.0);
    const double came_in =
        static_cast<double>(plan.of(Lane::resident)) - static_cast<double>(before.of(Lane::resident));
    const double read_seconds = std::max(0.0, came_in) / request.speeds.resident;
    // Whole strips are shared out between link and host: one too many costs what it takes to read.
    const double strip_seconds = 1152.0 / request.speeds.ring_beside_host;
    REQUIRE(plan.pass_seconds <= before.pass_seconds + 1.07 * (read_seconds + strip_seconds));
    before = plan;
  }
  CHECK(before.mode == OffloadMode::off);
}

TEST_CASE("a lane of unknown speed has no prediction, and auto leaves it alone where another is known",
          "[residency_plan]") {
  PlanRequest request = small_request();
  request.speeds = {.resident = 4000, .zero_copy = 50};
  request.budget_bytes = smallest_budget(request) + 30000;
  CHECK(make_residency_plan(request).mode == OffloadMode::zero_copy);
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::host, OffloadMode::split}) {
    request.mode = mode;
    const ResidencyPlan plan = make_residency_plan(request);
    CHECK(plan.pass_seconds == 0.0);
    CHECK(plan.bottleneck.empty());
  }
  request.mode = OffloadMode::automatic;
  request.speeds = {};
  CHECK(make_residency_plan(request).mode == OffloadMode::stream);
}

TEST_CASE("matrices asked to be cold are cold whatever the budget", "[residency_plan]") {
  PlanRequest request = small_request();
  for (const MatrixSize& matrix : request.matrices)
    if (matrix.name.ends_with(".up")) request.forced_cold.push_back(matrix.name);
  REQUIRE_FALSE(request.forced_cold.empty());
  const ResidencyPlan plan = make_residency_plan(request);
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    const bool up = request.matrices[index].name.ends_with(".up");
    CHECK(plan.matrices[index].of(Lane::resident) == (up ? 0 : request.matrices[index].strips));
  }
  request.mode = OffloadMode::off;
  CHECK_THROWS_AS(make_residency_plan(request), UsageError);
}

TEST_CASE("layers on the GPU are counted from the last, the output first of all", "[residency_plan]") {
  const PlanRequest request = small_request();
  constexpr std::uint64_t kLayer = 13 * 576 + 40 * 1152;
  constexpr std::uint64_t kOutput = 100 * 1088;
  CHECK(bytes_off_gpu(request, 4, 0) == 4 * kLayer + kOutput);
  CHECK(bytes_off_gpu(request, 4, 1) == 4 * kLayer);
  CHECK(bytes_off_gpu(request, 4, 2) == 3 * kLayer);
  CHECK(bytes_off_gpu(request, 4, 4) == kLayer);
  CHECK(bytes_off_gpu(request, 4, 5) == 0);
  CHECK(bytes_off_gpu(request, 4, std::numeric_limits<std::int32_t>::max()) == 0);
}

TEST_CASE("the budget for so many cold bytes is the smallest that leaves no more", "[residency_plan]") {
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
    PlanRequest request = small_request();
    request.mode = mode;
    const std::uint64_t least = smallest_budget(request);
    for (const std::uint64_t cold_bytes : {0u, 576u, 50'000u, 150'000u, 1'000'000u}) {
      const std::uint64_t budget = budget_for_cold_bytes(request, cold_bytes);
      INFO(offload_mode_name(mode) << ", " << cold_bytes << " cold: " << budget << " of at least " << least);
      request.budget_bytes = budget;
      CHECK(make_residency_plan(request).cold_bytes() <= cold_bytes);
      if (budget < least + request.granule_bytes) continue;
      request.budget_bytes = budget - request.granule_bytes;
      CHECK(make_residency_plan(request).cold_bytes() > cold_bytes);
    }
  }
}

}  // namespace genai
