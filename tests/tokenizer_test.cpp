// tokenizer_test.cpp - merging, special tokens, ends of generation and refusals, on vocabularies made here. What others
// publish is compared in tokenizer_vectors_test.cpp.
#include "tokenizer/tokenizer.h"

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/catch.h"
#include "tests/vocabulary_samples.h"

namespace genai {
namespace {

using Ids = std::vector<std::int32_t>;
using test::append_token;
using test::byte_level_sample;
using test::sentencepiece_sample;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kTrusted{.add_special = false, .parse_special = true};

// The tokens of a text by their names, separated by bars.
std::string named(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = kPlain) {
  std::string names;
  for (const std::int32_t id : tokenizer.encode(text, options)) {
    if (!names.empty()) names += '|';
    names += tokenizer.token_text(id);
  }
  return names;
}

TEST_CASE("bpe merges by rank, and from the left where ranks are equal") {
  const auto tokenizer = make_tokenizer(byte_level_sample());
  CHECK(named(*tokenizer, "hello hello") == "hello|\u0120hello");
  CHECK(named(*tokenizer, "hell") == "hell");
  CHECK(named(*tokenizer, "aaa") == "aa|a");
  CHECK(named(*tokenizer, "aaaaaaa") == "aaaa|aa|a");
  CHECK(named(*tokenizer, "aab") == "aa|b");    // "a a" comes before "a b"
  CHECK(named(*tokenizer, "aaab") == "aa|ab");  // and takes the first two
  CHECK(named(*tokenizer, "") == "");
}

TEST_CASE("bpe never merges across words") {
  const auto tokenizer = make_tokenizer(byte_level_sample());
  CHECK(named(*tokenizer, "h ello") == "h|\u0120|e|ll|o");
  CHECK(named(*tokenizer, "a  b") == "a|\u0120|\u0120|b");
  CHECK(named(*tokenizer, "a  ") == "a|\u0120\u0120");
}

TEST_CASE("bpe spells what a merge makes in bytes if it is no token") {
  Vocabulary vocabulary = byte_level_sample();
  vocabulary.merges.push_back("o o");
  vocabulary.merges.push_back("oo k");
  append_token(vocabulary, "ook", TokenType::kNormal);
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "oo") == "o|o");
  CHECK(named(*tokenizer, "look") == "l|ook");
}

TEST_CASE("bpe never makes a control token of plain text") {
  Vocabulary vocabulary = byte_level_sample("llama-bpe");
  vocabulary.merges.push_back("x y");
  append_token(vocabulary, "xy", TokenType::kControl);
  append_token(vocabulary, "zz", TokenType::kControl);
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "xy") == "x|y");
  CHECK(named(*tokenizer, "zz") == "z|z");
  CHECK(named(*tokenizer, "xy", kTrusted) == "xy");
}

TEST_CASE("bpe takes a whole word that is a token where the rule asks for it") {
  Vocabulary vocabulary = byte_level_sample();
  append_token(vocabulary, "\u0120word", TokenType::kNormal);
  vocabulary.pre = "gpt-2";
  CHECK(named(*make_tokenizer(vocabulary), "a word") == "a|\u0120|w|o|r|d");
  vocabulary.pre = "llama-bpe";
  vocabulary.add_bos = false;
  CHECK(named(*make_tokenizer(vocabulary), "a word") == "a|\u0120word");
}

TEST_CASE("bpe composes accents where the vocabulary was trained so, and nowhere else") {
  const std::string decomposed = "e\u0301 \xFF e\u0301";
  const auto composing = make_tokenizer(byte_level_sample("qwen2"));
  CHECK(composing->decode(composing->encode(decomposed)) == "\u00E9 \xFF \u00E9");
  const auto keeping = make_tokenizer(byte_level_sample("gpt-2"));
  CHECK(keeping->decode(keeping->encode(decomposed)) == decomposed);
}

TEST_CASE("bpe byte without a token becomes the replacement character, else the unknown token, else an error") {
  Vocabulary vocabulary = byte_level_sample();
  vocabulary.tokens[0xFF] = "unreachable 1";
  {
    const auto tokenizer = make_tokenizer(vocabulary);
    CHECK(tokenizer->decode(tokenizer->encode("a\xFFz")) == "a\uFFFDz");
  }
  vocabulary.tokens[0xEF] = "unreachable 2";
  CHECK_THROWS_WITH(make_tokenizer(vocabulary)->encode("a\xFF"), Catch::Contains("0xFF"));
  vocabulary.unk_id = 7;
  CHECK(make_tokenizer(vocabulary)->encode("a\xFFz", kPlain) == Ids{'a', 7, 'z'});
}

TEST_CASE("bpe of one word of 200 KB merges to the end") {
  constexpr std::size_t kLength = 200'000;
  const auto tokenizer = make_tokenizer(byte_level_sample());
  const Ids ids = tokenizer->encode(std::string(kLength, 'a'), kPlain);
  CHECK(ids.size() == kLength / 4);
  CHECK(tokenizer->decode(ids) == std::string(kLength, 'a'));
  std::string alternating;
  while (alternating.size() < kLength) alternating += "hellob";
  CHECK(tokenizer->encode(alternating, kPlain).size() == 2 * alternating.size() / 6);
}

TEST_CASE("control tokens are read from trusted text only, user-defined ones always") {
  const auto tokenizer = make_tokenizer(byte_level_sample());
  const std::string text = "a<|im_end|><think>b";
  CHECK(named(*tokenizer, text, kTrusted) == "a|<|im_end|>|<think>|b");
  CHECK(named(*tokenizer, text) == "a|<|||i|m|_|e|n|d|||>|<think>|b");
  CHECK(tokenizer->decode(tokenizer->encode(text, kPlain)) == text);
}

TEST_CASE("the longest special token at the leftmost place is taken") {
  Vocabulary vocabulary = byte_level_sample();
  append_token(vocabulary, "y<think>", TokenType::kControl);
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "<think>>") == "<think>>");
  CHECK(named(*tokenizer, "<think><think>>x") == "<think>|<think>>|x");
  CHECK(named(*tokenizer, "xy<think>>", kTrusted) == "x|y<think>|>");
  CHECK(named(*tokenizer, "xy<think>>") == "x|y|<think>>");
  CHECK(named(*tokenizer, "<thin") == "<|t|h|i|n");
}

TEST_CASE("control tokens are silent unless asked for, user-defined ones are not") {
  const auto tokenizer = make_tokenizer(byte_level_sample());
  const std::int32_t end = *tokenizer->eos_id();
  CHECK(tokenizer->token_bytes(end).empty());
  CHECK(tokenizer->token_bytes(end, /*special=*/true) == "<|im_end|>");
  CHECK(tokenizer->token_bytes(*tokenizer->find_token("<think>")) == "<think>");
  CHECK(tokenizer->token_bytes(*tokenizer->find_token("\u0120hello")) == " hello");
  CHECK(tokenizer->token_bytes(0xFF) == "\xFF");
  CHECK_FALSE(tokenizer->find_token("not there"));
}

TEST_CASE("a token id outside of the vocabulary is an error with both numbers") {
  const auto tokenizer = make_tokenizer(byte_level_sample());
  const auto size = static_cast<std::int32_t>(tokenizer->vocabulary_size());
  CHECK_NOTHROW(tokenizer->token_bytes(size - 1));
  CHECK_THROWS_WITH(tokenizer->token_bytes(size), Catch::Contains(std::to_string(size)));
  CHECK_THROWS_AS(tokenizer->token_bytes(-1), TokenizerError);
  CHECK_FALSE(tokenizer->is_end_of_generation(-1));
  CHECK_FALSE(tokenizer->is_end_of_generation(size));
}

TEST_CASE("bos and eos are added where the vocabulary wants them, and never twice") {
  Vocabulary vocabulary = byte_level_sample();
  CHECK(named(*make_tokenizer(vocabulary), "a", {}) == "a");
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "a", {}) == "<|begin|>|a|<|im_end|>");
  CHECK(named(*tokenizer, "", {}) == "<|begin|>|<|im_end|>");
  CHECK(named(*tokenizer, "a") == "a");
  CHECK(named(*tokenizer, "<|begin|>a<|im_end|>", {.add_special = true, .parse_special = true}) ==
        "<|begin|>|a|<|im_end|>");
}

TEST_CASE("a rule decides about bos only where the file does not say") {
  Vocabulary vocabulary = byte_level_sample("llama-bpe");
  CHECK(make_tokenizer(vocabulary)->adds_bos());
  vocabulary.add_bos = false;
  CHECK_FALSE(make_tokenizer(vocabulary)->adds_bos());
  vocabulary.add_bos.reset();
  vocabulary.bos_id.reset();
  CHECK_FALSE(make_tokenizer(vocabulary)->adds_bos());
}

TEST_CASE("every end of generation counts: by id in the file and by name") {
  Vocabulary vocabulary = byte_level_sample();
  const auto eot = append_token(vocabulary, "<turn over>", TokenType::kControl);
  const auto eom = append_token(vocabulary, "<message over>", TokenType::kNormal);
  const auto turn = append_token(vocabulary, "<end_of_turn>", TokenType::kControl);
  vocabulary.eot_id = eot;
  vocabulary.eom_id = eom;
  const auto tokenizer = make_tokenizer(vocabulary);
  const auto im_end = *tokenizer->find_token("<|im_end|>");
  CHECK(tokenizer->end_of_generation_ids() == Ids{im_end, *tokenizer->find_token("<|endoftext|>"),
                                                  static_cast<std::int32_t>(eot), static_cast<std::int32_t>(eom),
                                                  static_cast<std::int32_t>(turn)});
  CHECK(tokenizer->is_end_of_generation(im_end));
  CHECK_FALSE(tokenizer->is_end_of_generation('a'));
}

TEST_CASE("markup that is spelled like an end token ends nothing, a mistyped end token does") {
  Vocabulary vocabulary = byte_level_sample();
  vocabulary.eos_id.reset();
  append_token(vocabulary, "</s>", TokenType::kUserDefined);
  append_token(vocabulary, "<|eot_id|>", TokenType::kUserDefined);
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK_FALSE(tokenizer->is_end_of_generation(*tokenizer->find_token("</s>")));
  CHECK(tokenizer->token_bytes(*tokenizer->find_token("</s>")) == "</s>");
  const auto end = *tokenizer->find_token("<|eot_id|>");
  CHECK(tokenizer->is_end_of_generation(end));
  CHECK(tokenizer->token_bytes(end).empty());
  CHECK(named(*tokenizer, "<|eot_id|>") != "<|eot_id|>");
}

TEST_CASE("the end of a message is no end where answers have several messages") {
  Vocabulary vocabulary = byte_level_sample();
  append_token(vocabulary, "<|end|>", TokenType::kControl);
  {
    const auto tokenizer = make_tokenizer(vocabulary);
    CHECK(tokenizer->is_end_of_generation(*tokenizer->find_token("<|end|>")));
  }
  append_token(vocabulary, "<|return|>", TokenType::kControl);
  append_token(vocabulary, "<|call|>", TokenType::kControl);
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK_FALSE(tokenizer->is_end_of_generation(*tokenizer->find_token("<|end|>")));
  CHECK(tokenizer->is_end_of_generation(*tokenizer->find_token("<|return|>")));
  CHECK(tokenizer->is_end_of_generation(*tokenizer->find_token("<|call|>")));
}

TEST_CASE("sentencepiece merges by score behind a space of its own") {
  const auto tokenizer = make_tokenizer(sentencepiece_sample());
  CHECK(named(*tokenizer, "hello", {}) == "<s>|\u2581hello");
  CHECK(named(*tokenizer, "hello hello") == "\u2581hello|\u2581hello");
  CHECK(named(*tokenizer, "", {}) == "<s>");
  CHECK(named(*tokenizer, "aaab") == "\u2581|aa|ab");
  CHECK(tokenizer->decode(tokenizer->encode(" hello  ab")) == " hello  ab");
}

TEST_CASE("sentencepiece puts no space in front where the file forbids it") {
  Vocabulary vocabulary = sentencepiece_sample();
  vocabulary.add_space_prefix = false;
  vocabulary.add_bos = false;
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "hello hell", {}) == "hello|\u2581|hell");
  CHECK(tokenizer->decode(tokenizer->encode(" hello")) == " hello");
}

TEST_CASE("sentencepiece spells unknown characters and stray bytes in byte tokens") {
  const auto tokenizer = make_tokenizer(sentencepiece_sample());
  CHECK(named(*tokenizer, "\u00E9\u4E2D") == "\u2581|\u00E9|<0xE4>|<0xB8>|<0xAD>");
  CHECK(named(*tokenizer,
              "a\xFF\x80"
              "b") == "\u2581|a|<0xFF>|<0x80>|b");
  CHECK(tokenizer->token_bytes(*tokenizer->find_token("<0xFF>")) == "\xFF");
  for (const std::string& text : {std::string("x\0y", 3), std::string("\xF0\x9F\x98"), std::string("\r\n\t")}) {
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
}

TEST_CASE("sentencepiece finds user-defined pieces always and control pieces on demand") {
  const auto tokenizer = make_tokenizer(sentencepiece_sample());
  CHECK(named(*tokenizer, "a<tag>b") == "\u2581|a|<tag>|\u2581|b");
  CHECK(named(*tokenizer, "a</s>", kTrusted) == "\u2581|a|</s>");
  CHECK(tokenizer->decode(tokenizer->encode("a</s>", kPlain)) == "a</s>");
  // Named with visible spaces in the file, found as real ones.
  CHECK(named(*tokenizer, "a    b") == "\u2581|a|   |\u2581\u2581|b");
  CHECK(tokenizer->token_bytes(static_cast<std::int32_t>(tokenizer->vocabulary_size()) - 1) == "   ");
}

TEST_CASE("sentencepiece accepts an unknown token of the wrong type and many of the right one") {
  Vocabulary vocabulary = sentencepiece_sample();
  vocabulary.types[0] = TokenType::kControl;
  append_token(vocabulary, "[PAD1]", TokenType::kUnknown);
  append_token(vocabulary, "[PAD2]", TokenType::kUnknown);
  CHECK(named(*make_tokenizer(vocabulary), "hello") == "\u2581hello");
  vocabulary.unk_id.reset();
  CHECK(named(*make_tokenizer(vocabulary), "hello") == "\u2581hello");
  vocabulary.types[vocabulary.types.size() - 1] = TokenType::kControl;
  vocabulary.types[vocabulary.types.size() - 2] = TokenType::kControl;
  CHECK(named(*make_tokenizer(vocabulary), "hello") == "\u2581hello");
}

TEST_CASE("sentencepiece without byte tokens answers the unknown token, or an error if there is none") {
  Vocabulary vocabulary = sentencepiece_sample();
  for (TokenType& type : vocabulary.types) {
    if (type == TokenType::kByte) type = TokenType::kUnused;
  }
  CHECK(named(*make_tokenizer(vocabulary), "a\u4E2Db\xFF") == "\u2581|a|<unk>|b|<unk>");
  vocabulary.unk_id.reset();
  vocabulary.types[0] = TokenType::kControl;
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(named(*tokenizer, "ab") == "\u2581|ab");
  CHECK_THROWS_AS(tokenizer->encode("\u4E2D"), TokenizerError);
  CHECK_THROWS_AS(tokenizer->encode("\xFF"), TokenizerError);
}

TEST_CASE("sentencepiece takes the usual ids for bos and eos where the file names none") {
  Vocabulary vocabulary = sentencepiece_sample();
  vocabulary.bos_id.reset();
  vocabulary.eos_id.reset();
  vocabulary.unk_id.reset();
  vocabulary.add_bos = true;
  const auto tokenizer = make_tokenizer(vocabulary);
  CHECK(tokenizer->bos_id() == 1);
  CHECK(tokenizer->eos_id() == 2);
  CHECK(tokenizer->is_end_of_generation(2));
  CHECK(named(*tokenizer, "hello", {}) == "<s>|\u2581hello");
}

TEST_CASE("sentencepiece of one word of 200 KB merges to the end") {
  constexpr std::size_t kLength = 200'000;
  const auto tokenizer = make_tokenizer(sentencepiece_sample());
  const Ids ids = tokenizer->encode(std::string(kLength, 'a'), kPlain);
  CHECK(ids.size() == 1 + kLength / 4);
  CHECK(tokenizer->decode(ids) == std::string(kLength, 'a'));
}

TEST_CASE("a vocabulary that contradicts itself is refused with what is wrong") {
  struct Case {
    const char* expected;
    std::function<void(Vocabulary&)> damage;
  };
  const Case common[] = {
      {"no tokens", [](Vocabulary& v) { v.tokens.clear(); }},
      {"are both 'b'", [](Vocabulary& v) { v.tokens[65] = v.tokens[66] = "b"; }},
      {"token types", [](Vocabulary& v) { v.types.pop_back(); }},
      {"has type 7", [](Vocabulary& v) { v.types[3] = static_cast<TokenType>(7); }},
      {"has type -1", [](Vocabulary& v) { v.types[3] = static_cast<TokenType>(-1); }},
      {"bos id is 4294967295", [](Vocabulary& v) { v.bos_id = 0xFFFFFFFF; }},
      {"eos id", [](Vocabulary& v) { v.eos_id = static_cast<std::uint32_t>(v.tokens.size()); }},
      {"eot id", [](Vocabulary& v) { v.eot_id = 1'000'000; }},
      {"eom id", [](Vocabulary& v) { v.eom_id = 1'000'000; }},
      {"unk id", [](Vocabulary& v) { v.unk_id = 1'000'000; }},
      {"pad id", [](Vocabulary& v) { v.pad_id = 1'000'000; }},
      {"'unigram'", [](Vocabulary& v) { v.model = "unigram"; }},
      {"scores", [](Vocabulary& v) { v.scores = {1.0f}; }},
      {"score of token 4",
       [](Vocabulary& v) {
         v.scores.assign(v.tokens.size(), 0);
         v.scores[4] = std::numeric_limits<float>::quiet_NaN();
       }},
  };
  for (const Vocabulary& good : {byte_level_sample(), sentencepiece_sample()}) {
    REQUIRE_NOTHROW(make_tokenizer(good));
    for (const Case& one : common) {
      Vocabulary bad = good;
      one.damage(bad);
      CAPTURE(good.model);
      CHECK_THROWS_WITH(make_tokenizer(bad), Catch::Contains(one.expected));
      CHECK_THROWS_AS(make_tokenizer(bad), TokenizerError);
    }
  }
  const Case byte_level[] = {
      {"merge 3", [](Vocabulary& v) { v.merges[3] = "nospace"; }},
      {"merge 0", [](Vocabulary& v) { v.merges[0] = ""; }},
      {"merge 1", [](Vocabulary& v) { v.merges[1] = "right "; }},
      {"merge 2", [](Vocabulary& v) { v.merges[2] = " right"; }},
      {"no bos id", [](Vocabulary& v) { v.add_bos = true, v.bos_id.reset(); }},
      {"no eos id", [](Vocabulary& v) { v.add_eos = true, v.eos_id.reset(); }},
  };
  for (const Case& one : byte_level) {
    Vocabulary bad = byte_level_sample();
    one.damage(bad);
    CHECK_THROWS_WITH(make_tokenizer(bad), Catch::Contains(one.expected));
  }
  const Case sentencepiece[] = {
      {"no scores", [](Vocabulary& v) { v.scores.clear(); }},
      {"not by its name", [](Vocabulary& v) { v.tokens[3] = "<0xGG>"; }},
      {"not by its name", [](Vocabulary& v) { v.tokens[3] = "<0xab>"; }},  // a second spelling of 0xAB
      {"255 of the 256 bytes", [](Vocabulary& v) { v.types[3] = TokenType::kNormal; }},
  };
  for (const Case& one : sentencepiece) {
    Vocabulary bad = sentencepiece_sample();
    one.damage(bad);
    CHECK_THROWS_WITH(make_tokenizer(bad), Catch::Contains(one.expected));
  }
}

TEST_CASE("an empty token keeps its id and is never found") {
  for (Vocabulary vocabulary : {byte_level_sample(), sentencepiece_sample()}) {
    const auto first = append_token(vocabulary, "", TokenType::kNormal);
    append_token(vocabulary, "", TokenType::kUserDefined);
    const auto tokenizer = make_tokenizer(vocabulary);
    CHECK(tokenizer->token_bytes(static_cast<std::int32_t>(first)).empty());
    CHECK(tokenizer->decode(tokenizer->encode("hello aab", kTrusted)) == "hello aab");
  }
}

}  // namespace
}  // namespace genai
