#include "tokenizer/byte_level.h"

#include <array>
#include <charconv>
#include <system_error>

#include "tokenizer/utf8.h"

namespace genai {
namespace {

constexpr unsigned kFirstBorrowed = 0x100;  // bytes that print badly borrow characters from here on
constexpr unsigned kAlphabetEnd = kFirstBorrowed + 68;

bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<std::string, 256> character_of_byte;
  std::array<int, kAlphabetEnd> byte_of_code_point;  // -1: not in the alphabet
};

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of_code_point.fill(-1);
  unsigned next_borrowed = kFirstBorrowed;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned code_point = stands_for_itself(byte) ? byte : next_borrowed++;
    alphabet.byte_of_code_point[code_point] = static_cast<int>(byte);
    if (code_point < 0x80) {
      alphabet.character_of_byte[byte] = {static_cast<char>(code_point)};
    } else {
      alphabet.character_of_byte[byte] = {static_cast<char>(0xC0 | (code_point >> 6)),
                                          static_cast<char>(0x80 | (code_point & 0x3F))};
    }
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet made = make_alphabet();
  return made;
}

}  // namespace

std::string_view byte_level_character(unsigned char byte) { return alphabet().character_of_byte[byte]; }

std::optional<unsigned char> byte_of_character(std::string_view text) {
  const Utf8Step step = look_at_utf8(text);
  if (step.kind != Utf8Kind::kWhole || step.length_bytes > 2) return std::nullopt;
  unsigned code_point = static_cast<unsigned char>(text[0]);
  if (step.length_bytes == 2) {
    code_point = (code_point & 0x1F) << 6 | (static_cast<unsigned char>(text[1]) & 0x3F);
  }
  if (code_point >= kAlphabetEnd || alphabet().byte_of_code_point[code_point] < 0) return std::nullopt;
  return static_cast<unsigned char>(alphabet().byte_of_code_point[code_point]);
}

std::string bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const std::size_t length_bytes = look_at_utf8(token).length_bytes;
    if (const auto byte = byte_of_character(token)) {
      bytes += static_cast<char>(*byte);
    } else {
      bytes += token.substr(0, length_bytes);
    }
    token.remove_prefix(length_bytes);
  }
  return bytes;
}

std::optional<unsigned char> byte_of_hex_name(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const std::string_view digits = token.substr(3, 2);
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return byte;
}

}  // namespace genai
