// content_hash.h - the 64-bit FNV-1a hash of bytes, for recognising a prompt, an output or a model file in reports. It
// tells different things apart by accident, not by malice.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace genai::cli {

class ContentHash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) value_ = (value_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ull;
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
  // Little-endian, whatever the machine.
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) value_ = (value_ ^ ((number >> shift) & 0xff)) * 0x100000001b3ull;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ull;
};

// Sixteen hexadecimal digits.
std::string hash_text(std::uint64_t hash);

}  // namespace genai::cli
