// gguf_reader.h - a cursor over the header of an untrusted GGUF file. Nothing is read before the bytes are known to be
// there, and every failure says at which byte, what was expected and what was found. One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace genai {

// Metadata and tensor table together. The largest vocabularies take a quarter of this; the bound keeps a hostile file
// of any size from costing more than this much memory.
inline constexpr std::uint64_t kMaxGgufHeaderBytes = 64ull << 20;

class GgufReader {
 public:
  // Both outlive the reader.
  GgufReader(std::span<const std::byte> file_bytes, const std::string& file);

  std::uint64_t offset() const { return offset_; }
  // Bytes that the header may still have.
  std::uint64_t remaining() const { return limit_ - offset_; }

  template <class Number>
  Number number(std::string_view what) {
    Number value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  // A length of 8 bytes, then that many bytes.
  std::string_view string(std::string_view what, std::uint64_t max_bytes = UINT64_MAX);
  std::span<const std::byte> take(std::uint64_t count, std::string_view what);

  [[noreturn]] void fail(std::uint64_t at, std::string expected, std::string found, std::string hint = {}) const;

 private:
  [[noreturn]] void fail_short(std::uint64_t at, std::uint64_t count, std::string_view what) const;

  std::span<const std::byte> file_bytes_;
  const std::string& file_;
  std::uint64_t limit_;
  std::uint64_t offset_ = 0;
};

}  // namespace genai
