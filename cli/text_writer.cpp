#include "cli/text_writer.h"

#include <utility>

namespace genai::cli {

TextWriter::TextWriter(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool show_special, Sink sink)
    : tokenizer_(tokenizer), stops_(stops), show_special_(show_special), sink_(std::move(sink)) {}

bool TextWriter::push(std::int32_t token) {
  // A model may have more rows than its vocabulary has tokens; such a token has no text.
  if (static_cast<std::size_t>(token) >= tokenizer_.vocabulary_size()) return true;
  write(code_points_.push(stops_.push(tokenizer_.token_bytes(token, show_special_))));
  return !stops_.stopped() && !is_unwanted_;
}

void TextWriter::finish() {
  // After a stop the matcher holds nothing back; a half code point before it is part of the text.
  if (!stops_.stopped()) write(code_points_.push(stops_.flush()));
  write(code_points_.flush());
}

void TextWriter::write(std::string_view bytes) {
  if (bytes.empty()) return;
  hash_.add(bytes);
  if (!sink_(bytes)) is_unwanted_ = true;
}

}  // namespace genai::cli
