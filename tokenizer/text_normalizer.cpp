#include "tokenizer/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tokenizer/vocabulary.h"

namespace genai {

std::string composed(std::string_view text) {
  // Below U+0300, whose first byte is 0xCC, everything is in form C already.
  const bool is_composed = std::all_of(text.begin(), text.end(),
                                       [](char character) { return static_cast<unsigned char>(character) < 0xCC; });
  if (is_composed) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length_bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(mapped, &std::free);
  if (length_bytes < 0) {
    throw TokenizerError(std::string("normalising the text failed: ") + utf8proc_errmsg(length_bytes));
  }
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length_bytes)};
}

}  // namespace genai
