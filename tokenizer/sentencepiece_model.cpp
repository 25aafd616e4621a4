#include "tokenizer/sentencepiece_model.h"

#include <fmt/format.h>

#include <bit>
#include <bitset>
#include <cstddef>
#include <string_view>

#include "tokenizer/byte_level.h"

namespace genai {
namespace {

// The fields of sentencepiece_model.proto that are written. All others keep their defaults.
namespace model_field {
constexpr std::uint32_t kPieces = 1;
constexpr std::uint32_t kTrainerSpec = 2;
constexpr std::uint32_t kNormalizerSpec = 3;
}  // namespace model_field
namespace piece_field {
constexpr std::uint32_t kPiece = 1;
constexpr std::uint32_t kScore = 2;
constexpr std::uint32_t kType = 3;
}  // namespace piece_field
namespace trainer_field {
constexpr std::uint32_t kModelType = 3;
constexpr std::uint32_t kByteFallback = 35;
constexpr std::uint64_t kModelTypeBpe = 2;
}  // namespace trainer_field
namespace normalizer_field {
constexpr std::uint32_t kName = 1;
constexpr std::uint32_t kAddDummyPrefix = 3;
constexpr std::uint32_t kRemoveExtraWhitespaces = 4;
constexpr std::uint32_t kEscapeWhitespaces = 5;
}  // namespace normalizer_field

class Message {
 public:
  void add_number(std::uint32_t field, std::uint64_t number) {
    add_varint(std::uint64_t{field} << 3 | kWireVarint);
    add_varint(number);
  }
  void add_float(std::uint32_t field, float number) {
    add_varint(std::uint64_t{field} << 3 | kWireFixed32);
    const auto bits = std::bit_cast<std::uint32_t>(number);
    for (unsigned shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xFF);
  }
  void add_bytes(std::uint32_t field, std::string_view bytes) {
    add_varint(std::uint64_t{field} << 3 | kWireBytes);
    add_varint(bytes.size());
    bytes_ += bytes;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr std::uint64_t kWireVarint = 0;
  static constexpr std::uint64_t kWireBytes = 2;
  static constexpr std::uint64_t kWireFixed32 = 5;

  void add_varint(std::uint64_t number) {
    for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>(0x80 | (number & 0x7F));
    bytes_ += static_cast<char>(number);
  }

  std::string bytes_;
};

std::string piece_message(std::string_view text, float score, TokenType type) {
  Message piece;
  piece.add_bytes(piece_field::kPiece, text);
  piece.add_float(piece_field::kScore, score);
  piece.add_number(piece_field::kType, static_cast<std::uint64_t>(type));
  return piece.bytes();
}

// The library wants exactly one unknown piece. Files name it, or type it, or both, or give the type to many.
std::optional<std::size_t> find_unknown(const Vocabulary& vocabulary) {
  if (vocabulary.unk_id) return *vocabulary.unk_id;
  for (std::size_t id = 0; id < vocabulary.types.size(); ++id) {
    if (vocabulary.types[id] == TokenType::kUnknown) return id;
  }
  return std::nullopt;
}

bool check_byte_pieces(const Vocabulary& vocabulary) {
  std::bitset<256> found;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != TokenType::kByte) continue;
    const auto byte = byte_of_hex_name(vocabulary.tokens[id]);
    if (!byte || found.test(*byte)) {
      throw TokenizerError(fmt::format("vocabulary: token {} is a byte by its type, but not by its name", id),
                           "the model file is damaged or was converted wrongly; get or convert it again");
    }
    found.set(*byte);
  }
  if (found.any() && !found.all()) {
    throw TokenizerError(fmt::format("vocabulary: it has tokens for {} of the 256 bytes", found.count()),
                         "the model file is damaged or was converted wrongly; get or convert it again");
  }
  return found.all();
}

}  // namespace

SentencePieceModel make_sentencepiece_model(const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) {
    throw TokenizerError("vocabulary: it has no scores, which decide what a SentencePiece vocabulary merges",
                         "the model file is damaged or was converted wrongly; get or convert it again");
  }
  SentencePieceModel model;
  model.has_byte_pieces = check_byte_pieces(vocabulary);
  const std::optional<std::size_t> unknown = find_unknown(vocabulary);
  model.unknown_id = static_cast<std::int32_t>(unknown.value_or(vocabulary.tokens.size()));

  Message message;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    TokenType type = vocabulary.types[id];
    // The tokenizer finds special tokens before the library sees the text, so here they only keep their places.
    if (type == TokenType::kUserDefined || type == TokenType::kUnknown) type = TokenType::kControl;
    if (id == unknown) type = TokenType::kUnknown;
    const std::string& text = vocabulary.tokens[id];
    message.add_bytes(model_field::kPieces, piece_message(text.empty() ? fmt::format("<empty token {}>", id) : text,
                                                          vocabulary.scores[id], type));
  }
  if (!unknown) {
    message.add_bytes(model_field::kPieces, piece_message("<no such token>", 0.0f, TokenType::kUnknown));
  }

  Message trainer;
  trainer.add_number(trainer_field::kModelType, trainer_field::kModelTypeBpe);
  trainer.add_number(trainer_field::kByteFallback, model.has_byte_pieces ? 1 : 0);
  message.add_bytes(model_field::kTrainerSpec, trainer.bytes());

  Message normalizer;
  normalizer.add_bytes(normalizer_field::kName, "identity");
  normalizer.add_number(normalizer_field::kAddDummyPrefix, 0);
  normalizer.add_number(normalizer_field::kRemoveExtraWhitespaces, 0);
  normalizer.add_number(normalizer_field::kEscapeWhitespaces, 1);
  message.add_bytes(model_field::kNormalizerSpec, normalizer.bytes());

  model.serialized = message.bytes();
  return model;
}

}  // namespace genai
