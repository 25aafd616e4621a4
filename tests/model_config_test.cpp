#include "engine/model/model_config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/gguf_writer.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"

using namespace genai;
using namespace genai::test;

namespace {

ModelConfig config_of(const GgufWriter& writer) {
  const GgufImage image = writer.build();
  return read_model_config(GgufFile(image.bytes, "test.gguf"));
}

// The message of the ModelFileError; the hint is appended.
std::string refusal_of(const GgufWriter& writer) {
  const GgufImage image = writer.build();
  const GgufFile file(image.bytes, "test.gguf");
  try {
    read_model_config(file);
  } catch (const ModelFileError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  FAIL("no ModelFileError");
  return {};
}

using Change = std::function<void(GgufWriter&)>;

std::string refusal_of(const std::string& architecture, const Change& change) {
  GgufWriter writer = model_header(architecture);
  change(writer);
  return refusal_of(writer);
}
ModelConfig config_of(const std::string& architecture, const Change& change) {
  GgufWriter writer = model_header(architecture);
  change(writer);
  return config_of(writer);
}

void check_says(const std::string& message, const std::string& part) {
  INFO(message << "\n  should say: " << part);
  CHECK(message.find(part) != std::string::npos);
}

std::string locals_of(const ModelConfig& config) {
  std::string text;
  for (std::int32_t layer = 0; layer < config.layer_count; ++layer) text += config.is_local_layer(layer) ? 'l' : 'g';
  return text;
}

const std::vector<std::string> kKnown = {"llama", "qwen2", "qwen3", "gemma3"};

}  // namespace

TEST_CASE("config of each architecture has what the family has", "[config]") {
  for (const std::string& architecture : kKnown) {
    INFO(architecture);
    const ModelConfig config = config_of(model_header(architecture));
    CHECK(config.architecture_name == architecture);
    CHECK(config.name == "tiny");
    CHECK(config.vocabulary_size == 3);
    CHECK(config.layer_count == 2);
    CHECK(config.width == 64);
    CHECK(config.feed_forward_width == 128);
    CHECK(config.head_count == 4);
    CHECK(config.kv_head_count == 2);
    CHECK(config.head_dim == 16);
    CHECK(config.context_tokens == 2048);
    CHECK(config.norm_epsilon == 1e-5f);
    CHECK(config.rotated == 16);
    CHECK(config.rope.rotated == 16);
    CHECK(config.rope.base == 10000.0);
    CHECK(config.rope.scaling == RopeScaling::none);
    CHECK(config.sliding_window == 0);
    CHECK(locals_of(config) == "gg");
    CHECK_FALSE(config.has_local_rope());
    CHECK(config.attention_scale == 0.25f);
    CHECK(config.attention_soft_cap == 0.0f);
    CHECK(config.final_soft_cap == 0.0f);
    const bool gemma = architecture == "gemma3";
    CHECK(config.rope_interleaved == (architecture == "llama"));
    CHECK(config.query_key_norm == (gemma || architecture == "qwen3"));
    CHECK(config.qkv_bias == (architecture == "qwen2"));
    CHECK(config.post_norms == gemma);
    CHECK(config.activation == (gemma ? Activation::gelu : Activation::silu));
    CHECK(config.embedding_scale == (gemma ? 8.0f : 1.0f));
  }
}

TEST_CASE("config of an unknown architecture lists the known ones", "[config]") {
  const std::string message = refusal_of(model_header("mamba\x1b"));
  check_says(message, "'general.architecture' to be one of llama, qwen2, qwen3, gemma3, found mamba\\x1b");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.remove("general.architecture"); }), "no 'general.architecture'");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("general.architecture", 1); }),
             "to be a string, found u32: 1");
}

TEST_CASE("config names a missing key", "[config]") {
  for (const std::string key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                                "attention.head_count", "attention.layer_norm_rms_epsilon"})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.remove("llama." + key); }), "no 'llama." + key + "'");
  const ModelConfig config = config_of(
      "llama", [](GgufWriter& w) { w.remove("llama.attention.head_count_kv").remove("llama.rope.freq_base"); });
  CHECK(config.kv_head_count == 4);
  CHECK(config.rope.base == 10000.0);
}

TEST_CASE("config refuses counts that are zero, negative, huge or of a wrong type", "[config]") {
  for (const std::string key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "vocab_size", "attention.key_length"}) {
    const std::string full = "llama." + key;
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.u32(full, 0); }), "'" + full + "' to be from 1 to");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.i32(full, -1); }), "found -1");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.u32(full, ~0u); }), "found 4294967295");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.u64(full, ~0ull); }), "found 18446744073709551615");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32(full, 4.0f); }), "to be an integer, found f32: 4");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.string(full, "4"); }), "to be an integer, found string: 4");
  }
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.block_count", 1025); }),
             "from 1 to 1024, found 1025");
}

TEST_CASE("config refuses heads that do not divide", "[config]") {
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.head_count_kv", 3); }),
             "'llama.attention.head_count_kv' to be a divisor of 4 heads, found 3");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.head_count_kv", 8); }), "found 8");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.head_count", 6); }),
             "'llama.attention.head_count' to be a divisor of the width, 64, found 6");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.head_count", 16); }), "they have 4");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.key_length", 20); }), "they have 20");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.attention.value_length", 32); }),
             "'llama.attention.value_length' to be 16, as the keys, found 32");
  const ModelConfig wide = config_of("qwen3", [](GgufWriter& w) {
    w.u32("qwen3.attention.key_length", 128).u32("qwen3.attention.value_length", 128);
  });
  CHECK(wide.head_dim == 128);
  CHECK(wide.rotated == 128);
  CHECK(wide.attention_scale == 1.0f / std::sqrt(128.0f));
  check_says(refusal_of("qwen3",
                        [](GgufWriter& w) {
                          w.u32("qwen3.attention.head_count", 131072).u32("qwen3.attention.key_length", 128);
                        }),
             "at most 8192 heads of 128 elements");
}

TEST_CASE("config takes one number a layer only where all are equal", "[config]") {
  const auto list = [](std::vector<std::int32_t> values) {
    return [values](GgufWriter& w) { w.numbers("llama.attention.head_count_kv", GgufValueType::i32, values); };
  };
  CHECK(config_of("llama", list({2, 2})).kv_head_count == 2);
  check_says(refusal_of("llama", list({2, 4})),
             "'llama.attention.head_count_kv' to be the same in every layer, found [2, 4]");
  check_says(refusal_of("llama", list({2})), "a list of 2 numbers, one a layer");
  check_says(refusal_of("llama", list({0, 0})), "from 1 to");
  CHECK(config_of("llama", [](GgufWriter& w) {
          w.numbers("llama.feed_forward_length", GgufValueType::u32, std::vector<std::uint32_t>{96, 96});
        }).feed_forward_width == 96);
}

TEST_CASE("config refuses an epsilon that is not a small positive number", "[config]") {
  const std::string key = "llama.attention.layer_norm_rms_epsilon";
  for (const float epsilon : {NAN, INFINITY, -INFINITY, 0.0f, -1e-5f, 1.0f})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32(key, epsilon); }),
               "'" + key + "' to be from 1e-12 to 0.1, found ");
  check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32(key, NAN); }), "found nan");
  check_says(refusal_of("llama", [&](GgufWriter& w) { w.u32(key, 1); }), "to be a floating-point number, found u32: 1");
  const GgufImage image = model_header("llama").f32(key, NAN).build();
  const GgufFile file(image.bytes, "test.gguf");
  try {
    read_model_config(file);
    FAIL("no error");
  } catch (const ModelFileError& error) {
    CHECK(error.offset() == image.at("value:" + key));
    CHECK(error.file() == "test.gguf");
  }
}

TEST_CASE("config takes the vocabulary from the key, the tokens or the embedding, and they agree", "[config]") {
  const auto embedding = [](GgufWriter writer, std::uint64_t rows) {
    writer.tensor("token_embd.weight", {64, rows}, 8);
    return writer;
  };
  GgufWriter bare;
  bare.string("general.architecture", "llama");
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "context_length"})
    bare.u32(std::string("llama.") + key, 64);
  bare.u32("llama.attention.head_count", 4).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  check_says(refusal_of(bare), "no 'llama.vocab_size'");
  CHECK(config_of(embedding(bare, 7)).vocabulary_size == 7);
  bare.strings("tokenizer.ggml.tokens", {"a", "b"});
  CHECK(config_of(bare).vocabulary_size == 2);
  check_says(refusal_of(embedding(bare, 7)), "2 rows of tensor 'token_embd.weight', one a token, found 7");
  bare.u32("llama.vocab_size", 7);
  CHECK(config_of(bare).vocabulary_size == 7);
  CHECK(config_of(embedding(bare, 7)).vocabulary_size == 7);
  check_says(refusal_of(embedding(bare, 8)), "7 rows of tensor 'token_embd.weight', one a token, found 8");
  bare.remove("llama.vocab_size").strings("tokenizer.ggml.tokens", {});
  check_says(refusal_of(bare), "at least one token");
}

TEST_CASE("config refuses mixtures of experts and other features by their keys", "[config]") {
  check_says(refusal_of("llama", [](GgufWriter& w) { w.u32("llama.expert_count", 8); }),
             "'llama.expert_count' to be 0, found 8 | mixture of experts is not supported by this build");
  CHECK_NOTHROW(config_of("llama", [](GgufWriter& w) { w.u32("llama.expert_count", 0); }));
  for (const std::string key :
       {"logit_scale", "residual_scale", "embedding_scale", "attention.clamp_kqv", "attention.max_alibi_bias",
        "attention.temperature_scale", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor"}) {
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32("llama." + key, 0.5f); }), "'llama." + key + "' to be ");
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32("llama." + key, NAN); }), "found nan");
    CHECK_NOTHROW(config_of("llama", [&](GgufWriter& w) { w.f32("llama." + key, 0.0f); }));
  }
  CHECK_NOTHROW(config_of("llama", [](GgufWriter& w) { w.f32("llama.logit_scale", 1.0f); }));
  check_says(refusal_of("llama", [](GgufWriter& w) { w.boolean("llama.attention.causal", false); }), "to be true");
  check_says(refusal_of("llama", [](GgufWriter& w) { w.boolean("llama.use_parallel_residual", true); }), "to be false");
}

TEST_CASE("config reads the rotary base and width", "[config]") {
  const ModelConfig config = config_of(
      "llama", [](GgufWriter& w) { w.f32("llama.rope.freq_base", 500000.0f).u32("llama.rope.dimension_count", 8); });
  CHECK(config.rope.base == 500000.0);
  CHECK(config.rotated == 8);
  CHECK(config.rope.rotated == 8);
  CHECK(config.local_rope.rotated == 8);
  for (const std::uint32_t rotated : {0u, 7u, 18u, 4096u})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.u32("llama.rope.dimension_count", rotated); }),
               "'llama.rope.dimension_count' to be ");
  for (const float base : {NAN, INFINITY, 0.0f, -10000.0f, 1.0f})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32("llama.rope.freq_base", base); }),
               "'llama.rope.freq_base' to be from 1.5 to 1e+15");
}

TEST_CASE("config reads linear rope scaling, with or without its type", "[config]") {
  for (const std::string key : {"rope.scaling.factor", "rope.scale_linear"}) {
    const ModelConfig config = config_of("llama", [&](GgufWriter& w) { w.f32("llama." + key, 4.0f); });
    CHECK(config.rope.scaling == RopeScaling::linear);
    CHECK(config.rope.factor == 4.0);
  }
  CHECK(config_of("llama", [](GgufWriter& w) {
          w.f32("llama.rope.scaling.factor", 1.0f).string("llama.rope.scaling.type", "linear");
        }).rope.scaling == RopeScaling::none);
  CHECK(config_of("llama", [](GgufWriter& w) {
          w.f32("llama.rope.scaling.factor", 4.0f).string("llama.rope.scaling.type", "none");
        }).rope.scaling == RopeScaling::none);
  for (const float factor : {NAN, INFINITY, 0.0f, -2.0f})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32("llama.rope.scaling.factor", factor); }),
               "'llama.rope.scaling.factor' to be from ");
}

TEST_CASE("config reads yarn with its defaults and its keys", "[config]") {
  const auto yarn = [](GgufWriter& w) {
    w.string("qwen2.rope.scaling.type", "yarn").f32("qwen2.rope.scaling.factor", 4.0f);
    w.u32("qwen2.rope.scaling.original_context_length", 512);
  };
  const ModelConfig plain = config_of("qwen2", yarn);
  CHECK(plain.rope.scaling == RopeScaling::yarn);
  CHECK(plain.rope.factor == 4.0);
  CHECK(plain.rope.original_context_tokens == 512.0);
  CHECK(plain.rope.beta_fast == 32.0);
  CHECK(plain.rope.beta_slow == 1.0);
  CHECK(plain.rope.attention_factor == 1.0);
  const ModelConfig tuned = config_of("qwen2", [&](GgufWriter& w) {
    yarn(w);
    w.f32("qwen2.rope.scaling.yarn_beta_fast", 16.0f).f32("qwen2.rope.scaling.yarn_beta_slow", 2.0f);
    w.f32("qwen2.rope.scaling.attn_factor", 0.5f).f32("qwen2.rope.scaling.yarn_attn_factor", 0.25f);
    w.remove("qwen2.rope.scaling.original_context_length");
  });
  CHECK(tuned.rope.beta_fast == 16.0);
  CHECK(tuned.rope.beta_slow == 2.0);
  CHECK(tuned.rope.attention_factor == 0.125);
  CHECK(tuned.rope.original_context_tokens == 2048.0);
  check_says(refusal_of("qwen2", [](GgufWriter& w) { w.string("qwen2.rope.scaling.type", "yarn"); }),
             "no 'qwen2.rope.scaling.factor'");
  check_says(refusal_of("qwen2",
                        [&](GgufWriter& w) {
                          yarn(w);
                          w.f32("qwen2.rope.scaling.factor", 0.5f);
                        }),
             "at least 1 for yarn");
}

TEST_CASE("config refuses a rope scaling that it does not know by its name", "[config]") {
  for (const std::string type : {"su", "longrope", "dynamic", ""})
    check_says(refusal_of("llama", [&](GgufWriter& w) { w.string("llama.rope.scaling.type", type); }),
               "'llama.rope.scaling.type' to be one of none, linear, yarn, found " + type);
}

TEST_CASE("config takes frequency factors from their tensor", "[config]") {
  const std::vector<float> factors = {1, 1, 1, 2, 4, 8, 8, 8};
  const ModelConfig config =
      config_of("llama", [&](GgufWriter& w) { w.f32_tensor("rope_freqs.weight", {8}, factors); });
  CHECK(config.rope.frequency_factors == factors);
  CHECK(config.local_rope.frequency_factors == factors);
  CHECK_NOTHROW(rope_frequencies(config.rope));
  const auto refusal = [](const Change& change) { return refusal_of("llama", change); };
  check_says(refusal([](GgufWriter& w) {
               w.f32_tensor("rope_freqs.weight", {4}, {1, 1, 1, 1});
             }),
             "8 F32 elements of tensor 'rope_freqs.weight', one a pair, found 4 F32");
  check_says(refusal([](GgufWriter& w) { w.tensor("rope_freqs.weight", {8}, 1); }), "found 8 F16");
  for (const float bad : {NAN, 0.0f, -1.0f, INFINITY})
    check_says(refusal([&](GgufWriter& w) {
                 w.f32_tensor("rope_freqs.weight", {8}, {1, 1, 1, 1, 1, 1, 1, bad});
               }),
               "factors from 1/64 to 65536 in tensor 'rope_freqs.weight'");
}

TEST_CASE("config of gemma3 has five local layers and a global one, with a base of their own", "[config]") {
  const ModelConfig config = config_of("gemma3", [](GgufWriter& w) {
    w.u32("gemma3.block_count", 14).u32("gemma3.attention.sliding_window", 512).f32("gemma3.rope.freq_base", 1e6f);
    w.string("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8.0f);
  });
  CHECK(config.sliding_window == 512);
  CHECK(locals_of(config) == "lllllglllllgll");
  CHECK(config.has_local_rope());
  CHECK(config.rope.base == 1e6);
  CHECK(config.rope.scaling == RopeScaling::linear);
  CHECK(config.rope.factor == 8.0);
  CHECK(config.local_rope.base == 10000.0);
  CHECK(config.local_rope.scaling == RopeScaling::none);
  for (const std::string key : {"rope.local.freq_base", "rope.freq_base_swa"})
    CHECK(config_of("gemma3", [&](GgufWriter& w) {
            w.u32("gemma3.attention.sliding_window", 8).f32("gemma3." + key, 20000.0f);
          }).local_rope.base == 20000.0);
}

TEST_CASE("config takes the pattern of local layers from its key", "[config]") {
  const auto locals = [](const std::string& architecture, const Change& pattern) {
    return locals_of(config_of(architecture, [&](GgufWriter& w) {
      w.u32(architecture + ".block_count", 4).u32(architecture + ".attention.sliding_window", 8);
      pattern(w);
    }));
  };
  const std::string key = "gemma3.attention.sliding_window_pattern";
  CHECK(locals("gemma3", [&](GgufWriter& w) { w.u32(key, 2); }) == "lglg");
  CHECK(locals("gemma3", [&](GgufWriter& w) { w.u32(key, 3); }) == "llgl");
  CHECK(locals("gemma3", [&](GgufWriter& w) { w.u32(key, 1); }) == "gggg");
  CHECK(locals("gemma3", [&](GgufWriter& w) { w.u32(key, 0); }) == "llll");
  const std::vector<std::uint8_t> flags = {0, 1, 1, 0};
  CHECK(locals("gemma3", [&](GgufWriter& w) { w.numbers(key, GgufValueType::boolean, flags); }) == "gllg");
  CHECK(locals("llama", [](GgufWriter&) {}) == "llll");
  CHECK(locals("qwen2", [](GgufWriter& w) { w.u32("qwen2.attention.sliding_window_pattern", 2); }) == "lglg");
  check_says(refusal_of("gemma3",
                        [&](GgufWriter& w) {
                          w.u32("gemma3.attention.sliding_window", 8).numbers(key, GgufValueType::boolean, flags);
                        }),
             "a list of 2 bools, one a layer");
  check_says(
      refusal_of("gemma3", [&](GgufWriter& w) { w.u32("gemma3.attention.sliding_window", 8).string(key, "lg"); }),
      "to be an integer");
}

TEST_CASE("config without a local layer has no window", "[config]") {
  const ModelConfig config = config_of("gemma3", [](GgufWriter& w) {
    w.u32("gemma3.attention.sliding_window", 8).u32("gemma3.attention.sliding_window_pattern", 1);
  });
  CHECK(config.sliding_window == 0);
  CHECK_FALSE(config.has_local_rope());
  CHECK(config_of("llama", [](GgufWriter& w) { w.u32("llama.attention.sliding_window", 0); }).sliding_window == 0);
  const ModelConfig llama = config_of("llama", [](GgufWriter& w) { w.u32("llama.attention.sliding_window", 100); });
  CHECK(llama.sliding_window == 100);
  CHECK_FALSE(llama.has_local_rope());
}

TEST_CASE("config reads scales and soft caps", "[config]") {
  CHECK(config_of("gemma3", [](GgufWriter& w) {
          w.u32("gemma3.block_count", 62).u32("gemma3.attention.key_length", 8);
        }).attention_scale == 0.25f);
  CHECK(config_of("gemma3", [](GgufWriter& w) {
          w.u32("gemma3.block_count", 61).u32("gemma3.attention.key_length", 64);
        }).attention_scale == 0.125f);
  CHECK(config_of("gemma3", [](GgufWriter& w) { w.u32("gemma3.embedding_length", 640); }).embedding_scale ==
        std::sqrt(640.0f));
  CHECK(config_of("llama", [](GgufWriter& w) { w.f32("llama.attention.scale", 0.0625f); }).attention_scale == 0.0625f);
  const ModelConfig capped = config_of("gemma3", [](GgufWriter& w) {
    w.f32("gemma3.attn_logit_softcapping", 50.0f).f32("gemma3.final_logit_softcapping", 30.0f);
  });
  CHECK(capped.attention_soft_cap == 50.0f);
  CHECK(capped.final_soft_cap == 30.0f);
  for (const std::string key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale"})
    for (const float bad : {NAN, -1.0f, INFINITY})
      check_says(refusal_of("llama", [&](GgufWriter& w) { w.f32("llama." + key, bad); }),
                 "'llama." + key + "' to be from 0 to ");
}

TEST_CASE("config of the reference files is theirs", "[config]") {
  if (!shared_data("reference/tiny")) GENAI_SKIP("no reference/tiny in the shared data");
  const auto config = [](const std::string& name) {
    return read_model_config(GgufFile(*shared_data("reference/tiny/" + name)));
  };
  const ModelConfig llama = config("tiny-llama-Q4_K.gguf");
  CHECK(llama.vocabulary_size == 320);
  CHECK(llama.width == 256);
  CHECK(llama.feed_forward_width == 512);
  CHECK(llama.head_dim == 64);
  CHECK(llama.rope_interleaved);
  const ModelConfig qwen2 = config("tiny-qwen2-Q8_0.gguf");
  CHECK(qwen2.rope.base == 1e6);
  CHECK(qwen2.kv_head_count == 1);
  CHECK(qwen2.qkv_bias);
  const ModelConfig qwen3 = config("tiny-qwen3-F16.gguf");
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.query_key_norm);
  const ModelConfig gemma = config("tiny-gemma3-Q4_K_M.gguf");
  CHECK(gemma.sliding_window == 8);
  CHECK(locals_of(gemma) == "lllllgl");
  CHECK(gemma.local_rope.base == 10000.0);
  CHECK(gemma.norm_epsilon == 1e-6f);
}

TEST_CASE("config of SmolLM2-135M is what its authors say", "[config][real]") {
  const auto path = smollm2();
  if (!path) GENAI_SKIP("no SmolLM2-135M-Instruct.Q4_1.gguf (GENAI_SMOLLM2)");
  const ModelConfig config = read_model_config(GgufFile(*path));
  CHECK(config.vocabulary_size == 49152);
  CHECK(config.layer_count == 30);
  CHECK(config.width == 576);
  CHECK(config.feed_forward_width == 1536);
  CHECK(config.head_count == 9);
  CHECK(config.kv_head_count == 3);
  CHECK(config.head_dim == 64);
  CHECK(config.context_tokens == 8192);
  CHECK(config.norm_epsilon == 1e-5f);
  CHECK(config.rope.base == 100000.0);
  CHECK(config.rope_interleaved);
  CHECK(config.sliding_window == 0);
}

TEST_CASE("config of gemma-3-270m is what its authors say", "[config][real]") {
  const auto path = gemma3();
  if (!path) GENAI_SKIP("no gemma-3-270m-Q4_K_M.gguf (GENAI_GEMMA3)");
  const ModelConfig config = read_model_config(GgufFile(*path));
  CHECK(config.vocabulary_size == 262144);
  CHECK(config.layer_count == 18);
  CHECK(config.width == 640);
  CHECK(config.head_count == 4);
  CHECK(config.kv_head_count == 1);
  CHECK(config.head_dim == 256);
  CHECK(config.rotated == 256);
  CHECK(config.norm_epsilon == 1e-6f);
  CHECK(config.rope.base == 1000000.0);
  CHECK(config.local_rope.base == 10000.0);
  CHECK(config.sliding_window == 512);
  CHECK(locals_of(config) == "lllllglllllglllllg");
  CHECK(config.attention_scale == 0.0625f);
  CHECK(config.embedding_scale == std::sqrt(640.0f));
  CHECK(config.attention_soft_cap == 0.0f);
  CHECK(config.final_soft_cap == 0.0f);
}
