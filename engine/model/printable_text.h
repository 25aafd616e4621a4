// printable_text.h - bytes of an untrusted file made fit for an error message or a terminal: UTF-8 passes, control
// characters and broken sequences become \xNN, long text is cut.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace genai {

// At most about `max_bytes` bytes; "..." marks a cut, never inside a code point.
std::string printable_text(std::string_view text, std::size_t max_bytes = 80);

}  // namespace genai
