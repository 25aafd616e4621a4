// tokenizer.h - text to token ids and back, for vocabularies that a model file embeds. The factory picks the algorithm
// and checks the vocabulary, which is untrusted. A Tokenizer is immutable: any number of threads may use one at a time.
// It never prints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/special_tokens.h"
#include "tokenizer/vocabulary.h"

namespace genai {

struct EncodeOptions {
  bool add_special = true;     // BOS and EOS where the vocabulary wants them; never a second one
  bool parse_special = false;  // control tokens spelled out in the text become those tokens; only for trusted text
};

struct TokenizerOptions {
  // A pre-tokenizer that is not known is replaced by the default one instead of refused. The ids will often be wrong.
  bool allow_unknown_pre = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Any bytes may be encoded. Throws TokenizerError if a byte has no token and there is no token for the unknown.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // The bytes that a reader sees, often not whole code points (utf8_stream.h). Control and unknown tokens are silent
  // unless `special`. Throws TokenizerError for an id outside of the vocabulary.
  std::string token_bytes(std::int32_t id, bool special = false) const;

  // The bytes of all tokens, without the space that encode put in front.
  std::string decode(std::span<const std::int32_t> ids, bool special = false) const;

  bool is_end_of_generation(std::int32_t id) const;
  // Ascending.
  const std::vector<std::int32_t>& end_of_generation_ids() const { return end_of_generation_ids_; }

  std::optional<std::int32_t> bos_id() const { return bos_id_; }
  std::optional<std::int32_t> eos_id() const { return eos_id_; }
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }
  bool adds_space_prefix() const { return adds_space_prefix_; }

  std::size_t vocabulary_size() const { return tokens_.size(); }
  // As the vocabulary spells it, not as a reader sees it. Throws like token_bytes.
  const std::string& token_text(std::int32_t id) const;
  TokenType token_type(std::int32_t id) const;
  // A walk over the vocabulary: for single questions, not for loops.
  std::optional<std::int32_t> find_token(std::string_view text) const;

 protected:
  // What a vocabulary of a kind does where the file does not say.
  struct Defaults {
    bool add_bos = false;
    bool add_eos = false;
    bool add_space_prefix = false;
  };

  // REQUIRES: a vocabulary that check_vocabulary has returned. Its tokens and types move in here.
  Tokenizer(Vocabulary&& vocabulary, const Defaults& defaults);

  // Appends the tokens of a piece of text without special tokens. `first` is true at the start and after special
  // tokens.
  virtual void encode_plain(std::string_view text, bool first, std::vector<std::int32_t>& ids) const = 0;
  // The bytes of a token of type normal, unused, byte or user-defined.
  virtual std::string visible_bytes(std::int32_t id) const = 0;

 private:
  std::vector<std::string> tokens_;
  std::vector<TokenType> types_;
  SpecialTokens special_tokens_;
  std::vector<std::int32_t> end_of_generation_ids_;
  std::optional<std::int32_t> bos_id_;
  std::optional<std::int32_t> eos_id_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool adds_space_prefix_ = false;
};

// Throws TokenizerError naming what is wrong with the vocabulary.
std::unique_ptr<Tokenizer> make_tokenizer(Vocabulary vocabulary, TokenizerOptions options = {});

}  // namespace genai
