// model_support.h - a model on the host device, opened the way tests need it, and what it generates.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/decode_loop.h"
#include "engine/host/host_device.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"

namespace genai::test {

// Under a sanitizer everything takes ten times as long: the same paths with less of each.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A real model: the file named by the environment variable, else `file_name` in the user's cache. Nothing if absent.
inline std::optional<std::filesystem::path> real_model(const char* variable, const std::string& file_name) {
  std::filesystem::path path;
  if (const char* configured = std::getenv(variable)) {
    path = configured;
  } else if (const char* cache = std::getenv("XDG_CACHE_HOME")) {
    path = std::filesystem::path(cache) / "genai" / file_name;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::filesystem::path(home) / ".cache" / "genai" / file_name;
  }
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return path;
}
inline std::optional<std::filesystem::path> smollm2() {
  return real_model("GENAI_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf");
}
inline std::optional<std::filesystem::path> gemma3() { return real_model("GENAI_GEMMA3", "gemma-3-270m-Q4_K_M.gguf"); }

struct HostModelOptions {
  ModelOptions model;
  HostDeviceOptions device;
  DecodeLoop::Options loop;
};

// Owns a device, a model and a loop, in the order in which they must die.
struct HostModel {
  HostModel(const std::filesystem::path& path, const HostModelOptions& options) : device(options.device) {
    const GgufFile file(path.string());
    model.emplace(file, read_model_config(file), device, options.model);
    loop.emplace(*model, options.loop);
  }

  Generation generate(std::vector<std::int32_t> prompt, std::int32_t max_tokens, const SamplerSettings& sampler = {}) {
    const std::atomic<bool> interrupted{false};
    return loop->generate({.prompt = std::move(prompt), .max_tokens = max_tokens, .sampler = sampler, .end_ids = {}},
                          {}, interrupted);
  }

  HostDevice device;
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
