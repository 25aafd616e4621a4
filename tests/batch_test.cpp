// Texts in a batch are the texts that each request yields alone, whatever the width, the order, the memory, and who
// leaves or enters meanwhile; and a step moves as many bytes for sixteen rows as for one.
#include "engine/decode/batch.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

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
constexpr int kLongText = test::kSanitized ? 40 : 256;
const std::vector<std::string> kTinyModels{"tiny-llama-Q4_0.gguf", "tiny-gemma3-Q4_K_M.gguf", "tiny-qwen2-Q8_0.gguf",
                                           "tiny-llama-F16.gguf"};

HostModelOptions batch_options(std::int32_t width) {
  HostModelOptions options;
  options.device.granule_bytes = std::size_t{16} << 10;
  options.device.threads = 1;
  options.model.context = kLongText + 80;
  options.model.max_rows = 16;
  options.model.sequence_count = width;
  return options;
}

SamplerSettings sampled(std::uint64_t seed) {
  SamplerSettings settings;
  settings.temperature = 0.9;
  settings.repeat_penalty = 1.1;
  settings.seed = seed;
  return settings;
}

GenerationRequest request(int prompt_tokens, std::uint32_t prompt_seed, int max_tokens,
                          const SamplerSettings& sampler = {}) {
  return {.prompt = arbitrary_tokens(prompt_tokens, kVocabulary, prompt_seed),
          .max_tokens = max_tokens,
          .sampler = sampler,
          .end_ids = {}};
}

// Long and short, greedy and sampled, two of them equal: rows leave and enter all the time.
std::vector<GenerationRequest> mixed_requests() {
  return {request(20, 1, kLongText),
          request(3, 2, 5),
          request(70, 3, kLongText, sampled(7)),
          request(1, 4, kLongText / 2),
          request(33, 5, 1),
          request(3, 2, 5),
          request(64, 6, kLongText, sampled(8)),
          request(8, 7, 0),
          request(20, 1, kLongText, sampled(9)),
          request(17, 8, kLongText - 3),
          request(70, 3, kLongText, sampled(7)),
          request(5, 9, 12)};
}

bool equal(const Generation& a, const Generation& b) {
  return a.tokens == b.tokens && a.step_hashes == b.step_hashes && a.logits_hash == b.logits_hash &&
         a.finish == b.finish && a.end_token == b.end_token;
}

std::vector<Generation> each_alone(const std::filesystem::path& path, const std::vector<GenerationRequest>& requests) {
  HostModel model(path, batch_options(1));
  std::vector<Generation> generations;
  const std::atomic<bool> never{false};
  for (const GenerationRequest& each : requests) generations.push_back(model.loop->generate(each, {}, never));
  return generations;
}

void check_equal(const std::vector<Generation>& found, const std::vector<Generation>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("request " << i);
    CHECK(equal(found[i], expected[i]));
  }
}

void check_traffic(HostModel& model) {
  const DecodeCounters& counters = model.loop->counters();
  const ResidencyPlan& plan = model.model->plan();
  for (int lane = 0; lane < kLaneCount; ++lane)
    CHECK(counters.decode_traffic.read_bytes[static_cast<std::size_t>(lane)] ==
          counters.decode_steps * plan.pass_bytes[lane]);
  CHECK(counters.decode_traffic.copied_bytes == counters.decode_steps * plan.pass_of(Lane::ring));
  CHECK(counters.decode_traffic.copies ==
        counters.decode_steps * model.model->weight_map().chunks(RingList::narrow).chunks.size());
}

}  // namespace

TEST_CASE("every row of a batch is what it is alone, for every width, mode, budget and graph setting", "[batch]") {
  for (const std::string& name : kTinyModels) {
    const auto path = test::shared_data("reference/tiny/" + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    if (test::kSanitized && name != kTinyModels.front()) break;
    const std::vector<GenerationRequest> requests = mixed_requests();
    const std::vector<Generation> expected = each_alone(*path, requests);
    REQUIRE(expected[0].tokens.size() == static_cast<std::size_t>(kLongText));
    REQUIRE(expected[2].logits_hash != expected[6].logits_hash);
    for (const std::int32_t width : {1, 2, 3, 4, 8}) {
      for (const OffloadMode mode :
           {OffloadMode::off, OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
        // Without a graph every width of one model, and one width of the others: the calls are the same ones.
        for (const bool graph : {true, false}) {
          if (test::kSanitized && (width > 3 || mode == OffloadMode::zero_copy || mode == OffloadMode::host)) continue;
          if (!graph && width != 4 && name != kTinyModels.front()) continue;
          HostModelOptions options = batch_options(width);
          options.loop.graph = graph;
          options.model.offload = mode;
          if (mode != OffloadMode::off) {
            PlanRequest plan_request = HostModel(*path, batch_options(width)).model->plan_request();
            const std::uint64_t whole = make_residency_plan(plan_request).committed_bytes;
            plan_request.mode = mode;
            plan_request.budget_bytes.reset();
            const std::uint64_t least = smallest_budget(plan_request);
            options.model.budget_bytes = width % 2 == 0 ? least : (least + whole) / 2;
          }
          INFO(name << ", width " << width << ", mode " << offload_mode_name(mode) << ", graph " << graph);
          HostModel model(*path, options);
          check_equal(model.generate_all(requests), expected);
          check_traffic(model);
          if (mode != OffloadMode::off) CHECK(model.model->plan().cold_bytes() > 0);
          CHECK(model.model->arena().committed_peak_bytes() <= model.model->plan().committed_bytes);
        }
      }
    }
  }
}

TEST_CASE("the order of the requests changes no row of a batch", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  std::vector<GenerationRequest> requests = mixed_requests();
  std::vector<Generation> expected = each_alone(*path, requests);
  HostModel model(*path, batch_options(4));
  for (int turn = 0; turn < 3; ++turn) {
    check_equal(model.generate_all(requests), expected);  // the later ones meet slots with other rows' leavings
    std::rotate(requests.begin(), requests.begin() + 5, requests.end());
    std::rotate(expected.begin(), expected.begin() + 5, expected.end());
  }
  std::reverse(requests.begin(), requests.end());
  std::reverse(expected.begin(), expected.end());
  check_equal(model.generate_all(requests), expected);
}

TEST_CASE("SmolLM2 generates the same texts in a batch of four as alone", "[batch][real]") {
  const auto path = test::smollm2();
  if (!path) GENAI_SKIP("SmolLM2 is not there: scripts/fetch_models.sh smollm2");
  std::vector<GenerationRequest> requests;
  for (const auto& [prompt_tokens, max_tokens] :
       std::vector<std::pair<int, int>>{{30, 256}, {70, 256}, {5, 100}, {12, 256}, {40, 156}})
    requests.push_back({.prompt = arbitrary_tokens(prompt_tokens, 49152, static_cast<std::uint32_t>(prompt_tokens)),
                        .max_tokens = max_tokens,
                        .sampler = prompt_tokens == 12 ? sampled(3) : SamplerSettings{},
                        .end_ids = {}});
  HostModelOptions options;
  options.device.threads = 2;
  options.model.context = 512;
  options.model.max_rows = 64;
  options.model.load_threads = 2;
  std::vector<Generation> expected;
  {
    HostModel alone(*path, options);
    const std::atomic<bool> never{false};
    for (const GenerationRequest& each : requests) expected.push_back(alone.loop->generate(each, {}, never));
  }
  options.model.sequence_count = 4;
  options.model.offload = OffloadMode::stream;
  options.model.forced_cold = {"ffn"};
  HostModel model(*path, options);
  check_equal(model.generate_all(requests), expected);
  check_traffic(model);
}

TEST_CASE("what a step copies does not depend on the width of a batch", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  std::optional<std::uint64_t> step_bytes, step_copies;
  for (const std::int32_t width : {1, 2, 4, 8, 16}) {
    INFO("width " << width);
    HostModelOptions options = batch_options(width);
    options.model.offload = OffloadMode::stream;
    options.model.forced_cold = {"ffn"};
    HostModel model(*path, options);
    const std::vector<GenerationRequest> requests(static_cast<std::size_t>(width), request(9, 1, 21));
    model.generate_all(requests);
    const DecodeCounters& counters = model.loop->counters();
    CHECK(counters.decode_steps == 20);
    CHECK(counters.generated_tokens == 21u * static_cast<unsigned>(width));
    CHECK(counters.prompt_tokens == 9u * static_cast<unsigned>(width));
    CHECK(counters.prefill_passes == static_cast<unsigned>(width));
    CHECK(counters.inter_token_seconds.size() == 20u * static_cast<unsigned>(width));
    const PassTraffic& traffic = counters.decode_traffic;
    REQUIRE(traffic.copied_bytes > 0);
    if (!step_bytes) step_bytes = traffic.copied_bytes, step_copies = traffic.copies;
    CHECK(traffic.copied_bytes == step_bytes);
    CHECK(traffic.copies == step_copies);
  }
}

TEST_CASE("a width is captured once: rows that enter and leave need no new graph", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, batch_options(8));
  // Eight rows, of which one leaves after each step.
  std::vector<GenerationRequest> requests;
  for (int row = 0; row < 8; ++row) requests.push_back(request(5, static_cast<std::uint32_t>(row), row + 2));
  model.generate_all(requests);
  CHECK(model.loop->counters().captures == 4);  // widths 8, 4, 2, 1
  CHECK(model.loop->counters().decode_steps == 8);
  CHECK(model.loop->counters().replays == 8);
  CHECK(model.loop->counters().eager_steps == 0);
  // Twenty more, which keep all slots taken but in the end.
  requests.clear();
  for (int row = 0; row < 20; ++row) requests.push_back(request(5, static_cast<std::uint32_t>(row), 3 + row % 4));
  model.generate_all(requests);
  CHECK(model.loop->counters().captures == 0);
  CHECK(model.loop->counters().replays == model.loop->counters().decode_steps);

  HostModelOptions options = batch_options(8);
  options.loop.graph = false;
  HostModel eager(*path, options);
  eager.generate_all(requests);
  CHECK(eager.loop->counters().captures == 0);
  CHECK(eager.loop->counters().replays == 0);
  CHECK(eager.loop->counters().eager_steps == eager.loop->counters().decode_steps);
}

TEST_CASE("a step is as wide as its bucket and never wider than the slots", "[batch]") {
  CHECK(step_width(1, 16) == 1);
  CHECK(step_width(2, 16) == 2);
  CHECK(step_width(3, 16) == 4);
  CHECK(step_width(9, 16) == 16);
  CHECK(step_width(3, 3) == 3);
  CHECK(step_width(5, 6) == 6);
}

TEST_CASE("one changed byte of a cold weight changes every row of a batch", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  for (const auto& [mode, lane] : std::vector<std::pair<OffloadMode, Lane>>{{OffloadMode::stream, Lane::ring},
                                                                            {OffloadMode::zero_copy, Lane::zero_copy},
                                                                            {OffloadMode::host, Lane::host}}) {
    INFO(offload_mode_name(mode));
    HostModelOptions options = batch_options(4);
    options.model.offload = mode;
    options.model.forced_cold = {"blk.1.ffn_down"};
    HostModel model(*path, options);
    std::vector<GenerationRequest> requests;
    for (std::uint32_t row = 0; row < 4; ++row) requests.push_back(request(12, row, 20));
    const std::vector<Generation> before = model.generate_all(requests);
    const PlacedTensor* placed = model.model->weight_map().find("blk.1.ffn_down.weight");
    REQUIRE(placed != nullptr);
    std::byte* byte = model.device.memory().host_view(model.model->weight_address(*placed, lane));
    REQUIRE(byte != nullptr);
    *byte ^= std::byte{0x77};
    model.model->ring().prime();
    const std::vector<Generation> damaged = model.generate_all(requests);
    for (std::size_t row = 0; row < 4; ++row) CHECK(damaged[row].logits_hash != before[row].logits_hash);
    *byte ^= std::byte{0x77};
    model.model->ring().prime();
    check_equal(model.generate_all(requests), before);
  }
}

TEST_CASE("shuffled device schedules give the batch's rows their bits", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-gemma3-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  std::vector<GenerationRequest> requests;
  for (std::uint32_t row = 0; row < 5; ++row)
    requests.push_back(request(6 + static_cast<int>(row), row, 4 + static_cast<int>(row), sampled(row)));
  const std::vector<Generation> expected = each_alone(*path, requests);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    HostModelOptions options = batch_options(3);
    options.device.seed = seed;
    options.model.offload = OffloadMode::stream;
    options.model.forced_cold = {"ffn", "attn"};
    HostModel shuffled(*path, options);
    check_equal(shuffled.generate_all(requests), expected);
  }
}

TEST_CASE("the cache of every sequence counts in the plan and in the budget", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const auto plan_request = [&](std::int32_t width) {
    HostModel model(*path, batch_options(width));
    return model.model->plan_request();
  };
  const PlanRequest one = plan_request(1);
  const PlanRequest eight = plan_request(8);
  CHECK(eight.fixed.kv == 8 * one.fixed.kv);
  CHECK(smallest_budget(eight) - smallest_budget(one) == 7 * one.fixed.kv);
  HostModelOptions options = batch_options(8);
  options.model.budget_bytes = smallest_budget(eight) - 1;
  options.model.offload = OffloadMode::off;
  CHECK_THROWS_AS(HostModel(*path, options), BudgetError);
}

TEST_CASE("a batch tells of each token once and in order, and of each end once", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<GenerationRequest> requests = mixed_requests();
  HostModel model(*path, batch_options(4));
  std::map<std::size_t, std::vector<std::int32_t>> seen;
  std::set<std::size_t> finished;
  BatchEvents events;
  events.on_token = [&](std::size_t index, std::int32_t token) {
    CHECK(finished.count(index) == 0);
    seen[index].push_back(token);
    return index != 0 || seen[index].size() < 7;  // the first one is stopped by its reader
  };
  events.on_finished = [&](std::size_t index, const Generation&) { CHECK(finished.insert(index).second); };
  const std::vector<Generation> generations = model.generate_all(requests, events);
  CHECK(finished.size() == requests.size());
  for (std::size_t index = 0; index < requests.size(); ++index) CHECK(seen[index] == generations[index].tokens);
  CHECK(generations[0].tokens.size() == 7);
  CHECK(generations[0].step_hashes.size() == 7);
  CHECK(generations[0].finish == FinishReason::stop);
  CHECK(generations[9].finish == FinishReason::length);
  const std::vector<Generation> alone = each_alone(*path, requests);
  for (std::size_t index = 1; index < requests.size(); ++index) CHECK(equal(generations[index], alone[index]));
}

TEST_CASE("an end token ends its own row only", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  std::vector<GenerationRequest> requests{request(10, 1, 30), request(10, 2, 30), request(10, 3, 30)};
  std::vector<Generation> alone = each_alone(*path, requests);
  requests[1].end_ids = {alone[1].tokens[11]};
  alone = each_alone(*path, requests);
  REQUIRE(alone[1].finish == FinishReason::end_of_generation);
  HostModel model(*path, batch_options(2));
  check_equal(model.generate_all(requests), alone);
}

TEST_CASE("an interrupt ends all rows after what they have shown, and those that wait without a token", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<GenerationRequest> requests(5, request(10, 1, 30));
  HostModel model(*path, batch_options(2));
  std::atomic<bool> interrupted{false};
  std::map<std::size_t, std::size_t> shown;
  std::size_t finished = 0;
  BatchEvents events;
  events.on_token = [&](std::size_t index, std::int32_t) {
    if (++shown[index] == 6) interrupted = true;
    return true;
  };
  events.on_finished = [&](std::size_t, const Generation&) { ++finished; };
  const std::vector<Generation> generations = model.loop->generate_all(requests, events, interrupted);
  CHECK(finished == 5);
  for (std::size_t index = 0; index < 5; ++index) {
    CHECK(generations[index].finish == FinishReason::interrupted);
    CHECK(generations[index].tokens.size() == shown[index]);
    CHECK(generations[index].step_hashes.size() == shown[index]);
    CHECK(shown[index] == (index < 2 ? 6 : 0));
  }
  // No slot is lost: the same model goes on.
  check_equal(model.generate_all(requests), each_alone(*path, requests));
}

TEST_CASE("a batch that admits no more ends the requests that wait without a token", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<GenerationRequest> requests(5, request(10, 1, 3));
  HostModel model(*path, batch_options(2));
  std::size_t finished = 0;
  BatchEvents events;
  events.on_finished = [&](std::size_t, const Generation&) { ++finished; };
  events.may_enter = [&] { return finished == 0; };
  const std::vector<Generation> generations = model.generate_all(requests, events);
  CHECK(finished == 5);
  for (std::size_t index = 0; index < 5; ++index) {
    CHECK(generations[index].tokens.size() == (index < 2 ? 3u : 0u));
    CHECK(generations[index].finish == (index < 2 ? FinishReason::length : FinishReason::stop));
  }
}

TEST_CASE("one bad prompt refuses a batch before anything is computed", "[batch]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, batch_options(2));
  const std::int32_t context = model.model->options().context;
  CHECK_THROWS_AS(model.generate_all({request(3, 1, 3), request(context + 1, 1, 3)}), ContextError);
  CHECK_THROWS_AS(model.generate_all({request(3, 1, 3), request(0, 1, 3)}), UsageError);
  CHECK(model.loop->counters().prefill_passes == 0);
  CHECK(model.generate_all({}).empty());
}

}  // namespace genai
