// The promise with models larger than the budget: every mode and budget gives the fully resident bits, and what a pass
// moves is what the plan said, to the byte.
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"

namespace genai {
namespace {

using test::arbitrary_tokens;
using test::HostModel;
using test::HostModelOptions;

constexpr int kVocabulary = 320;  // of the tiny models
constexpr std::size_t kGranule = std::size_t{16} << 10;

const std::vector<std::string> kTinyModels{"tiny-llama-Q4_0.gguf", "tiny-gemma3-Q4_K_M.gguf", "tiny-qwen2-Q8_0.gguf",
                                           "tiny-llama-F16.gguf"};
constexpr OffloadMode kColdModes[] = {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host,
                                      OffloadMode::split};

HostModelOptions small_options() {
  HostModelOptions options;
  options.device.granule_bytes = kGranule;
  options.device.threads = 1;
  options.model.context = 128;
  options.model.max_rows = 16;
  return options;
}

struct Outcome {
  std::vector<std::vector<std::uint64_t>> hashes;
  bool operator==(const Outcome&) const = default;
};

// Five generations in one process: the same prompt twice, another, a shorter one, a longer one.
Outcome run_five(HostModel& model) {
  Outcome outcome;
  for (const auto& [length, seed, count] :
       std::vector<std::tuple<int, std::uint32_t, int>>{{20, 1, 20}, {20, 1, 20}, {20, 2, 20}, {3, 3, 20}, {70, 4, 58}})
    outcome.hashes.push_back(model.generate(arbitrary_tokens(length, kVocabulary, seed), count).step_hashes);
  return outcome;
}

std::uint64_t resident_budget(HostModel& model) { return model.model->plan().committed_bytes; }

PlanRequest request_of(HostModel& model, OffloadMode mode) {
  PlanRequest request = model.model->plan_request();
  request.mode = mode;
  request.budget_bytes.reset();
  return request;
}

}  // namespace

TEST_CASE("every offload mode and budget gives the resident bits, and moves what was planned", "[residency]") {
  for (const std::string& name : kTinyModels) {
    const auto path = test::shared_data("reference/tiny/" + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    if (test::kSanitized && name != kTinyModels.front()) break;
    HostModel resident(*path, small_options());
    REQUIRE(resident.model->plan().mode == OffloadMode::off);
    const Outcome expected = run_five(resident);
    const std::uint64_t whole = resident_budget(resident);

    for (const OffloadMode mode : kColdModes) {
      const std::uint64_t least = smallest_budget(request_of(resident, mode));
      std::vector<std::uint64_t> budgets{whole, whole - 1, least};
      for (const int percent : {75, 50, 25})
        budgets.push_back(std::max(least, whole * static_cast<unsigned>(percent) / 100));
      for (const std::uint64_t budget : budgets) {
        for (const bool graph : {true, false}) {
          INFO(name << ", mode " << offload_mode_name(mode) << ", budget " << budget << " of " << whole << ", graph "
                    << graph);
          HostModelOptions options = small_options();
          options.model.budget_bytes = budget;
          options.model.offload = mode;
          options.loop.graph = graph;
          HostModel model(*path, options);
          const ResidencyPlan& plan = model.model->plan();
          CHECK((plan.mode == OffloadMode::off) == (budget >= whole));
          CHECK((plan.cold_bytes() > 0) == (budget < whole));
          CHECK(run_five(model) == expected);

          const PassTraffic& traffic = model.loop->counters().decode_traffic;
          const std::uint64_t steps = model.loop->counters().decode_steps;
          REQUIRE(steps == 57);
          for (int lane = 0; lane < kLaneCount; ++lane)
            CHECK(traffic.read_bytes[static_cast<std::size_t>(lane)] == steps * plan.pass_bytes[lane]);
          CHECK(traffic.copied_bytes == steps * plan.pass_bytes[static_cast<int>(Lane::ring)]);
          CHECK(traffic.copies == steps * model.model->weight_map().chunks(RingList::narrow).chunks.size());
          CHECK(model.model->arena().committed_peak_bytes() == plan.committed_bytes);
          CHECK(model.model->arena().committed_peak_bytes() <= budget);
        }
      }
      HostModelOptions options = small_options();
      options.model.budget_bytes = least - 1;
      options.model.offload = mode;
      CHECK_THROWS_AS(HostModel(*path, options), BudgetError);
    }
  }
}

TEST_CASE("each kind of matrix alone may be cold", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-qwen3-Q4_K_M.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel resident(*path, small_options());
  const Outcome expected = run_five(resident);
  for (const char* kind :
       {"token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "blk.0."}) {
    for (const OffloadMode mode : kColdModes) {
      INFO(kind << " " << offload_mode_name(mode));
      HostModelOptions options = small_options();
      options.model.offload = mode;
      options.model.forced_cold = {kind};
      HostModel model(*path, options);
      CHECK(model.model->plan().cold_bytes() > 0);
      CHECK(run_five(model) == expected);
    }
  }
}

TEST_CASE("shuffled schedules of the ring give the resident bits, and do not without its waits", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<std::int32_t> prompt = arbitrary_tokens(20, kVocabulary, 5);
  HostModel resident(*path, small_options());
  const Generation expected = resident.generate(prompt, 6);
  int wrong_without_waits = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    HostModelOptions options = small_options();
    options.device.seed = seed;
    options.model.offload = OffloadMode::stream;
    options.model.budget_bytes = smallest_budget(request_of(resident, OffloadMode::stream));
    HostModel model(*path, options);
    REQUIRE(model.model->weight_map().chunks(RingList::narrow).chunks.size() > 4);
    CHECK(model.generate(prompt, 6).step_hashes == expected.step_hashes);
    if (seed >= 10) continue;
    model.model->ring().omit_reader_waits_for_test();
    // Wrong text, or numbers that are none at all.
    try {
      wrong_without_waits += model.generate(prompt, 6).step_hashes != expected.step_hashes ? 1 : 0;
    } catch (const Error&) {
      ++wrong_without_waits;
    }
  }
  CHECK(wrong_without_waits > 0);
}

TEST_CASE("one changed byte of a cold weight changes the logits, in every cold lane", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<std::int32_t> prompt = arbitrary_tokens(12, kVocabulary, 13);
  for (const auto& [mode, lane] : std::vector<std::pair<OffloadMode, Lane>>{{OffloadMode::stream, Lane::ring},
                                                                            {OffloadMode::zero_copy, Lane::zero_copy},
                                                                            {OffloadMode::host, Lane::host}}) {
    HostModelOptions options = small_options();
    options.model.offload = mode;
    options.model.forced_cold = {"blk.1.ffn_down"};
    HostModel model(*path, options);
    const Generation before = model.generate(prompt, 20);
    const PlacedTensor* placed = model.model->weight_map().find("blk.1.ffn_down.weight");
    REQUIRE(placed != nullptr);
    std::byte* byte = model.device.memory().host_view(model.model->weight_address(*placed, lane));
    REQUIRE(byte != nullptr);
    *byte ^= std::byte{0x77};
    model.model->ring().prime();
    CHECK(model.generate(prompt, 20).logits_hash != before.logits_hash);
    *byte ^= std::byte{0x77};
    model.model->ring().prime();
    CHECK(model.generate(prompt, 20).logits_hash == before.logits_hash);
  }
}

TEST_CASE("evaluation of many rows under a ring gives the resident logits", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-gemma3-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const auto logits_of = [&](OffloadMode mode, std::int32_t logit_rows) {
    HostModelOptions options = small_options();
    options.model.offload = mode;
    options.model.max_logit_rows = logit_rows;
    if (mode != OffloadMode::off) options.model.forced_cold = {"weight"};
    HostModel model(*path, options);
    std::vector<float> all;
    model.loop->evaluate(arbitrary_tokens(40, kVocabulary, 6),
                         [&](std::int32_t, std::span<const float> logits, std::uint64_t) {
                           all.insert(all.end(), logits.begin(), logits.end());
                         });
    return all;
  };
  const std::vector<float> expected = logits_of(OffloadMode::off, 16);
  for (const std::int32_t logit_rows : {1, 3, 16}) {
    const std::vector<float> streamed = logits_of(OffloadMode::stream, logit_rows);
    REQUIRE(streamed.size() == expected.size());
    CHECK(std::memcmp(streamed.data(), expected.data(), expected.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("host memory that is too small for the cold weights is refused before it is taken", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  options.model.offload = OffloadMode::stream;
  options.model.forced_cold = {"weight"};
  options.model.host_available_bytes = 1000;
  CHECK_THROWS_AS(HostModel(*path, options), BudgetError);
}

}  // namespace genai
