#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <string>

#include "tokenizer/vocabulary.h"

namespace genai {
namespace {

// White_Space of Unicode. PCRE2 counts U+180E among \s as well, which Unicode and the trainers of vocabularies do not.
constexpr std::string_view kWhiteSpace = R"(\x{09}-\x{0D}\x{85}\p{Z})";

std::string with_unicode_white_space(std::string_view pattern) {
  std::string expanded;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char character = pattern[i];
    if (character != '\\' || i + 1 == pattern.size()) {
      if (character == '[') in_class = true;
      if (character == ']') in_class = false;
      expanded += character;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      expanded += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
    } else if (escaped == 'S' && !in_class) {
      expanded += fmt::format("[^{}]", kWhiteSpace);
    } else {
      expanded += character;
      expanded += escaped;
    }
  }
  return expanded;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// What matching needs besides the pattern; one for each call of split, because threads may not share it.
class Matcher {
 public:
  Matcher()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kFirstStackBytes, kLargestStackBytes, nullptr)) {
    if (data_ == nullptr || context_ == nullptr) {
      release();
      throw std::bad_alloc();
    }
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
    // The patterns are ours and have no nested repetition, so a long word is no reason to give up.
    pcre2_set_match_limit(context_, std::numeric_limits<std::uint32_t>::max());
  }
  ~Matcher() { release(); }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  // The first match at or after `from`; begin == end == text.size() if there is none.
  Range find(const pcre2_code* pattern, std::string_view text, std::size_t from) {
    const int found = pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_, context_);
    if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (found < 0) throw TokenizerError("pre-tokenizer: matching failed: " + pcre2_message(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_);
    return {range[0], range[1]};
  }

 private:
  static constexpr std::size_t kFirstStackBytes = std::size_t{32} << 10;
  static constexpr std::size_t kLargestStackBytes = std::size_t{16} << 20;

  void release() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }

  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

}  // namespace

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

PreTokenizer::Pattern PreTokenizer::compile(const std::string& pattern) {
  const std::string expanded = with_unicode_white_space(pattern);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  Pattern code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(), PCRE2_UTF | PCRE2_UCP,
                             &error, &error_offset, nullptr));
  if (code == nullptr) {
    throw TokenizerError(
        fmt::format("pre-tokenizer: pattern {} at {}: {}", expanded, error_offset, pcre2_message(error)));
  }
  // Where code may not be generated at run time, pcre2_match interprets: same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

PreTokenizer::PreTokenizer(const PreTokenizerRule& rule) {
  for (const std::string& pattern : rule.patterns) patterns_.push_back(compile(pattern));
}

PreTokenizer::~PreTokenizer() = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  Matcher matcher;
  for (const Pattern& pattern : patterns_) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) {
      std::size_t position = 0;
      while (position < piece.size()) {
        const auto [begin, end] = matcher.find(pattern.get(), piece, position);
        if (begin > position) finer.push_back(piece.substr(position, begin - position));
        if (end > begin) finer.push_back(piece.substr(begin, end - begin));
        position = end;
      }
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace genai
