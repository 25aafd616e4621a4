// ordered_texts.h - texts that grow at the same time, one after the other on stdout: in the order of the prompts, each
// token of the text whose turn it is at once, the others held until theirs. One thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/content_hash.h"
#include "cli/output.h"
#include "cli/text_requests.h"

namespace genai::cli {

// Between two texts: a line with the character U+001E alone, which is made for this.
inline constexpr std::string_view kTextSeparator = "\n\x1e\n";

class OrderedTexts final : public TextSink {
 public:
  OrderedTexts(std::size_t row_count, Output& output) : output_(output), rows_(row_count) {}

  bool write(std::size_t row, std::string_view bytes) override;
  void end(std::size_t row) override;
  bool is_closed() const override { return output_.reader_gone(); }

  // Of the bytes written, separators included.
  std::uint64_t output_hash() const { return hash_.value(); }

 private:
  struct Row {
    std::string held;
    bool ended = false;
  };
  void put(std::string_view bytes);

  Output& output_;
  std::vector<Row> rows_;
  std::size_t turn_ = 0;
  ContentHash hash_;
};

// Keeps the texts, for a document of all of them.
class CollectedTexts final : public TextSink {
 public:
  explicit CollectedTexts(std::size_t row_count) : texts_(row_count) {}

  bool write(std::size_t row, std::string_view bytes) override;
  void end(std::size_t) override {}
  bool is_closed() const override { return false; }

  const std::vector<std::string>& texts() const { return texts_; }
  // What OrderedTexts has for the same texts.
  std::uint64_t output_hash() const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace genai::cli
