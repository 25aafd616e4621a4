// utf8_stream.h - turns the bytes of tokens, which may end inside a code point, into text that never does. Bytes that
// can belong to no code point pass through as they are and at once: nothing is replaced, dropped or held back for ever.
// All bytes pushed = all bytes returned by push and flush together. One thread.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace genai {

class Utf8Stream {
 public:
  // The bytes that became complete; at most three are held back.
  std::string push(std::string_view bytes);

  // The bytes held back, unfinished as they are. Call at the end of the text.
  std::string flush();

  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;
};

}  // namespace genai
