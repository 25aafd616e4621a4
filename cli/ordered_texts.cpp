#include "cli/ordered_texts.h"

namespace genai::cli {

bool OrderedTexts::write(std::size_t row, std::string_view bytes) {
  if (row == turn_)
    put(bytes);
  else
    rows_[row].held += bytes;
  return !output_.reader_gone();
}

void OrderedTexts::end(std::size_t row) {
  rows_[row].ended = true;
  while (turn_ < rows_.size() && rows_[turn_].ended) {
    if (++turn_ == rows_.size()) return;
    put(kTextSeparator);
    put(rows_[turn_].held);
    rows_[turn_].held = {};
  }
}

void OrderedTexts::put(std::string_view bytes) {
  hash_.add(bytes);
  output_.write(bytes);
}

bool CollectedTexts::write(std::size_t row, std::string_view bytes) {
  texts_[row] += bytes;
  return true;
}

std::uint64_t CollectedTexts::output_hash() const {
  ContentHash hash;
  for (std::size_t row = 0; row < texts_.size(); ++row) {
    if (row > 0) hash.add(kTextSeparator);
    hash.add(texts_[row]);
  }
  return hash.value();
}

}  // namespace genai::cli
