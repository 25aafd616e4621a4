// model_support.h - a model on the host device, opened the way tests need it, and what it generates.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/decode_loop.h"
#include "engine/exact_math.h"
#include "engine/host/host_device.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "tests/real_models.h"

namespace genai::test {

// Under a sanitizer everything takes ten times as long: the same paths with less of each.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

struct HostModelOptions {
  ModelOptions model;
  HostDeviceOptions device;
  DecodeLoop::Options loop;
  // Rows of Lane::host are computed by a second device, as for a GPU.
  bool separate_host = false;
  int host_threads = 1;  // of that device
};

// The hash of a row of logits, recomputed from its definition.
inline std::uint64_t hash_of_row(std::int32_t position, std::span<const float> logits) {
  std::uint64_t hash = 0;
  for (std::size_t index = 0; index < logits.size(); ++index)
    hash += logit_hash_term(static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(index),
                            float_bits(logits[index]));
  return hash;
}

// Owns a device, a model and a loop, in the order in which they must die.
struct HostModel {
  HostModel(const std::filesystem::path& path, const HostModelOptions& options) : device(options.device) {
    const GgufFile file(path.string());
    ModelOptions model_options = options.model;
    if (options.separate_host) {
      HostDeviceOptions host_options;
      host_options.threads = options.host_threads;
      host_device.emplace(host_options);
      model_options.host_device = &*host_device;
    }
    model.emplace(file, read_model_config(file), device, model_options);
    loop.emplace(*model, options.loop);
  }

  Generation generate(std::vector<std::int32_t> prompt, std::int32_t max_tokens, const SamplerSettings& sampler = {}) {
    const std::atomic<bool> interrupted{false};
    return loop->generate({.prompt = std::move(prompt), .max_tokens = max_tokens, .sampler = sampler, .end_ids = {}},
                          {}, interrupted);
  }

  std::vector<Generation> generate_all(const std::vector<GenerationRequest>& requests, const BatchEvents& events = {}) {
    const std::atomic<bool> interrupted{false};
    return loop->generate_all(requests, events, interrupted);
  }

  HostDevice device;
  std::optional<HostDevice> host_device;
  std::optional<Model> model;
  std::optional<DecodeLoop> loop;
};

// Token ids 0 .. vocabulary - 1 in a fixed, uneven order.
inline std::vector<std::int32_t> arbitrary_tokens(std::int32_t count, std::int32_t vocabulary, std::uint32_t seed) {
  std::vector<std::int32_t> tokens;
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::int32_t index = 0; index < count; ++index) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace genai::test
