// Page-locked host memory that is refused: pageable memory takes its place, that is said and counted, and the bits are
// the resident ones. And how much is locked where it is not refused.
#include "engine/error.h"
#include "engine/host/host_device.h"
#include "tests/catch.h"
#include "tests/generation_cases.h"
#include "tests/session_support.h"
#include "tests/shared_data.h"

namespace genai {
namespace {

using namespace test;

constexpr std::size_t kGranule = 4096;
constexpr SyntheticShape kShape{
    .layer_count = 2, .width = 128, .head_count = 2, .feed_forward_width = 256, .quantised = true};

HostDeviceOptions device_options(std::optional<std::uint64_t> pinned_capacity_bytes = std::nullopt) {
  HostDeviceOptions options;
  options.granule_bytes = kGranule;
  options.pinned_capacity_bytes = pinned_capacity_bytes;
  options.threads = 1;
  return options;
}

ModelOptions model_options(OffloadMode mode) {
  ModelOptions options;
  options.context = 128;
  options.max_rows = 16;
  options.offload = mode;
  if (mode != OffloadMode::off) options.forced_cold = {"ffn", "attn_q"};
  return options;
}

std::vector<std::uint64_t> hashes_of_two(DeviceModel& model) {
  std::vector<std::uint64_t> hashes = model.generate(prompt_of(40, 96), 20).step_hashes;
  const std::vector<std::uint64_t> more = model.generate(prompt_of(3, 96), 20).step_hashes;
  hashes.insert(hashes.end(), more.begin(), more.end());
  return hashes;
}

std::uint64_t whole_granules(std::uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

}  // namespace

TEST_CASE("where page-locked memory is refused, pageable memory gives the resident bits through the ring",
          "[pinning]") {
  const GgufImage image = synthetic_model(kShape).build();
  HostDevice resident_device(device_options());
  DeviceModel resident(resident_device, image, model_options(OffloadMode::off));
  CHECK(resident.model->pinning_refusal().empty());
  const std::vector<std::uint64_t> expected = hashes_of_two(resident);
  HostDevice free_device(device_options());
  DeviceModel unlimited(free_device, image, model_options(OffloadMode::stream));
  const std::uint64_t cold_bytes = unlimited.model->plan().cold_bytes();
  REQUIRE(cold_bytes > 4 * kGranule);
  CHECK_FALSE(unlimited.model->has_pageable_weights());
  CHECK(unlimited.model->arena().committed_pageable_bytes() == 0);

  for (const OffloadMode mode :
       {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split, OffloadMode::automatic}) {
    for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{kGranule}, cold_bytes - kGranule}) {
      INFO(offload_mode_name(mode) << ", " << limit << " bytes may be locked");
      HostDevice device(device_options(limit));
      HostDevice host(device_options());
      ModelOptions options = model_options(mode);
      options.host_device = &host;
      DeviceModel model(device, image, options);
      CHECK(model.model->pinning_refusal().find("page-locked host memory was refused") == 0);
      CHECK(model.model->has_pageable_weights());
      CHECK(model.model->plan().mode == OffloadMode::stream);
      CHECK(model.model->plan().of(Lane::ring) == model.model->plan().cold_bytes());
      CHECK(model.model->arena().committed_pageable_bytes() == whole_granules(model.model->weight_map().cold_bytes));
      CHECK(model.model->arena().committed_host_bytes() == 0);
      CHECK(hashes_of_two(model) == expected);
      const DecodeCounters& counters = model.loop->counters();
      CHECK(counters.captures == 0);  // no graph holds a copy from pageable memory
      CHECK(counters.eager_steps == counters.decode_steps);
      CHECK(counters.decode_traffic.copied_bytes == counters.decode_steps * model.model->plan().pass_of(Lane::ring));
    }
  }
}

TEST_CASE("matrices whose rows are looked up stay resident where memory cannot be locked", "[pinning]") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const GgufFile file(path->string());
  const auto hashes = [&](std::optional<std::uint64_t> limit, OffloadMode mode) {
    HostDevice device(device_options(limit));
    ModelOptions options = model_options(mode);
    if (mode != OffloadMode::off) options.forced_cold = {"weight"};
    Model model(file, read_model_config(file), device, options);
    const PlacedTensor* const embedding = model.weight_map().find("token_embd.weight");
    REQUIRE(embedding != nullptr);
    CHECK((embedding->plan.of(Lane::resident) > 0) == (mode == OffloadMode::off || limit.has_value()));
    DecodeLoop loop(model, {});
    const std::atomic<bool> interrupted{false};
    return loop
        .generate({.prompt = prompt_of(20, 320), .max_tokens = 20, .sampler = {}, .end_ids = {}}, {}, interrupted)
        .step_hashes;
  };
  const auto expected = hashes({}, OffloadMode::off);
  CHECK(hashes({}, OffloadMode::zero_copy) == expected);
  CHECK(hashes(0, OffloadMode::zero_copy) == expected);
}

TEST_CASE("a budget that holds the plan of pageable memory is asked for, and its lack explained", "[pinning]") {
  const GgufImage image = synthetic_model(kShape).build();
  HostDevice device(device_options(0));
  ModelOptions options = model_options(OffloadMode::zero_copy);
  options.forced_cold.clear();
  HostDevice unlimited(device_options());
  PlanRequest request = DeviceModel(unlimited, image, options).model->plan_request();
  request.budget_bytes.reset();
  options.budget_bytes = smallest_budget(request);  // no room for a ring
  CHECK_THROWS_AS(DeviceModel(device, image, options), BudgetError);
}

TEST_CASE("no more is locked than cold weights need, and a percent", "[pinning]") {
  SyntheticShape shape = kShape;
  shape.feed_forward_width = 2432;  // just over a megabyte is cold
  const GgufImage image = synthetic_model(shape).build();
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
    INFO(offload_mode_name(mode));
    HostDevice device(device_options());
    const DeviceModel model(device, image, model_options(mode));
    const std::uint64_t cold_bytes = model.model->plan().cold_bytes();
    REQUIRE(cold_bytes > std::uint64_t{1} << 20);
    const std::uint64_t pinned_bytes = model.model->arena().committed_host_bytes();
    CHECK(pinned_bytes >= cold_bytes);
    CHECK(pinned_bytes <= cold_bytes + cold_bytes / 100);
  }
}

TEST_CASE("a report of pageable memory counts it and says why", "[pinning]") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const auto report_with = [&](std::optional<std::uint64_t> limit) {
    SessionRun run;
    run.device = device_options(limit);
    run.placement.cold = {"ffn"};
    run.placement.offload = OffloadMode::zero_copy;
    const SessionOutcome outcome = run_session(path->string(), run);
    std::size_t said = 0;
    for (const std::string& warning : outcome.warnings) said += warning.find("page-locked") != std::string::npos;
    CHECK(said == (limit ? 1U : 0U));
    return outcome.report;
  };
  // Beside another reason, and by itself.
  SessionRun elsewhere;
  elsewhere.fallback_reason = "there is no driver";
  CHECK(run_session(path->string(), elsewhere).report["fallback_reason"] == "there is no driver");
  elsewhere.device = device_options(0);
  elsewhere.placement.cold = {"ffn"};
  const SessionOutcome both = run_session(path->string(), elsewhere);
  CHECK(both.report["fallback_reason"].get<std::string>().find("there is no driver; page-locked") == 0);
  CHECK(both.warnings.size() == 2);
  const nlohmann::json locked = report_with({});
  const nlohmann::json refused = report_with(0);
  CHECK(locked["output_hash"] == refused["output_hash"]);
  CHECK(locked["logits_hash"] == refused["logits_hash"]);
  CHECK(locked["pageable_bytes"] == 0);
  CHECK(locked["pinned_bytes"] >= locked["cold_bytes"]);
  CHECK_FALSE(locked.contains("fallback_reason"));
  CHECK(locked["fallbacks"] == 0);
  CHECK(refused["pinned_bytes"] == 0);
  CHECK(refused["pageable_bytes"] >= refused["cold_bytes"]);
  CHECK(refused["pageable_bytes"] < refused["cold_bytes"].get<std::uint64_t>() + kGranule);
  CHECK(refused["fallback_reason"].get<std::string>().find("page-locked host memory was refused") == 0);
  CHECK(refused["mode"] == "stream");
  CHECK(refused["fallbacks"] == 8);  // steps run call by call
  CHECK(refused["htod_bytes"] > 0);
}

}  // namespace genai
