// special_tokens.h - finds tokens that are spelled out in a text and stand for themselves, before anything else looks
// at it: control tokens (only where the caller trusts the text) and user-defined ones (always). Immutable; it borrows
// the texts of the tokens, which must outlive it.
#pragma once
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace genai {

class SpecialTokens {
 public:
  struct Token {
    std::string_view text;  // not empty; of several alike the first counts
    std::int32_t id;
    bool control;  // found only by a search that asks for control tokens
  };
  struct Match {
    std::size_t offset_bytes;
    std::size_t length_bytes;
    std::int32_t id;
  };

  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<Token> tokens);

  // The leftmost match at or after `from`, and the longest one there.
  std::optional<Match> find(std::string_view text, std::size_t from, bool with_control) const;

 private:
  std::optional<Match> longest_at(std::string_view text, std::size_t offset_bytes, bool with_control) const;

  std::vector<Token> tokens_;  // sorted by text
  std::bitset<256> first_bytes_;
};

}  // namespace genai
