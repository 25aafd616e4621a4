#include "engine/model/printable_text.h"

namespace genai {
namespace {

// Length of the well-formed sequence at the front of `text` that a terminal may see, or 0.
std::size_t harmless_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead >= 0x20 && lead < 0x7f) return 1;
  std::size_t length = 0;
  if (lead >= 0xc2 && lead <= 0xdf) length = 2;
  if (lead >= 0xe0 && lead <= 0xef) length = 3;
  if (lead >= 0xf0 && lead <= 0xf4) length = 4;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool control = lead == 0xc2 && byte(1) < 0xa0;  // U+0080..U+009F
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool outside = (lead == 0xed && byte(1) >= 0xa0) || (lead == 0xf4 && byte(1) >= 0x90);
  return control || overlong || outside ? 0 : length;
}

}  // namespace

std::string printable_text(std::string_view text, std::size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    if (result.size() >= max_bytes) return result + "...";
    std::size_t length = harmless_length(text);
    if (length > 0) {
      result += text.substr(0, length);
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      if (byte == '\n') {
        result += "\\n";
      } else {
        result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
      length = 1;
    }
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace genai
