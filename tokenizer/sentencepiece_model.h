// sentencepiece_model.h - writes the vocabulary that a model file embeds as the message (a ModelProto, in the wire
// format of protocol buffers) that the sentencepiece library loads, field by field.
#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/vocabulary.h"

namespace genai {

struct SentencePieceModel {
  std::string serialized;
  std::int32_t unknown_id;  // what the library answers for characters that it cannot express
  bool has_byte_pieces;     // then it expresses everything
};

// REQUIRES: a vocabulary that check_vocabulary has returned. Throws TokenizerError if there are no scores or only some
// of the 256 byte pieces.
SentencePieceModel make_sentencepiece_model(const Vocabulary& vocabulary);

}  // namespace genai
