#include "tokenizer/utf8.h"

#include <cassert>

namespace genai {
namespace {

struct LeadByte {
  std::size_t length_bytes;  // of the whole code point; 0: no code point starts so
  unsigned char second_low;  // range of the second byte
  unsigned char second_high;
};

LeadByte lead_byte(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step look_at_utf8(std::string_view text) {
  assert(!text.empty());
  const LeadByte lead = lead_byte(static_cast<unsigned char>(text[0]));
  if (lead.length_bytes == 0) return {Utf8Kind::kInvalid, 1};
  for (std::size_t i = 1; i < lead.length_bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kUnfinished, i};
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, 1};
  }
  return {Utf8Kind::kWhole, lead.length_bytes};
}

std::size_t whole_utf8_bytes(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    const Utf8Step step = look_at_utf8(text.substr(position));
    if (step.kind != Utf8Kind::kWhole) break;
    position += step.length_bytes;
  }
  return position;
}

}  // namespace genai
