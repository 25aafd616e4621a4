#include "engine/residency/residency_plan.h"

#include <algorithm>
#include <limits>
#include <random>
#include <tuple>

#include "engine/error.h"
#include "engine/residency/budget_translation.h"
#include "tests/catch.h"
#include "tests/plan_requests.h"

namespace genai {
namespace {

using test::small_request;
using test::speeds;

constexpr OffloadMode kModes[] = {OffloadMode::automatic, OffloadMode::stream, OffloadMode::zero_copy,
                                  OffloadMode::host, OffloadMode::split};

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

TEST_CASE("small matrices are cold only where nearly all of the large ones is", "[residency_plan]") {
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
  CHECK(cold_of(54'400 + 150'000).first == 0);
  CHECK(cold_of(54'400 + 310'000).first > 0);
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
    REQUIRE(plan.pass_seconds <= before.pass_seconds + 1.06 * (read_seconds + strip_seconds));
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
