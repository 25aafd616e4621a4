// byte_level.h - the alphabet in which byte-level BPE vocabularies are written: one printable character for each byte,
// so that a space reads "Ġ" and a line end "Ċ".
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace genai {

// The character of a byte, in UTF-8: one or two bytes.
std::string_view byte_level_character(unsigned char byte);

// The byte of the character that `text` starts with; nothing if it is not of this alphabet. REQUIRES: not empty.
std::optional<unsigned char> byte_of_character(std::string_view text);

// The bytes that a token stands for. Characters outside of the alphabet stand for themselves.
std::string bytes_of_byte_level(std::string_view token);

// The byte that a token named like "<0x0A>" stands for; nothing for other names.
std::optional<unsigned char> byte_of_hex_name(std::string_view token);

}  // namespace genai
