// bpe_tokenizer.h - byte-level BPE: text is cut into words (pre_tokenizer.h), a word into bytes, and neighbours merge
// in the order of the vocabulary's list. Merging works on numbers only; strings are looked at when a vocabulary is
// loaded.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace genai {

class BpeTokenizer final : public Tokenizer {
 public:
  // REQUIRES: `vocabulary` was returned by check_vocabulary. Throws TokenizerError for bad merges or an unknown `pre`.
  BpeTokenizer(Vocabulary vocabulary, bool allow_unknown_pre);

 private:
  // A symbol is a string that occurs in merging. Symbols below the size of the vocabulary are the tokens of the same
  // number; above are strings that bytes or merges name but that are no tokens to be emitted.
  using SymbolId = std::uint32_t;

  struct Merge {
    std::uint32_t rank;  // lower merges first
    SymbolId merged;
  };

  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  class SymbolTable;
  class WordMerger;

  BpeTokenizer(Vocabulary&& vocabulary, const PreTokenizerRule& rule);

  void encode_plain(std::string_view text, bool first, std::vector<std::int32_t>& ids) const override;
  std::string visible_bytes(std::int32_t id) const override;

  // Whether plain text can become this token. Special tokens are found before, by their spelling.
  bool is_mergeable(std::int32_t id) const;
  void add_merges(const std::vector<std::string>& lines, SymbolTable& symbols);
  std::vector<std::int32_t> choose_replacement(std::optional<std::uint32_t> unk_id) const;

  void emit(SymbolId symbol, std::vector<std::int32_t>& ids) const;
  void emit_byte(unsigned char byte, std::vector<std::int32_t>& ids) const;

  PreTokenizer pre_tokenizer_;
  bool composes_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left symbol << 32 | right symbol
  std::array<SymbolId, 256> byte_symbols_{};
  std::vector<std::string> extra_symbol_bytes_;  // of the symbols that are no tokens
  std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> whole_words_;  // empty: not the rule's way
  std::vector<std::int32_t> replacement_;  // stands for a byte without token; empty: nothing can
};

}  // namespace genai
