// real_models.h - where the real models lie that some tests want; scripts/fetch_models.sh puts them there.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace genai::test {

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

}  // namespace genai::test
