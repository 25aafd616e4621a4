// The promise with models larger than the budget: every mode and budget gives the fully resident bits, and what a pass
// moves is what the plan said, to the byte.
#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/real_models.h"
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
          CHECK(traffic.copied_bytes == steps * plan.pass_of(Lane::ring));
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
  for (const char* kind : {"token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
                           "blk.0.", "output.weight"}) {  // the whole name of the output matrix, and a part of others
    for (const OffloadMode mode : kColdModes) {
      INFO(kind << " " << offload_mode_name(mode));
      HostModelOptions options = small_options();
      options.model.offload = mode;
      options.model.forced_cold = {kind};
      HostModel model(*path, options);
      CHECK(model.model->plan().cold_bytes() > 0);
      if (kind == std::string("output.weight")) {
        const PlacedTensor* const output = model.model->weight_map().find(kind);
        REQUIRE(output != nullptr);
        CHECK(model.model->plan().cold_bytes() == output->size_bytes);
      }
      CHECK(run_five(model) == expected);
    }
  }
  HostModelOptions options = small_options();
  options.model.forced_cold = {"ffn_down", "ffn_sideways"};
  CHECK_THROWS_AS(HostModel(*path, options), UsageError);
}

TEST_CASE("budgets of nothing, a granule, all but a byte, all and ten times all run or are explained", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel resident(*path, small_options());
  const std::vector<std::int32_t> prompt = arbitrary_tokens(9, kVocabulary, 21);
  const std::uint64_t expected = resident.generate(prompt, 5).logits_hash;
  const std::uint64_t whole = resident_budget(resident);
  for (const OffloadMode mode : {OffloadMode::automatic, OffloadMode::off, OffloadMode::stream, OffloadMode::zero_copy,
                                 OffloadMode::host, OffloadMode::split}) {
    for (const std::uint64_t budget : {std::uint64_t{0}, std::uint64_t{kGranule}, whole - 1, whole, 10 * whole}) {
      INFO("mode " << offload_mode_name(mode) << ", budget " << budget << " of " << whole);
      HostModelOptions options = small_options();
      options.model.offload = mode;
      options.model.budget_bytes = budget;
      const std::uint64_t least = smallest_budget(request_of(resident, mode));
      try {
        HostModel model(*path, options);
        CHECK(budget >= least);
        CHECK((model.model->plan().mode == OffloadMode::off) == (budget >= whole));
        CHECK(model.generate(prompt, 5).logits_hash == expected);
      } catch (const BudgetError& error) {
        CHECK(budget < least);
        CHECK(error.asked_bytes() == least);
        CHECK(error.available_bytes() == budget);
        CHECK(error.hint().find(std::to_string(least)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("every budget from the smallest to all, a granule apart, gives the resident bits and is used",
          "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel resident(*path, small_options());
  const std::vector<std::int32_t> prompt = arbitrary_tokens(9, kVocabulary, 22);
  const std::uint64_t expected = resident.generate(prompt, 4).logits_hash;
  const std::uint64_t whole = resident_budget(resident);
  for (const OffloadMode mode : kColdModes) {
    if (test::kSanitized && mode != OffloadMode::split) continue;
    for (std::uint64_t budget = smallest_budget(request_of(resident, mode)); budget < whole; budget += kGranule) {
      INFO("mode " << offload_mode_name(mode) << ", budget " << budget << " of " << whole);
      HostModelOptions options = small_options();
      options.model.offload = mode;
      options.model.budget_bytes = budget;
      HostModel model(*path, options);
      CHECK(model.generate(prompt, 4).logits_hash == expected);
      // What the cache does not need yet is kept for it; nothing else is left over, but for less than a strip, or a
      // table that comes in whole.
      const std::uint64_t planned = model.model->plan().committed_bytes;
      CHECK(planned <= budget);
      const PlacedTensor* const table = model.model->weight_map().find("token_embd.weight");
      REQUIRE(table != nullptr);
      if (table->plan.of(Lane::resident) > 0 || planned + table->size_bytes < budget)
        CHECK(budget - planned < 2 * kGranule);
    }
  }
}

TEST_CASE("SmolLM2 writes the resident tokens in every offload mode", "[residency][real]") {
  const auto path = test::smollm2();
  if (!path) GENAI_SKIP("SmolLM2 is not there: scripts/fetch_models.sh smollm2");
  HostModelOptions options;
  options.device.granule_bytes = std::size_t{64} << 10;
  options.device.threads = 2;
  options.model.context = 128;
  options.model.max_rows = 64;
  options.model.load_threads = 2;
  const std::vector<std::int32_t> prompt = arbitrary_tokens(20, 49152, 23);
  HostModel resident(*path, options);
  const Generation expected = resident.generate(prompt, 16);
  const std::uint64_t whole = resident_budget(resident);
  bool graph = true;
  for (const OffloadMode mode : kColdModes) {
    const std::uint64_t least = smallest_budget(request_of(resident, mode));
    for (const std::uint64_t budget : {least, (least + whole) / 2}) {
      if (budget == least && mode == OffloadMode::zero_copy) continue;  // host rows are read the same way here
      INFO("mode " << offload_mode_name(mode) << ", budget " << budget << ", graph " << graph);
      options.model.budget_bytes = budget;
      options.model.offload = mode;
      options.loop.graph = graph;
      graph = !graph;
      HostModel model(*path, options);
      CHECK(model.generate(prompt, 16).step_hashes == expected.step_hashes);
      const DecodeCounters& counters = model.loop->counters();
      for (int lane = 0; lane < kLaneCount; ++lane)
        CHECK(counters.decode_traffic.read_bytes[static_cast<std::size_t>(lane)] ==
              counters.decode_steps * model.model->plan().pass_bytes[lane]);
      CHECK(model.model->arena().committed_peak_bytes() <= budget);
    }
  }
}

TEST_CASE("a workspace does not grow with context times pass width", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const GgufFile file(path->string());
  const ModelConfig config = read_model_config(file);
  const WeightMap map = map_weights(config, file);
  HostDevice device(small_options().device);
  const auto bytes = [&](std::int32_t context, std::int32_t rows) {
    ModelOptions options;
    options.context = context;
    options.max_rows = rows;
    return make_plan_request(map, config, device, options).fixed.workspace;
  };
  const std::uint64_t small = bytes(4096, 512);
  CHECK(bytes(131072, 4096) + small <= bytes(131072, 512) + bytes(4096, 4096) + 4 * kGranule);
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

TEST_CASE("a long prompt is read through the ring in passes of any width, in every order of work", "[residency]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  options.model.context = 1200;
  options.model.max_rows = 512;
  const std::vector<std::int32_t> prompt = arbitrary_tokens(test::kSanitized ? 200 : 1100, kVocabulary, 24);
  const Generation expected = HostModel(*path, options).generate(prompt, 3);
  options.model.offload = OffloadMode::stream;
  options.model.forced_cold = {"weight"};
  for (const std::int32_t rows : {7, 64, 512}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      INFO("passes of " << rows << ", seed " << seed);
      options.model.max_rows = rows;
      options.device.seed = seed;
      HostModel model(*path, options);
      REQUIRE(model.model->weight_map().chunks(RingList::narrow).chunks.size() > 4);
      CHECK(model.generate(prompt, 3).step_hashes == expected.step_hashes);
    }
  }
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
