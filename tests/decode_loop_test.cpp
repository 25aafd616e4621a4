// The promise, on the host: one output whatever the batch width, the threads, the graph, the order of prompts.
#include "engine/decode/decode_loop.h"

#include <algorithm>
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

HostModelOptions small_options() {
  HostModelOptions options;
  options.device.granule_bytes = std::size_t{64} << 10;
  options.device.threads = 1;
  options.model.context = 512;
  options.model.max_rows = 64;
  options.model.load_threads = 2;
  return options;
}

// What three prompts of different lengths generate, with hashes.
struct Outcome {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::uint64_t> hashes;
  bool operator==(const Outcome&) const = default;
};

Outcome run_three(HostModel& model, const std::vector<int>& order, int token_count) {
  const std::vector<std::vector<std::int32_t>> prompts{
      arbitrary_tokens(5, kVocabulary, 1), arbitrary_tokens(130, kVocabulary, 2), arbitrary_tokens(64, kVocabulary, 3)};
  Outcome outcome;
  outcome.tokens.resize(prompts.size());
  outcome.hashes.resize(prompts.size());
  for (const int index : order) {
    const auto slot = static_cast<std::size_t>(index);
    const Generation generation = model.generate(prompts[slot], token_count);
    outcome.tokens[slot] = generation.tokens;
    outcome.hashes[slot] = generation.logits_hash;
  }
  return outcome;
}

const std::vector<std::string> kTinyModels{"tiny-llama-Q4_0.gguf", "tiny-llama-F16.gguf", "tiny-qwen2-Q4_K_M.gguf",
                                           "tiny-qwen3-Q8_0.gguf", "tiny-gemma3-Q4_K_M.gguf"};

}  // namespace

TEST_CASE("output is the same for every batch width, thread count, graph setting and prompt order", "[decode_loop]") {
  const int token_count = test::kSanitized ? 40 : 256;
  for (const std::string& name : kTinyModels) {
    const auto path = test::shared_data("reference/tiny/" + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    if (test::kSanitized && name != kTinyModels.front()) break;
    INFO(name);
    HostModelOptions options = small_options();
    HostModel reference(*path, options);
    const Outcome expected = run_three(reference, {0, 1, 2}, token_count);
    REQUIRE(expected.tokens[0].size() == static_cast<std::size_t>(token_count));
    CHECK(expected.hashes[0] != expected.hashes[1]);
    CHECK(run_three(reference, {2, 0, 1}, token_count) == expected);  // a second time in one process, in another order

    for (const int max_rows : {1, 7, 64, 512}) {
      for (const int threads : {1, 2, 3}) {
        for (const bool graph : {true, false}) {
          if (max_rows != 7 && threads == 2) continue;
          INFO("rows " << max_rows << ", threads " << threads << ", graph " << graph);
          HostModelOptions other = small_options();
          other.model.max_rows = max_rows;
          other.device.threads = threads;
          other.loop.graph = graph;
          HostModel model(*path, other);
          CHECK(run_three(model, {1, 0, 2}, token_count) == expected);
        }
      }
    }
  }
}

TEST_CASE("SmolLM2 generates the same 256 tokens for every batch width and thread count", "[decode_loop][real]") {
  const auto path = test::smollm2();
  if (!path) GENAI_SKIP("SmolLM2 is not there: scripts/fetch_models.sh smollm2");
  std::optional<Generation> expected;
  for (const auto& [max_rows, threads, graph] :
       std::vector<std::tuple<int, int, bool>>{{512, 1, true}, {1, 2, true}, {7, 3, false}, {64, 2, false}}) {
    HostModelOptions options;
    options.device.threads = threads;
    options.model.context = 1024;
    options.model.max_rows = max_rows;
    options.model.load_threads = 2;
    options.loop.graph = graph;
    HostModel model(*path, options);
    const Generation generation = model.generate(arbitrary_tokens(70, 49152, 4), 256);
    REQUIRE(generation.tokens.size() == 256);
    if (!expected) expected = generation;
    INFO("rows " << max_rows << ", threads " << threads << ", graph " << graph);
    CHECK(generation.step_hashes == expected->step_hashes);
    CHECK(generation.tokens == expected->tokens);
  }
}

TEST_CASE("evaluating a generated text gives the logits that generated it", "[decode_loop]") {
  for (const std::string& name : kTinyModels) {
    const auto path = test::shared_data("reference/tiny/" + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    INFO(name);
    HostModel model(*path, small_options());
    std::vector<std::int32_t> text = arbitrary_tokens(30, kVocabulary, 5);
    const std::size_t prompt_size = text.size();
    const Generation generation = model.generate(text, 150);
    text.insert(text.end(), generation.tokens.begin(), generation.tokens.end());
    std::size_t step = 0;
    model.loop->evaluate(text, [&](std::int32_t position, std::span<const float> logits, std::uint64_t hash) {
      CHECK(test::hash_of_row(position, logits) == hash);
      if (position + 1 < static_cast<std::int32_t>(prompt_size) || step >= generation.step_hashes.size()) return;
      CHECK(hash == generation.step_hashes[step++]);
    });
    CHECK(step == generation.step_hashes.size());
  }
}

TEST_CASE("seeded device schedules give the eager result", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-gemma3-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel eager(*path, small_options());
  const Generation expected = eager.generate(arbitrary_tokens(20, kVocabulary, 6), 20);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    HostModelOptions options = small_options();
    options.device.seed = seed;
    HostModel shuffled(*path, options);
    CHECK(shuffled.generate(arbitrary_tokens(20, kVocabulary, 6), 20).step_hashes == expected.step_hashes);
  }
}

TEST_CASE("a graph is captured once and replayed for every step", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, small_options());
  model.generate(arbitrary_tokens(100, kVocabulary, 7), 51);
  CHECK(model.loop->counters().captures == 1);
  CHECK(model.loop->counters().replays == 50);
  CHECK(model.loop->counters().decode_steps == 50);
  CHECK(model.loop->counters().eager_steps == 0);
  CHECK(model.loop->counters().prompt_tokens == 100);
  CHECK(model.loop->counters().prefill_passes == 2);
  CHECK(model.loop->counters().generated_tokens == 51);
  CHECK(model.loop->counters().inter_token_seconds.size() == 50);
  CHECK(model.loop->counters().graph_nodes > 0);
  model.generate(arbitrary_tokens(10, kVocabulary, 8), 11);
  CHECK(model.loop->counters().captures == 0);  // the first generation's graph serves the second
  CHECK(model.loop->counters().replays == 10);

  HostModelOptions options = small_options();
  options.loop.graph = false;
  HostModel without(*path, options);
  without.generate(arbitrary_tokens(10, kVocabulary, 8), 11);
  CHECK(without.loop->counters().captures == 0);
  CHECK(without.loop->counters().replays == 0);
  CHECK(without.loop->counters().eager_steps == 10);
}

TEST_CASE("the cache grows by whole chunks as positions are reached", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  HostModel model(*path, options);
  CHECK(model.model->cache().committed_bytes() == 0);
  const std::size_t granule = options.device.granule_bytes;
  const auto granules_for = [&](std::int32_t positions) {
    return (model.model->cache().bytes_for(positions) + granule - 1) / granule * granule;
  };
  model.generate(arbitrary_tokens(64, kVocabulary, 9), 1);  // the one token chosen needs no place
  CHECK(model.model->cache().committed_bytes() == granules_for(64));
  CHECK(model.loop->counters().kv_growth_events == 1);
  model.generate(arbitrary_tokens(64, kVocabulary, 9), 2);
  CHECK(model.model->cache().committed_bytes() == granules_for(65));
  CHECK(model.loop->counters().kv_growth_events == (granules_for(65) > granules_for(64) ? 1 : 0));
  model.generate(arbitrary_tokens(64, kVocabulary, 9), 2);
  CHECK(model.loop->counters().kv_growth_events == 0);
}

TEST_CASE("a context is used to its last position and never beyond", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  for (const std::int32_t context : {1, 8, 63, 64, 65, 128}) {
    INFO("context " << context);
    options.model.context = context;
    HostModel model(*path, options);
    for (const std::int32_t shorter : {0, 1, 5}) {
      if (shorter >= context) continue;
      const Generation generation = model.generate(arbitrary_tokens(context - shorter, kVocabulary, 10), -1);
      CHECK(generation.tokens.size() == static_cast<std::size_t>(shorter) + 1);
      CHECK(generation.finish == FinishReason::length);
    }
    CHECK_THROWS_AS(model.generate(arbitrary_tokens(context + 1, kVocabulary, 10), 1), ContextError);
    CHECK_THROWS_AS(model.generate({}, 1), UsageError);
  }
}

TEST_CASE("generation ends at an end token, a refusing callback, an interrupt or the limit", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, small_options());
  const std::vector<std::int32_t> prompt = arbitrary_tokens(12, kVocabulary, 11);
  const std::atomic<bool> never{false};
  const Generation whole = model.generate(prompt, 20);
  REQUIRE(whole.tokens.size() == 20);
  CHECK(whole.finish == FinishReason::length);

  const std::int32_t end = whole.tokens[7];
  const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), end);
  const Generation ended =
      model.loop->generate({.prompt = prompt, .max_tokens = 20, .sampler = {}, .end_ids = {end}}, {}, never);
  CHECK(ended.finish == FinishReason::end_of_generation);
  CHECK(ended.tokens == std::vector<std::int32_t>(whole.tokens.begin(), first));

  std::vector<std::int32_t> seen;
  const Generation stopped = model.loop->generate(
      {.prompt = prompt, .max_tokens = 20, .sampler = {}, .end_ids = {}},
      [&](std::int32_t token) {
        seen.push_back(token);
        return seen.size() < 5;
      },
      never);
  CHECK(stopped.finish == FinishReason::stop);
  CHECK(seen == std::vector<std::int32_t>(whole.tokens.begin(), whole.tokens.begin() + 5));

  std::atomic<bool> interrupted{false};
  const Generation broken = model.loop->generate(
      {.prompt = prompt, .max_tokens = 20, .sampler = {}, .end_ids = {}},
      [&](std::int32_t) {
        interrupted = true;
        return true;
      },
      interrupted);
  CHECK(broken.finish == FinishReason::interrupted);
  CHECK(broken.tokens.size() == 1);
  CHECK(model.generate(prompt, 0).tokens.empty());
  CHECK(model.generate(prompt, 20).step_hashes == whole.step_hashes);  // nothing of the above left a trace
}

TEST_CASE("a sampled text depends on the seed and on nothing else", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-qwen2-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  SamplerSettings settings;
  settings.temperature = 1.0;
  settings.seed = 7;
  const std::vector<std::int32_t> prompt = arbitrary_tokens(12, kVocabulary, 12);
  HostModel model(*path, small_options());
  const Generation expected = model.generate(prompt, 64, settings);
  HostModelOptions other = small_options();
  other.model.max_rows = 5;
  other.device.threads = 3;
  other.loop.graph = false;
  HostModel again(*path, other);
  CHECK(again.generate(prompt, 64, settings).tokens == expected.tokens);
  settings.seed = 8;
  CHECK(again.generate(prompt, 64, settings).tokens != expected.tokens);
}

TEST_CASE("one changed byte of a weight changes the logits", "[decode_loop]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, small_options());
  const std::vector<std::int32_t> prompt = arbitrary_tokens(12, kVocabulary, 13);
  const Generation before = model.generate(prompt, 20);
  const PlacedTensor* placed = model.model->weight_map().find("blk.0.ffn_down.weight");
  REQUIRE(placed != nullptr);
  std::byte* byte = model.device.memory().host_view(model.model->weight_address(*placed));
  REQUIRE(byte != nullptr);
  *byte ^= std::byte{0x77};
  CHECK(model.generate(prompt, 20).logits_hash != before.logits_hash);
  *byte ^= std::byte{0x77};
  CHECK(model.generate(prompt, 20).logits_hash == before.logits_hash);
}

}  // namespace genai
