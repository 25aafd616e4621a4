// tokenizer_fuzz.cpp - arbitrary text through good vocabularies, and arbitrary damage to vocabularies. Text must come
// back byte for byte where nothing may be lost; a bad vocabulary may only end in a TokenizerError.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/vocabulary_samples.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"
#include "tokenizer/utf8_stream.h"

namespace genai {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_stream(FuzzedDataProvider& choices, std::string_view text) {
  Utf8Stream stream;
  std::string seen;
  std::string_view rest = text;
  const bool is_whole = whole_utf8_bytes(text) == text.size();
  while (!rest.empty()) {
    const std::size_t taken = choices.ConsumeIntegralInRange<std::size_t>(1, 7);
    const std::string emitted = stream.push(rest.substr(0, taken));
    require(stream.held_bytes() <= 3);
    require(!is_whole || whole_utf8_bytes(emitted) == emitted.size());
    seen += emitted;
    rest.remove_prefix(std::min(taken, rest.size()));
  }
  require(seen + stream.flush() == text);
}

std::vector<std::unique_ptr<Tokenizer>> make_lossless_tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const char* rule : {"gpt-2", "default", "llama-bpe", "gpt-4o", "deepseek-llm", "deepseek-v3", "kimi-k2"}) {
    tokenizers.push_back(make_tokenizer(test::byte_level_sample(rule)));
  }
  Vocabulary pieces = test::sentencepiece_sample();
  pieces.add_space_prefix = false;
  tokenizers.push_back(make_tokenizer(pieces));
  return tokenizers;
}

void check_lossless(FuzzedDataProvider& choices, const std::string& text) {
  static const auto tokenizers = make_lossless_tokenizers();
  const std::size_t chosen = choices.ConsumeIntegralInRange<std::size_t>(0, tokenizers.size() - 1);
  const Tokenizer& tokenizer = *tokenizers[chosen];
  const bool trusted = choices.ConsumeBool();
  const auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = trusted});
  // SentencePiece writes a space as U+2581, so that character itself cannot come back.
  const bool is_lossy = chosen + 1 == tokenizers.size() && text.find("\u2581") != std::string::npos;
  require(is_lossy || tokenizer.decode(ids, /*special=*/trusted) == text);
}

void damage(FuzzedDataProvider& choices, Vocabulary& vocabulary) {
  const auto any_id = [&] { return choices.ConsumeIntegralInRange<std::size_t>(0, vocabulary.tokens.size() - 1); };
  const auto any_text = [&] { return choices.ConsumeRandomLengthString(12); };
  switch (choices.ConsumeIntegralInRange<int>(0, 11)) {
    case 0:
      vocabulary.tokens[any_id()] = any_text();
      break;
    case 1:
      vocabulary.types[any_id()] = static_cast<TokenType>(choices.ConsumeIntegralInRange<std::int32_t>(-1, 8));
      break;
    case 2:
      if (!vocabulary.scores.empty()) vocabulary.scores[any_id()] = choices.ConsumeFloatingPoint<float>();
      break;
    case 3:
      vocabulary.merges.push_back(any_text());
      break;
    case 4:
      vocabulary.merges.push_back(any_text() + " " + any_text());
      break;
    case 5:
      test::append_token(vocabulary, any_text(),
                         static_cast<TokenType>(choices.ConsumeIntegralInRange<std::int32_t>(1, 6)),
                         choices.ConsumeFloatingPointInRange<float>(-20, 20));
      break;
    case 6:
      vocabulary.bos_id = choices.ConsumeIntegral<std::uint32_t>();
      break;
    case 7:
      vocabulary.unk_id = static_cast<std::uint32_t>(any_id());
      break;
    case 8:
      vocabulary.unk_id.reset();
      break;
    case 9:
      vocabulary.add_bos = choices.ConsumeBool();
      vocabulary.add_eos = choices.ConsumeBool();
      break;
    case 10:
      vocabulary.add_space_prefix = choices.ConsumeBool();
      break;
    case 11: {
      const std::size_t kept = choices.ConsumeIntegralInRange<std::size_t>(1, vocabulary.tokens.size());
      vocabulary.tokens.resize(kept);
      vocabulary.types.resize(kept);
      if (!vocabulary.scores.empty()) vocabulary.scores.resize(kept);
      break;
    }
  }
}

void check_damaged(FuzzedDataProvider& choices) {
  Vocabulary vocabulary = choices.ConsumeBool()
                              ? test::byte_level_sample(choices.PickValueInArray({"gpt-2", "llama-bpe", "qwen2", "?"}))
                              : test::sentencepiece_sample();
  for (int count = choices.ConsumeIntegralInRange<int>(0, 8); count > 0; --count) damage(choices, vocabulary);
  const bool trusted = choices.ConsumeBool();
  try {
    const auto tokenizer = make_tokenizer(std::move(vocabulary));
    const std::string text = choices.ConsumeRemainingBytesAsString();
    for (const std::int32_t id : tokenizer->encode(text, {.add_special = true, .parse_special = trusted})) {
      require(id >= 0 && static_cast<std::size_t>(id) < tokenizer->vocabulary_size());
      tokenizer->token_bytes(id, trusted);
    }
    for (const std::int32_t id : tokenizer->end_of_generation_ids()) require(tokenizer->is_end_of_generation(id));
  } catch (const TokenizerError&) {
  }
}

}  // namespace
}  // namespace genai

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t length_bytes) {
  FuzzedDataProvider choices(data, length_bytes);
  if (choices.ConsumeBool()) {
    genai::check_damaged(choices);
  } else {
    const std::string text = choices.ConsumeRandomLengthString();
    genai::check_stream(choices, text);
    genai::check_lossless(choices, text);
  }
  return 0;
}
