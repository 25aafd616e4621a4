// shared_data.h - where the reference data that is not part of this repository lies: $GENAI_SHARED_DIR, else ../shared
// beside the source tree (both hold a folder `data`).
#pragma once
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace genai::test {

// `name` is relative to the data folder, for example "tokenizer/gpt-2.gguf". Nothing if it is not there.
inline std::optional<std::filesystem::path> shared_data(const std::string& name) {
  const char* configured = std::getenv("GENAI_SHARED_DIR");
#ifdef GENAI_SOURCE_DIR
  const std::filesystem::path beside = std::filesystem::path(GENAI_SOURCE_DIR) / ".." / "shared";
#else
  const std::filesystem::path beside = "../shared";
#endif
  const std::filesystem::path path =
      (configured != nullptr ? std::filesystem::path(configured) : beside) / "data" / name;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return path;
}

}  // namespace genai::test

// Catch2 version 2 has no SKIP: the test says aloud that it did not run and returns.
#define GENAI_SKIP(reason)    \
  do {                        \
    WARN("SKIPPED: " reason); \
    return;                   \
  } while (false)
