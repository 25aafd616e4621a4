// generation_cases.h - whole generations of synthetic models, on any device: what must hold of the graph and the cache
// over thousands of steps, and of the bits in every memory.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/decode_loop.h"
#include "engine/device/device.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "tests/catch.h"
#include "tests/faulty_device.h"
#include "tests/synthetic_model.h"

namespace genai::test {

inline std::vector<std::int32_t> prompt_of(std::int32_t count, std::int32_t vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t index = 0; index < count; ++index) tokens.push_back((index * 37 + 11) % vocabulary);
  return tokens;
}

// A synthetic model on a device that outlives it.
struct DeviceModel {
  DeviceModel(Device& device, const GgufImage& image, const ModelOptions& options, bool graph = true) {
    const GgufFile file(image.bytes, "synthetic");
    open(device, file, read_model_config(file), options, graph);
  }
  DeviceModel(Device& device, const GgufFile& file, const ModelConfig& config, const ModelOptions& options) {
    open(device, file, config, options, true);
  }
  Generation generate(const std::vector<std::int32_t>& prompt, std::int32_t token_count) {
    const std::atomic<bool> interrupted{false};
    return loop->generate({.prompt = prompt, .max_tokens = token_count, .sampler = {}, .end_ids = {}}, {}, interrupted);
  }

  // Of each step of two generations: the second finds the cache and the graph of the first.
  std::vector<std::uint64_t> hashes_of_two(std::int32_t vocabulary) {
    std::vector<std::uint64_t> hashes;
    for (const std::int32_t prompt_tokens : {70, 3}) {
      const Generation generation = generate(prompt_of(prompt_tokens, vocabulary), 80);
      hashes.insert(hashes.end(), generation.step_hashes.begin(), generation.step_hashes.end());
    }
    return hashes;
  }

  std::optional<Model> model;
  std::optional<DecodeLoop> loop;

 private:
  void open(Device& device, const GgufFile& file, const ModelConfig& config, const ModelOptions& options, bool graph) {
    model.emplace(file, config, device, options);
    loop.emplace(*model, DecodeLoop::Options{.graph = graph});
  }
};

// ---- one long text -------------------------------------------------------------------------------------------------

// How often a sequence that holds `first` positions gets new granules until it holds `last`, one position at a time.
inline std::uint64_t growth_between(const KvCache& cache, std::size_t granule_bytes, std::int32_t first,
                                    std::int32_t last) {
  const auto granules = [&](std::int32_t positions) {
    return (cache.bytes_for(positions) + granule_bytes - 1) / granule_bytes;
  };
  std::uint64_t growth = 0;
  for (std::int32_t positions = first; positions < last; ++positions)
    growth += granules(positions + 1) > granules(positions) ? 1 : 0;
  return growth;
}

// 4,096 tokens behind a prompt of one pass.
inline Generation check_long_generation(Device& device, const SyntheticShape& shape) {
  constexpr std::int32_t kPromptTokens = 100;
  constexpr std::int32_t kTokens = 4096;
  constexpr std::int32_t kEnd = kPromptTokens + kTokens - 1;  // the last token chosen is not read
  ModelOptions options;
  options.context = kPromptTokens + kTokens;
  options.max_rows = kPromptTokens;
  DeviceModel model(device, synthetic_model(shape).build(), options);
  const DevicePtr<std::byte> base = model.model->cache().view(0).base;
  Generation generation =
      model.generate(prompt_of(kPromptTokens, static_cast<std::int32_t>(shape.vocabulary)), kTokens);
  REQUIRE(generation.tokens.size() == kTokens);

  const DecodeCounters& counters = model.loop->counters();
  CHECK(counters.captures == 1);
  CHECK(counters.replays == kTokens - 1);
  CHECK(counters.decode_steps == kTokens - 1);
  CHECK(counters.eager_steps == 0);
  const KvCache& cache = model.model->cache();
  const std::uint64_t in_steps = growth_between(cache, device.memory().granule_bytes(), kPromptTokens, kEnd);
  CHECK(in_steps > 1);  // the model is large enough to show something
  CHECK(counters.kv_growth_events == 1 + in_steps);
  CHECK(cache.view(0).base == base);  // no byte of the cache has moved

  CHECK(counters.device_time.steps == kTokens - 1);
  CHECK(counters.device_time.seconds > 0.0);
  CHECK(counters.device_time.seconds <= *counters.decode_seconds * 1.02);
  return generation;
}

// ---- one model in every memory -------------------------------------------------------------------------------------

inline std::vector<std::uint64_t> hashes_of(Device& device, const GgufImage& image, const ModelOptions& options,
                                            bool graph, std::int32_t vocabulary) {
  return DeviceModel(device, image, options, graph).hashes_of_two(vocabulary);
}

inline ModelOptions short_options() {
  ModelOptions options;
  options.context = 256;
  options.max_rows = 64;
  return options;
}

// The bits of `device` in this memory and that, by graph and by single calls, are those of `reference`.
inline void check_every_memory(Device& device, Device& reference, const SyntheticShape& shape) {
  const GgufImage image = synthetic_model(shape).build();
  const auto vocabulary = static_cast<std::int32_t>(shape.vocabulary);
  ModelOptions options = short_options();
  const std::vector<std::uint64_t> expected = hashes_of(reference, image, options, true, vocabulary);
  struct Memory {
    OffloadMode mode;
    std::vector<std::string> cold;
  };
  for (const Memory& memory : {Memory{OffloadMode::automatic, {}}, Memory{OffloadMode::stream, {"ffn"}},
                               Memory{OffloadMode::zero_copy, {"attn", "output"}}}) {
    for (const bool graph : {true, false}) {
      for (const std::int32_t max_rows : {64, 7}) {
        options.offload = memory.mode;
        options.forced_cold = memory.cold;
        options.max_rows = max_rows;
        INFO(shape.arch << ", mode " << offload_mode_name(memory.mode) << ", graph " << graph << ", rows " << max_rows);
        CHECK(hashes_of(device, image, options, graph, vocabulary) == expected);
      }
    }
  }
}

// ---- page-locked memory that is refused ----------------------------------------------------------------------------

// At the first granule or after some: cold weights lie in pageable memory, and the bits are those of `reference`.
inline void check_refused_pinning(FaultyDevice& device, Device& reference, const SyntheticShape& shape) {
  const GgufImage image = synthetic_model(shape).build();
  const auto vocabulary = static_cast<std::int32_t>(shape.vocabulary);
  ModelOptions options = short_options();
  const std::vector<std::uint64_t> expected = hashes_of(reference, image, options, true, vocabulary);
  options.forced_cold = {"ffn", "attn_q"};
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::automatic}) {
    for (const std::uint64_t granted : {0, 2}) {
      INFO("mode " << offload_mode_name(mode) << ", refused after " << granted << " granules");
      options.offload = mode;
      device.memory().fail(FaultyMemory::Call::create_host, granted);
      DeviceModel model(device, image, options);
      REQUIRE_FALSE(device.memory().will_fail(FaultyMemory::Call::create_host));
      CHECK(model.model->has_pageable_weights());
      const ResidencyPlan& plan = model.model->plan();
      const ResidencyArena& arena = model.model->arena();
      CHECK(plan.of(Lane::ring) == plan.cold_bytes());
      CHECK(arena.committed_pageable_bytes() >= plan.cold_bytes());
      CHECK(arena.committed_host_bytes() == 0);
      CHECK(model.hashes_of_two(vocabulary) == expected);
      const DecodeCounters& counters = model.loop->counters();
      CHECK(counters.captures == 0);  // no graph holds a copy from pageable memory
      CHECK(counters.decode_traffic.copied_bytes == counters.decode_steps * plan.pass_of(Lane::ring));
    }
  }
}

}  // namespace genai::test
