// vocabulary_samples.h - two small vocabularies for tests that need no file: every byte and a few words in each.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/vocabulary.h"

namespace genai::test {

inline std::uint32_t append_token(Vocabulary& vocabulary, const std::string& text, TokenType type, float score = 0) {
  vocabulary.tokens.push_back(text);
  vocabulary.types.push_back(type);
  if (vocabulary.model == "llama") vocabulary.scores.push_back(score);
  return static_cast<std::uint32_t>(vocabulary.tokens.size() - 1);
}

// Ids 0 to 255 are the bytes. Then come the merges, in order of rank, and special tokens of three types.
inline Vocabulary byte_level_sample(const std::string& pre = "gpt-2") {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  for (unsigned byte = 0; byte < 256; ++byte) {
    append_token(vocabulary, std::string(byte_level_character(static_cast<unsigned char>(byte))), TokenType::kNormal);
  }
  vocabulary.merges = {"h e", "l l", "he ll", "hell o", "\u0120 hello", "a a", "aa aa", "a b", "\u0120 \u0120"};
  for (std::string merge : vocabulary.merges) {
    merge.erase(merge.find(' '), 1);
    append_token(vocabulary, merge, TokenType::kNormal);
  }
  vocabulary.bos_id = append_token(vocabulary, "<|begin|>", TokenType::kControl);
  vocabulary.eos_id = append_token(vocabulary, "<|im_end|>", TokenType::kControl);
  append_token(vocabulary, "<|endoftext|>", TokenType::kControl);
  append_token(vocabulary, "<think>", TokenType::kUserDefined);
  append_token(vocabulary, "<think>>", TokenType::kUserDefined);
  return vocabulary;
}

// Ids 0 to 2 are unknown, BOS and EOS, 3 to 258 the bytes; then come pieces, better ones first, and two special tokens.
inline Vocabulary sentencepiece_sample() {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.unk_id = append_token(vocabulary, "<unk>", TokenType::kUnknown);
  vocabulary.bos_id = append_token(vocabulary, "<s>", TokenType::kControl);
  vocabulary.eos_id = append_token(vocabulary, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    append_token(vocabulary, std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", TokenType::kByte);
  }
  float score = 0;
  for (const char* piece : {"he", "ll", "hell", "hello", "\u2581hello", "aa", "aaaa", "ab", "\u2581\u2581", "\u2581",
                            "h", "e", "l", "o", "a", "b", "\u00E9"}) {
    append_token(vocabulary, piece, TokenType::kNormal, score);
    score -= 1;
  }
  append_token(vocabulary, "<tag>", TokenType::kUserDefined);
  append_token(vocabulary, "\u2581\u2581\u2581", TokenType::kUserDefined);
  return vocabulary;
}

}  // namespace genai::test
