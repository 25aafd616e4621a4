// utf8.h - where one UTF-8 code point ends. Well-formed means the table of the Unicode standard: shortest form, no
// surrogates, nothing above U+10FFFF. Any bytes may be looked at.
#pragma once
#include <cstddef>
#include <string_view>

namespace genai {

enum class Utf8Kind {
  kWhole,       // a code point
  kUnfinished,  // the text ends inside what may still become a code point
  kInvalid,     // one byte that belongs to no code point
};

struct Utf8Step {
  Utf8Kind kind;
  std::size_t length_bytes;
};

// What `text` starts with. REQUIRES: `text` is not empty.
Utf8Step look_at_utf8(std::string_view text);

// Number of bytes at the start of `text` that are whole code points.
std::size_t whole_utf8_bytes(std::string_view text);

}  // namespace genai
