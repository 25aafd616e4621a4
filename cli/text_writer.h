// text_writer.h - from generated tokens to the bytes of a text: stop texts are found and cut off, half code points wait
// for their other half, and every token's text is out before the next token comes. One thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/content_hash.h"
#include "engine/decode/stop_matcher.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8_stream.h"

namespace genai::cli {

class TextWriter {
 public:
  // Takes bytes of the text; false: nobody reads any more.
  using Sink = std::function<bool(std::string_view bytes)>;

  TextWriter(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool show_special, Sink sink);

  // False when the text has ended: a stop text is complete, or nobody reads any more.
  bool push(std::int32_t token);
  // The text has ended for another reason: writes what was held back. Afterwards nothing may be pushed.
  void finish();

  bool stopped() const { return stops_.stopped(); }
  bool is_unwanted() const { return is_unwanted_; }
  // Of the bytes written.
  std::uint64_t output_hash() const { return hash_.value(); }

 private:
  void write(std::string_view bytes);

  const Tokenizer& tokenizer_;
  StopMatcher stops_;
  Utf8Stream code_points_;
  bool show_special_;
  Sink sink_;
  bool is_unwanted_ = false;
  ContentHash hash_;
};

}  // namespace genai::cli
