#include "tokenizer/utf8_stream.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace genai {

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::size_t complete_bytes = 0;
  while (complete_bytes < held_.size()) {
    const Utf8Step step = look_at_utf8(std::string_view(held_).substr(complete_bytes));
    if (step.kind == Utf8Kind::kUnfinished) break;
    complete_bytes += step.length_bytes;
  }
  std::string complete = held_.substr(0, complete_bytes);
  held_.erase(0, complete_bytes);
  return complete;
}

std::string Utf8Stream::flush() { return std::exchange(held_, {}); }

}  // namespace genai
