// sentencepiece_tokenizer.h - SentencePiece BPE with byte fallback. The sentencepiece library merges; special tokens,
// the space in front and bytes that are no UTF-8 are handled here.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace genai {

struct SentencePieceModel;

// Files of this kind that name no BOS, EOS and unknown token mean tokens 1, 2 and 0, if those are of a fitting type.
Vocabulary with_sentencepiece_ids(Vocabulary vocabulary);

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // REQUIRES: `vocabulary` was returned by check_vocabulary. Throws TokenizerError.
  explicit SentencePieceTokenizer(Vocabulary vocabulary);
  ~SentencePieceTokenizer() override;

 private:
  SentencePieceTokenizer(const SentencePieceModel& model, Vocabulary&& vocabulary);

  void encode_plain(std::string_view text, bool first, std::vector<std::int32_t>& ids) const override;
  std::string visible_bytes(std::int32_t id) const override;

  // REQUIRES: `text` is whole UTF-8 code points.
  void encode_whole(std::string_view text, std::vector<std::int32_t>& ids) const;
  void emit_byte(unsigned char byte, std::vector<std::int32_t>& ids) const;
  void emit_unknown(std::vector<std::int32_t>& ids) const;

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::vector<std::int32_t> byte_ids_;  // 256, or none
  std::int32_t unknown_id_;             // vocabulary_size(): there is no such token
};

}  // namespace genai
