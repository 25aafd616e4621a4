// pre_tokenizer.h - cuts text into the words inside of which byte-level BPE merges, by the patterns of one rule
// (pre_tokenizer_rules.h), compiled once. Immutable: any number of threads may split at a time.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/pre_tokenizer_rules.h"

struct pcre2_real_code_8;

namespace genai {

class PreTokenizer {
 public:
  explicit PreTokenizer(const PreTokenizerRule& rule);
  ~PreTokenizer();

  // The words, in order; together they are the text. REQUIRES: `text` is whole UTF-8 code points (utf8.h).
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Pattern = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  static Pattern compile(const std::string& pattern);

  std::vector<Pattern> patterns_;
};

}  // namespace genai
