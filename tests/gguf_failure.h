// gguf_failure.h - for tests that open GGUF files: what opening throws, a small good file to spoil.
#pragma once
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/model/gguf_file.h"
#include "tests/catch.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"

namespace genai::test {

// What opening throws; a test fails if it does not throw ModelFileError.
struct Failure {
  std::string message;
  std::string hint;
  std::uint64_t offset = 0;

  bool says(const std::string& part) const { return message.find(part) != std::string::npos; }
};

inline Failure failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ModelFileError& error) {
    CHECK(error.file() != "");
    CHECK(std::string(error.what()).starts_with(error.file() + ": "));
    return {error.what(), error.hint(), error.offset()};
  }
  FAIL("no ModelFileError");
  return {};
}
inline Failure failure_of(std::span<const std::byte> bytes) {
  return failure_of([&] { GgufFile(bytes, "test.gguf"); });
}
inline Failure failure_of(const GgufImage& image) { return failure_of(image.bytes); }

// The failure is at `offset` and names both sides.
inline void check_failure(const Failure& failure, std::uint64_t offset, const std::string& expected,
                          const std::string& found) {
  INFO(failure.message);
  CHECK(failure.offset == offset);
  CHECK(failure.says("at byte " + std::to_string(offset)));
  CHECK(failure.says("expected " + expected));
  CHECK(failure.says("found " + found));
}

inline constexpr std::uint32_t kF32 = 0;
inline constexpr std::uint32_t kQ8 = 8;
inline constexpr std::uint32_t kQ4K = 12;
inline constexpr std::uint32_t kIq4Nl = 20;

inline GgufWriter two_tensors() {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .f32_tensor("first", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8})
      .tensor("second", {64, 3}, kQ8);
  return writer;
}

inline std::vector<std::byte> contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.gcount() == static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

}  // namespace genai::test
