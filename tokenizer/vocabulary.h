// vocabulary.h - a vocabulary as a model file embeds it: plain data, nothing checked, and the error for one that cannot
// be used. Whoever reads the file fills it in; make_tokenizer (tokenizer.h) checks it and owns it from then on.
#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace genai {

// A vocabulary that contradicts itself or is not supported, or a token id outside of it. It comes from a file that
// nobody vouches for, so the command line treats it as a bad model file. The hint says what the user can do.
class TokenizerError : public std::runtime_error {
 public:
  explicit TokenizerError(const std::string& what, std::string hint = {})
      : std::runtime_error(what), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// The numbers are those of the file format; 0 (undefined) is read as kNormal.
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Vocabulary {
  std::string model;  // "gpt2": byte-level BPE; "llama": SentencePiece BPE
  std::string pre;    // name of the pre-tokenizer, for "gpt2" only

  std::vector<std::string> tokens;  // the index is the id
  std::vector<float> scores;        // one a token, for "llama" only
  std::vector<TokenType> types;     // one a token, or empty: all normal
  std::vector<std::string> merges;  // "left right", best first, for "gpt2" only

  std::optional<std::uint32_t> bos_id;
  std::optional<std::uint32_t> eos_id;
  std::optional<std::uint32_t> eot_id;
  std::optional<std::uint32_t> eom_id;
  std::optional<std::uint32_t> unk_id;
  std::optional<std::uint32_t> pad_id;

  // Nothing where the file does not say; tokenizer/README.md lists what is assumed then.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

}  // namespace genai
