#include "tokenizer/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "tokenizer/byte_level.h"
#include "tokenizer/text_normalizer.h"
#include "tokenizer/utf8.h"

namespace genai {
namespace {

const PreTokenizerRule& choose_rule(const std::string& name, bool allow_unknown) {
  if (const PreTokenizerRule* rule = find_pre_tokenizer_rule(name)) return *rule;
  if (allow_unknown) return default_pre_tokenizer_rule();
  const std::string problem = name.empty() ? "the file names no pre-tokenizer"
                                           : fmt::format("the pre-tokenizer '{}' of the file is not known", name);
  throw TokenizerError(fmt::format("vocabulary: {}; known are: {}", problem, known_pre_tokenizers()),
                       "tokens would differ from those the model was trained on; --force uses the default one");
}

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

// Strings to symbols, while the merges are read.
class BpeTokenizer::SymbolTable {
 public:
  void add_token(std::string_view text, SymbolId id) { symbols_.emplace(text, id); }
  void start_extra_symbols_at(SymbolId id) { first_extra_ = id; }

  SymbolId find_or_add(std::string_view text) {
    const auto found = symbols_.find(text);
    if (found != symbols_.end()) return found->second;
    const auto id = static_cast<SymbolId>(first_extra_ + extra_texts_.size());
    symbols_.emplace(extra_texts_.emplace_back(text), id);
    return id;
  }

  const std::deque<std::string>& extra_texts() const { return extra_texts_; }

 private:
  std::unordered_map<std::string_view, SymbolId> symbols_;
  std::deque<std::string> extra_texts_;  // keys point into it, so its strings must not move
  SymbolId first_extra_ = 0;
};

// Merges the symbols of one word after another. A heap holds every pair of neighbours that may merge; pairs that a
// merge has made stale are recognised when they come up. n log n for a word of n bytes.
class BpeTokenizer::WordMerger {
 public:
  explicit WordMerger(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void append_tokens(std::string_view word, std::vector<std::int32_t>& ids) {
    parts_.clear();
    for (std::size_t i = 0; i < word.size(); ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      parts_.push_back({tokenizer_.byte_symbols_[static_cast<unsigned char>(word[i])], index - 1, index + 1});
    }
    parts_.front().previous = kNone;
    parts_.back().next = kNone;
    for (std::uint32_t left = 0; left + 1 < parts_.size(); ++left) add_candidate(left);
    while (!candidates_.empty()) merge_best();
    for (std::uint32_t part = 0; part != kNone; part = parts_[part].next) tokenizer_.emit(parts_[part].symbol, ids);
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Part {
    SymbolId symbol;  // kNone once it was merged into its neighbour
    std::uint32_t previous;
    std::uint32_t next;
  };

  struct Candidate {
    std::uint32_t rank;
    std::uint32_t left;
    SymbolId left_symbol;
    SymbolId right_symbol;
    SymbolId merged;
  };

  static bool comes_later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }

  void add_candidate(std::uint32_t left) {
    const SymbolId left_symbol = parts_[left].symbol;
    const SymbolId right_symbol = parts_[parts_[left].next].symbol;
    const auto merge = tokenizer_.merges_.find(std::uint64_t{left_symbol} << 32 | right_symbol);
    if (merge == tokenizer_.merges_.end()) return;
    candidates_.push_back({merge->second.rank, left, left_symbol, right_symbol, merge->second.merged});
    std::push_heap(candidates_.begin(), candidates_.end(), comes_later);
  }

  void merge_best() {
    std::pop_heap(candidates_.begin(), candidates_.end(), comes_later);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Part& left = parts_[best.left];
    if (left.symbol != best.left_symbol || left.next == kNone) return;
    Part& right = parts_[left.next];
    if (right.symbol != best.right_symbol) return;

    left.symbol = best.merged;
    left.next = right.next;
    right.symbol = kNone;
    if (left.next != kNone) {
      parts_[left.next].previous = best.left;
      add_candidate(best.left);
    }
    if (left.previous != kNone) add_candidate(left.previous);
  }

  const BpeTokenizer& tokenizer_;
  std::vector<Part> parts_;
  std::vector<Candidate> candidates_;  // a heap, the best on top
};

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary, bool allow_unknown_pre)
    : BpeTokenizer(std::move(vocabulary), choose_rule(vocabulary.pre, allow_unknown_pre)) {}

BpeTokenizer::BpeTokenizer(Vocabulary&& vocabulary, const PreTokenizerRule& rule)
    : Tokenizer(std::move(vocabulary), {.add_bos = rule.adds_bos_default}),
      pre_tokenizer_(rule),
      composes_(rule.composes) {
  SymbolTable symbols;
  symbols.start_extra_symbols_at(static_cast<SymbolId>(vocabulary_size()));
  for (std::size_t index = 0; index < vocabulary_size(); ++index) {
    const auto id = static_cast<std::int32_t>(index);
    if (!is_mergeable(id)) continue;
    symbols.add_token(token_text(id), static_cast<SymbolId>(id));
    if (rule.whole_words) whole_words_.emplace(bytes_of_byte_level(token_text(id)), id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = symbols.find_or_add(byte_level_character(static_cast<unsigned char>(byte)));
  }
  add_merges(vocabulary.merges, symbols);
  for (const std::string& text : symbols.extra_texts()) extra_symbol_bytes_.push_back(bytes_of_byte_level(text));
  replacement_ = choose_replacement(vocabulary.unk_id);
}

bool BpeTokenizer::is_mergeable(std::int32_t id) const {
  const TokenType type = token_type(id);
  return type == TokenType::kNormal || type == TokenType::kUnused || type == TokenType::kByte;
}

void BpeTokenizer::add_merges(const std::vector<std::string>& lines, SymbolTable& symbols) {
  merges_.reserve(lines.size());
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == line.size()) {
      throw TokenizerError(fmt::format("vocabulary: merge {} is not two strings with a space between them", rank),
                           "the model file is damaged or was converted wrongly; get or convert it again");
    }
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    const SymbolId left_symbol = symbols.find_or_add(left);
    const SymbolId right_symbol = symbols.find_or_add(right);
    const SymbolId merged = symbols.find_or_add(std::string(left).append(right));
    merges_.try_emplace(std::uint64_t{left_symbol} << 32 | right_symbol,
                        Merge{static_cast<std::uint32_t>(rank), merged});
  }
}

std::vector<std::int32_t> BpeTokenizer::choose_replacement(std::optional<std::uint32_t> unk_id) const {
  std::vector<std::int32_t> ids;
  for (const char character : kReplacementCharacter) {
    const SymbolId symbol = byte_symbols_[static_cast<unsigned char>(character)];
    if (symbol >= vocabulary_size()) {
      if (!unk_id) return {};
      return {static_cast<std::int32_t>(*unk_id)};
    }
    ids.push_back(static_cast<std::int32_t>(symbol));
  }
  return ids;
}

void BpeTokenizer::encode_plain(std::string_view text, bool /*first*/, std::vector<std::int32_t>& ids) const {
  WordMerger merger(*this);
  while (!text.empty()) {
    const std::string_view whole = text.substr(0, whole_utf8_bytes(text));
    const std::string normalised = composes_ ? composed(whole) : std::string();
    for (const std::string_view word : pre_tokenizer_.split(composes_ ? normalised : whole)) {
      const auto whole_word = whole_words_.find(word);
      if (whole_word != whole_words_.end()) {
        ids.push_back(whole_word->second);
      } else {
        merger.append_tokens(word, ids);
      }
    }
    text.remove_prefix(whole.size());
    if (text.empty()) break;
    emit_byte(static_cast<unsigned char>(text.front()), ids);
    text.remove_prefix(1);
  }
}

void BpeTokenizer::emit(SymbolId symbol, std::vector<std::int32_t>& ids) const {
  if (symbol < vocabulary_size()) {
    ids.push_back(static_cast<std::int32_t>(symbol));
    return;
  }
  for (const char character : extra_symbol_bytes_[symbol - vocabulary_size()]) {
    emit_byte(static_cast<unsigned char>(character), ids);
  }
}

void BpeTokenizer::emit_byte(unsigned char byte, std::vector<std::int32_t>& ids) const {
  const SymbolId symbol = byte_symbols_[byte];
  if (symbol < vocabulary_size()) {
    ids.push_back(static_cast<std::int32_t>(symbol));
    return;
  }
  if (replacement_.empty()) {
    throw TokenizerError(fmt::format("the vocabulary has no token for the byte 0x{:02X}", byte),
                         "the vocabulary of this model cannot express the text");
  }
  ids.insert(ids.end(), replacement_.begin(), replacement_.end());
}

std::string BpeTokenizer::visible_bytes(std::int32_t id) const {
  const std::string& text = token_text(id);
  switch (token_type(id)) {
    case TokenType::kUserDefined:
      return text;
    case TokenType::kByte:
      if (const auto byte = byte_of_hex_name(text)) return {static_cast<char>(*byte)};
      [[fallthrough]];
    default:
      return bytes_of_byte_level(text);
  }
}

}  // namespace genai
