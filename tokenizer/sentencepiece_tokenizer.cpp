#include "tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <cstddef>
#include <string>
#include <utility>

#include "tokenizer/byte_level.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/utf8.h"

namespace genai {
namespace {

constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";  // U+2581 stands for a space in pieces

std::string with_spaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    if (piece.starts_with(kVisibleSpace)) {
      text += ' ';
      piece.remove_prefix(kVisibleSpace.size());
    } else {
      text += piece.front();
      piece.remove_prefix(1);
    }
  }
  return text;
}

// User-defined tokens are compared with the text as it is, so a visible space in their names must be a real one.
Vocabulary with_real_spaces(Vocabulary vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] == TokenType::kUserDefined) vocabulary.tokens[id] = with_spaces(vocabulary.tokens[id]);
  }
  return vocabulary;
}

bool has_type(const Vocabulary& vocabulary, std::size_t id, TokenType type) {
  return id < vocabulary.types.size() && vocabulary.types[id] == type;
}

}  // namespace

Vocabulary with_sentencepiece_ids(Vocabulary vocabulary) {
  if (!vocabulary.unk_id && has_type(vocabulary, 0, TokenType::kUnknown)) vocabulary.unk_id = 0;
  if (!vocabulary.bos_id && has_type(vocabulary, 1, TokenType::kControl)) vocabulary.bos_id = 1;
  if (!vocabulary.eos_id && has_type(vocabulary, 2, TokenType::kControl)) vocabulary.eos_id = 2;
  return vocabulary;
}

SentencePieceTokenizer::SentencePieceTokenizer(Vocabulary vocabulary)
    : SentencePieceTokenizer(make_sentencepiece_model(vocabulary), std::move(vocabulary)) {}

SentencePieceTokenizer::SentencePieceTokenizer(const SentencePieceModel& model, Vocabulary&& vocabulary)
    : Tokenizer(with_real_spaces(std::move(vocabulary)), {.add_bos = true, .add_space_prefix = true}),
      processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()),
      unknown_id_(model.unknown_id) {
  const auto status = processor_->LoadFromSerializedProto(model.serialized);
  if (!status.ok()) {
    throw TokenizerError(std::string("vocabulary: the sentencepiece library refuses it: ") + status.error_message(),
                         "the model file is damaged or was converted wrongly; get or convert it again");
  }
  if (!model.has_byte_pieces) return;
  byte_ids_.resize(256);
  for (std::size_t index = 0; index < vocabulary_size(); ++index) {
    const auto id = static_cast<std::int32_t>(index);
    if (token_type(id) == TokenType::kByte) byte_ids_[byte_of_hex_name(token_text(id)).value()] = id;
  }
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode_plain(std::string_view text, bool first, std::vector<std::int32_t>& ids) const {
  std::string prefixed;
  if (first && adds_space_prefix()) {
    prefixed = " ";
    prefixed += text;
    text = prefixed;
  }
  while (!text.empty()) {
    const std::size_t whole_bytes = whole_utf8_bytes(text);
    if (whole_bytes > 0) encode_whole(text.substr(0, whole_bytes), ids);
    text.remove_prefix(whole_bytes);
    if (text.empty()) break;
    emit_byte(static_cast<unsigned char>(text.front()), ids);
    text.remove_prefix(1);
  }
}

void SentencePieceTokenizer::encode_whole(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<int> pieces;
  const auto status = processor_->Encode(text, &pieces);
  if (!status.ok()) {
    throw TokenizerError(std::string("the sentencepiece library cannot encode the text: ") + status.error_message());
  }
  for (const int piece : pieces) {
    if (piece == unknown_id_) {
      emit_unknown(ids);
    } else {
      ids.push_back(piece);
    }
  }
}

void SentencePieceTokenizer::emit_byte(unsigned char byte, std::vector<std::int32_t>& ids) const {
  if (byte_ids_.empty()) {
    emit_unknown(ids);
  } else {
    ids.push_back(byte_ids_[byte]);
  }
}

void SentencePieceTokenizer::emit_unknown(std::vector<std::int32_t>& ids) const {
  if (static_cast<std::size_t>(unknown_id_) == vocabulary_size()) {
    throw TokenizerError("the vocabulary has no tokens for bytes and none for the unknown",
                         "the vocabulary of this model cannot express the text");
  }
  ids.push_back(unknown_id_);
}

std::string SentencePieceTokenizer::visible_bytes(std::int32_t id) const {
  if (token_type(id) == TokenType::kByte) {
    return {static_cast<char>(byte_of_hex_name(token_text(id)).value())};
  }
  return with_spaces(token_text(id));
}

}  // namespace genai
