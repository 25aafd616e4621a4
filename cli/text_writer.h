// text_writer.h - from generated tokens to bytes on stdout: stop texts are found and cut off, half code points wait for
// their other half, and every token's text is out before the next token comes. One thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/content_hash.h"
#include "cli/output.h"
#include "engine/decode/stop_matcher.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8_stream.h"

namespace genai::cli {

class TextWriter {
 public:
  TextWriter(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool show_special, Output& output);

  // False when the text has ended: a stop text is complete, or nobody reads any more.
  bool push(std::int32_t token);
  // The text has ended for another reason: writes what was held back. Afterwards nothing may be pushed.
  void finish();

  bool stopped() const { return stops_.stopped(); }
  // Of the bytes written.
  std::uint64_t output_hash() const { return hash_.value(); }

 private:
  void write(std::string_view bytes);

  const Tokenizer& tokenizer_;
  StopMatcher stops_;
  Utf8Stream code_points_;
  bool show_special_;
  Output& output_;
  ContentHash hash_;
};

}  // namespace genai::cli
