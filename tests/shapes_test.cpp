// Shapes at which engines are known to break: sliding windows, chunk and pass borders, long contexts, wide
// vocabularies, many threads. Every comparison is of bits.
#include <functional>
#include <optional>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/synthetic_model.h"

namespace genai {
namespace {

using test::arbitrary_tokens;
using test::SyntheticShape;

// A model from memory, with the pass width and the threads asked for.
struct SyntheticModel {
  SyntheticModel(const test::GgufImage& image, std::int32_t context, std::int32_t max_rows, int threads = 1)
      : device(device_options(threads)) {
    const GgufFile file(image.bytes, "synthetic");
    ModelOptions options;
    options.context = context;
    options.max_rows = max_rows;
    model.emplace(file, read_model_config(file), device, options);
    loop.emplace(*model, DecodeLoop::Options{});
  }
  static HostDeviceOptions device_options(int threads) {
    HostDeviceOptions options;
    options.granule_bytes = std::size_t{64} << 10;
    options.threads = threads;
    return options;
  }

  Generation generate(const std::vector<std::int32_t>& prompt, std::int32_t count) {
    const std::atomic<bool> interrupted{false};
    return loop->generate({.prompt = prompt, .max_tokens = count, .sampler = {}, .end_ids = {}}, {}, interrupted);
  }
  // The hash of the logits behind every token.
  std::vector<std::uint64_t> hashes(const std::vector<std::int32_t>& tokens) {
    std::vector<std::uint64_t> result;
    loop->evaluate(tokens, [&](std::int32_t position, std::span<const float> logits, std::uint64_t) {
      result.push_back(test::hash_of_row(position, logits));
    });
    return result;
  }

  HostDevice device;
  std::optional<Model> model;
  std::optional<DecodeLoop> loop;
};

}  // namespace

TEST_CASE("a sliding window is the same in prefill and decode, at its edge and at chunk edges", "[shapes]") {
  for (const char* arch : {"gemma3", "llama"}) {
    for (const int window : {8, 64, 100}) {
      INFO(arch << ", window " << window);
      SyntheticShape shape{.arch = arch, .layer_count = 2, .window = static_cast<std::uint32_t>(window)};
      const test::GgufImage image = test::synthetic_model(shape).build();
      shape.window = 0;
      SyntheticModel without(test::synthetic_model(shape).build(), 512, 512);
      SyntheticModel whole(image, 512, 512);
      for (const int length : {window - 1, window, window + 1}) {
        SyntheticModel stepwise(image, 512, 512);
        std::vector<std::int32_t> text = arbitrary_tokens(length, 96, 31);
        const std::size_t prompt_size = text.size();
        const Generation generation = stepwise.generate(text, 3 * window);
        text.insert(text.end(), generation.tokens.begin(), generation.tokens.end());
        const std::vector<std::uint64_t> at_once = whole.hashes(text);
        REQUIRE(generation.step_hashes.size() + prompt_size - 1 == at_once.size() - 1);
        CHECK(std::equal(generation.step_hashes.begin(), generation.step_hashes.end(),
                         at_once.begin() + static_cast<std::ptrdiff_t>(prompt_size) - 1));
        // The window counts the current token: the first position that loses one is number `window`.
        const std::vector<std::uint64_t> unbounded = without.hashes(text);
        for (int position = 0; position < window; ++position)
          CHECK(at_once[static_cast<std::size_t>(position)] == unbounded[static_cast<std::size_t>(position)]);
        CHECK(at_once[static_cast<std::size_t>(window)] != unbounded[static_cast<std::size_t>(window)]);
      }
    }
  }
}

TEST_CASE("prompts across every pass and chunk border give one result for all pass widths", "[shapes]") {
  const test::GgufImage image = test::synthetic_model({.layer_count = 2, .head_count = 3, .kv_head_count = 1}).build();
  for (const std::int32_t length : {1, 2, 6, 7, 8, 63, 64, 65, 127, 128, 129, 511, 512, 513}) {
    if (test::kSanitized && length > 130) break;
    const std::vector<std::int32_t> prompt = arbitrary_tokens(length, 96, 32);
    std::optional<std::vector<std::uint64_t>> expected;
    for (const std::int32_t max_rows : {512, 1, 7, 64, 511, 513}) {
      SyntheticModel model(image, 1024, max_rows);
      const std::vector<std::uint64_t> hashes = model.generate(prompt, 3).step_hashes;
      if (!expected) expected = hashes;
      INFO("prompt " << length << ", rows " << max_rows);
      CHECK(hashes == *expected);
    }
  }
}

TEST_CASE("more threads than work, or than cores, change nothing", "[shapes]") {
  const test::GgufImage image = test::synthetic_model({.layer_count = 2, .head_count = 2, .kv_head_count = 2}).build();
  const std::vector<std::int32_t> prompt = arbitrary_tokens(100, 96, 33);
  SyntheticModel one(image, 256, 64, 1);
  const std::vector<std::uint64_t> expected = one.generate(prompt, 20).step_hashes;
  for (const int threads : {2, 3, 5, 8, 16, 32}) {
    SyntheticModel many(image, 256, 64, threads);
    INFO(threads << " threads");
    CHECK(many.generate(prompt, 20).step_hashes == expected);
  }
}

TEST_CASE("a vocabulary of 262144, a context of a million and a prompt of 70000 tokens are only numbers", "[shapes]") {
  const test::GgufImage wide = test::synthetic_model({.vocabulary = 262144, .context = 1 << 20}).build();
  std::optional<Generation> expected;
  for (const std::int32_t context : {4096, 262144, 1 << 20}) {
    SyntheticModel model(wide, context, 64);
    const Generation generation = model.generate(arbitrary_tokens(100, 262144, 34), 4);
    if (!expected) expected = generation;
    CHECK(generation.step_hashes == expected->step_hashes);
  }
  const test::GgufImage narrow =
      test::synthetic_model({.head_dim = 8, .vocabulary = 64, .context = 1 << 17, .window = 128}).build();
  const std::int32_t length = test::kSanitized ? 7000 : 70000;
  const std::vector<std::int32_t> prompt = arbitrary_tokens(length, 64, 35);
  SyntheticModel in_one_pass(narrow, length + 16, 65536);
  SyntheticModel in_many(narrow, length + 16, 512);
  CHECK(in_one_pass.generate(prompt, 3).step_hashes == in_many.generate(prompt, 3).step_hashes);
}

TEST_CASE("a bias without a place, an unknown scaling and an unread tensor are told apart", "[shapes]") {
  const auto config_and_map = [](const test::GgufImage& image) {
    const GgufFile file(image.bytes, "synthetic");
    return map_weights(read_model_config(file), file);
  };
  test::GgufWriter writer = test::synthetic_model({});
  CHECK(config_and_map(writer.build()).unread.empty());
  writer.f32_tensor("blk.0.something.weight", {8}, std::vector<float>(8, 1.0f));
  CHECK(config_and_map(writer.build()).unread == std::vector<std::string>{"blk.0.something.weight"});
  test::GgufWriter biased = test::synthetic_model({});
  biased.f32_tensor("blk.0.ffn_up.bias", {64}, std::vector<float>(64, 1.0f));
  CHECK_THROWS_AS(config_and_map(biased.build()), ModelFileError);
  test::GgufWriter scaled = test::synthetic_model({});
  scaled.string("llama.rope.scaling.type", "su");
  CHECK_THROWS_AS(config_and_map(scaled.build()), ModelFileError);
}

}  // namespace genai
