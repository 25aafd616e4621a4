#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/end_of_generation.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/vocabulary_check.h"

namespace genai {
namespace {

std::optional<std::int32_t> as_id(std::optional<std::uint32_t> id) {
  if (!id) return std::nullopt;
  return static_cast<std::int32_t>(*id);
}

bool is_silent(TokenType type) { return type == TokenType::kControl || type == TokenType::kUnknown; }

std::vector<SpecialTokens::Token> list_special_tokens(const std::vector<std::string>& tokens,
                                                      const std::vector<TokenType>& types) {
  std::vector<SpecialTokens::Token> special;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool control = is_silent(types[id]);
    if (tokens[id].empty() || !(control || types[id] == TokenType::kUserDefined)) continue;
    special.push_back({tokens[id], static_cast<std::int32_t>(id), control});
  }
  return special;
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary&& vocabulary, const Defaults& defaults)
    : end_of_generation_ids_(find_end_of_generation_ids(vocabulary)),
      bos_id_(as_id(vocabulary.bos_id)),
      eos_id_(as_id(vocabulary.eos_id)),
      adds_bos_(vocabulary.add_bos.value_or(defaults.add_bos) && vocabulary.bos_id),
      adds_eos_(vocabulary.add_eos.value_or(defaults.add_eos) && vocabulary.eos_id),
      adds_space_prefix_(vocabulary.add_space_prefix.value_or(defaults.add_space_prefix)) {
  tokens_ = std::move(vocabulary.tokens);
  types_ = std::move(vocabulary.types);
  special_tokens_ = SpecialTokens(list_special_tokens(tokens_, types_));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids;
  bool first = true;
  std::size_t position = 0;
  while (position < text.size()) {
    const auto match = special_tokens_.find(text, position, options.parse_special);
    const std::size_t plain_end = match ? match->offset_bytes : text.size();
    if (plain_end > position) encode_plain(text.substr(position, plain_end - position), first, ids);
    if (!match) break;
    ids.push_back(match->id);
    first = true;
    position = match->offset_bytes + match->length_bytes;
  }
  if (options.add_special && adds_bos_ && (ids.empty() || ids.front() != *bos_id_)) ids.insert(ids.begin(), *bos_id_);
  if (options.add_special && adds_eos_ && (ids.empty() || ids.back() != *eos_id_)) ids.push_back(*eos_id_);
  return ids;
}

std::string Tokenizer::token_bytes(std::int32_t id, bool special) const {
  const TokenType type = token_type(id);
  if (is_silent(type)) return special ? token_text(id) : std::string();
  return visible_bytes(id);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool special) const {
  std::string text;
  bool prefix_pending = adds_space_prefix_;
  for (const std::int32_t id : ids) {
    std::string bytes = token_bytes(id, special);
    // Encode puts its space before plain text, so a silent token (BOS) may stand in front of it.
    if (prefix_pending && !is_silent(token_type(id))) {
      if (!bytes.empty() && bytes.front() == ' ') bytes.erase(0, 1);
      prefix_pending = false;
    }
    text += bytes;
  }
  return text;
}

bool Tokenizer::is_end_of_generation(std::int32_t id) const {
  return std::binary_search(end_of_generation_ids_.begin(), end_of_generation_ids_.end(), id);
}

const std::string& Tokenizer::token_text(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) {
    throw TokenizerError(fmt::format("token id {} is outside of the vocabulary of {} tokens", id, tokens_.size()),
                         "a model and its vocabulary must come from the same file");
  }
  return tokens_[static_cast<std::size_t>(id)];
}

TokenType Tokenizer::token_type(std::int32_t id) const {
  token_text(id);  // throws if there is no such token
  return types_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::find_token(std::string_view text) const {
  const auto found = std::find(tokens_.begin(), tokens_.end(), text);
  if (text.empty() || found == tokens_.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - tokens_.begin());
}

std::unique_ptr<Tokenizer> make_tokenizer(Vocabulary vocabulary, TokenizerOptions options) {
  if (vocabulary.model == "gpt2") {
    return std::make_unique<BpeTokenizer>(check_vocabulary(std::move(vocabulary)), options.allow_unknown_pre);
  }
  if (vocabulary.model == "llama") {
    return std::make_unique<SentencePieceTokenizer>(check_vocabulary(with_sentencepiece_ids(std::move(vocabulary))));
  }
  throw TokenizerError(fmt::format("vocabulary: its model is '{}'; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece) "
                                   "are supported",
                                   vocabulary.model),
                       "convert a model with one of these two kinds of vocabulary");
}

}  // namespace genai
