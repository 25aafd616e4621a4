// text_normalizer.h - Unicode normalisation form C: accents that follow their letters are joined with them. Some
// vocabularies were trained on text in that form only.
#pragma once
#include <string>
#include <string_view>

namespace genai {

// REQUIRES: `text` is whole UTF-8 code points (utf8.h).
std::string composed(std::string_view text);

}  // namespace genai
