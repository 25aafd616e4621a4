#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <utility>

namespace genai {

SpecialTokens::SpecialTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  const auto text_less = [](const Token& a, const Token& b) { return a.text < b.text; };
  const auto text_equal = [](const Token& a, const Token& b) { return a.text == b.text; };
  std::stable_sort(tokens_.begin(), tokens_.end(), text_less);
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), text_equal), tokens_.end());
  for (const Token& token : tokens_) first_bytes_.set(static_cast<unsigned char>(token.text[0]));
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, std::size_t from,
                                                        bool with_control) const {
  for (std::size_t offset = from; offset < text.size(); ++offset) {
    if (!first_bytes_.test(static_cast<unsigned char>(text[offset]))) continue;
    if (const auto match = longest_at(text, offset, with_control)) return match;
  }
  return std::nullopt;
}

std::optional<SpecialTokens::Match> SpecialTokens::longest_at(std::string_view text, std::size_t offset_bytes,
                                                              bool with_control) const {
  // [first, last) are the tokens that begin with the bytes walked so far. In that order a token that ends here comes
  // first, because it is a prefix of all others.
  std::optional<Match> longest;
  auto first = tokens_.begin();
  auto last = tokens_.end();
  for (std::size_t depth = 0; offset_bytes + depth < text.size(); ++depth) {
    const auto byte = static_cast<unsigned char>(text[offset_bytes + depth]);
    const auto byte_at = [depth](const Token& token) { return static_cast<unsigned char>(token.text[depth]); };
    first = std::partition_point(first, last, [&](const Token& token) { return byte_at(token) < byte; });
    last = std::partition_point(first, last, [&](const Token& token) { return byte_at(token) == byte; });
    if (first == last) break;
    if (first->text.size() == depth + 1) {
      if (with_control || !first->control) longest = Match{offset_bytes, depth + 1, first->id};
      if (++first == last) break;
    }
  }
  return longest;
}

}  // namespace genai
