// pre_tokenizer_test.cpp - where the rules cut: each difference between two rules once, and what all of them must keep.
#include "tokenizer/pre_tokenizer.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/catch.h"
#include "tests/vocabulary_samples.h"
#include "tokenizer/tokenizer.h"

namespace genai {
namespace {

using Words = std::vector<std::string>;

Words words(const std::string& rule, std::string_view text) {
  const PreTokenizer pre_tokenizer(*find_pre_tokenizer_rule(rule));
  const auto pieces = pre_tokenizer.split(text);
  return {pieces.begin(), pieces.end()};
}

std::vector<std::string> all_rules() {
  std::vector<std::string> names;
  std::string list = known_pre_tokenizers();
  for (std::size_t comma = list.find(", "); comma != std::string::npos; comma = list.find(", ")) {
    names.push_back(list.substr(0, comma));
    list.erase(0, comma + 2);
  }
  names.push_back(list);
  return names;
}

TEST_CASE("pre-tokenizer gpt-2 keeps one space with a word and cuts contractions") {
  CHECK(words("gpt-2", "I've  two words") == Words{"I", "'ve", " ", " two", " words"});
  CHECK(words("gpt-2", "I'VE") == Words{"I", "'", "VE"});
  CHECK(words("gpt-2", "a 123456!? b") == Words{"a", " 123456", "!?", " b"});
  CHECK(words("gpt-2", "end  \n") == Words{"end", "  \n"});
}

TEST_CASE("pre-tokenizers differ in how many digits make a word") {
  CHECK(words("gpt-2", "1234567") == Words{"1234567"});
  CHECK(words("llama-bpe", "1234567") == Words{"123", "456", "7"});
  CHECK(words("deepseek-v3", "1234567") == Words{"123", "456", "7"});
  CHECK(words("gpt-4o", "1234567") == Words{"123", "456", "7"});
  CHECK(words("falcon", "1234567") == Words{"123", "456", "7"});
  CHECK(words("qwen2", "123") == Words{"1", "2", "3"});
  CHECK(words("smollm", "a 123") == Words{"a", " ", "1", "2", "3"});
  CHECK(words("tekken", "123") == Words{"1", "2", "3"});
}

TEST_CASE("pre-tokenizer llama-bpe puts any sign before letters and line ends after signs") {
  CHECK(words("llama-bpe", "I'VE (done)\r\n\n  x") == Words{"I", "'VE", " (", "done", ")\r\n\n", " ", " x"});
  CHECK(words("llama-bpe", "a \n\n b") == Words{"a", " \n\n", " b"});
  CHECK(words("qwen2", "a_b") == Words{"a", "_b"});
}

TEST_CASE("pre-tokenizer gpt-4o cuts before capitals and keeps contractions with their words") {
  CHECK(words("gpt-4o", "HelloWorld don't SHOUT") == Words{"Hello", "World", " don't", " SHOUT"});
  CHECK(words("tekken", "HelloWorld don't") == Words{"Hello", "World", " don", "'t"});
  CHECK(words("gpt-4o", "a/\n/b") == Words{"a", "/\n/", "b"});
}

TEST_CASE("pre-tokenizer kimi-k2 keeps ideographs apart from letters") {
  CHECK(words("kimi-k2", "abc\u4E2D\u6587Def") == Words{"abc", "\u4E2D\u6587", "Def"});
  CHECK(words("gpt-4o", "abc\u4E2D\u6587Def") == Words{"abc\u4E2D\u6587", "Def"});
  CHECK(words("kimi-k2", "HelloWorld don't 1234") == Words{"Hello", "World", " don't", " ", "123", "4"});
}

TEST_CASE("pre-tokenizer qwen35 keeps marks with their letters") {
  const std::string marked = "a\u0301b";
  CHECK(words("qwen35", marked) == Words{marked});
  CHECK(words("qwen2", marked) == Words{"a", "\u0301b"});
}

TEST_CASE("pre-tokenizers of deepseek cut line ends, letters, signs and ideographs one after the other") {
  CHECK(words("deepseek-llm", "Hi, \u4E2D\u6587 12\n\n") ==
        Words{"Hi", ",", " ", "\u4E2D\u6587", " ", "12", "\n", "\n"});
  CHECK(words("deepseek-coder", "x = 12;  ") == Words{"x", " = ", "1", "2", ";", "  "});
  CHECK(words("deepseek-v3", "(a) $x \u4E2D\u6587") == Words{"(a", ")", " $", "x", " ", "\u4E2D\u6587"});
  CHECK(words("deepseek-llm", "a   1") == Words{"a", "   ", "1"});
  CHECK(words("deepseek-llm", "1   ") == Words{"1", "   "});
}

TEST_CASE("pre-tokenizer white space is that of Unicode, without U+180E") {
  CHECK(words("gpt-2", "a\u2003\u3000\u0085\u00A0b") == Words{"a", "\u2003\u3000\u0085", "\u00A0", "b"});
  CHECK(words("gpt-2", "a\u180E\u180Eb") == Words{"a", "\u180E\u180E", "b"});
  CHECK(words("gpt-2", " \u180E") == Words{" \u180E"});
}

TEST_CASE("pre-tokenizers lose nothing and make no empty word") {
  const std::string text =
      "I'm 12345, \u00BD\u0661\u0662; Caf\u00E9s  \t\n\r\n\u4E2D\u6587\uFF01 \uD55C\uAE00 \u3042 x_y=$z\u20AC "
      "(\u00E4)\u2026"
      " \U0001F468\u200D\U0001F469 e\u0301   ";
  for (const std::string& rule : all_rules()) {
    CAPTURE(rule);
    const PreTokenizer pre_tokenizer(*find_pre_tokenizer_rule(rule));
    for (std::size_t begin = 0; begin < text.size(); ++begin) {
      if ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) continue;
      std::string joined;
      for (const std::string_view word : pre_tokenizer.split(std::string_view(text).substr(begin))) {
        CHECK_FALSE(word.empty());
        joined += word;
      }
      CHECK(joined == text.substr(begin));
    }
    CHECK(pre_tokenizer.split("").empty());
  }
}

TEST_CASE("pre-tokenizers survive very long runs of any kind") {
  constexpr std::size_t kRunBytes = 100'000;  // enough to overflow a stack if a rule needs it for every character
  std::set<std::vector<std::string>> tried;   // many names share their patterns
  for (const std::string& rule : all_rules()) {
    CAPTURE(rule);
    if (!tried.insert(find_pre_tokenizer_rule(rule)->patterns).second) continue;
    const PreTokenizer pre_tokenizer(*find_pre_tokenizer_rule(rule));
    for (const std::string one : {"a", "A", "1", " ", "\n", "\r\n", "\t ", "!", "'", "aA", "\u4E2D", "\u0301", "\u00A0",
                                  "\U0001F600", "a1", "$ ", "_\n", " \n"}) {
      std::string run;
      while (run.size() < kRunBytes) run += one;
      for (const std::string& text : {run, "x" + run + "1"}) {
        std::size_t total_bytes = 0;
        for (const std::string_view word : pre_tokenizer.split(text)) total_bytes += word.size();
        CHECK(total_bytes == text.size());
      }
    }
  }
}

TEST_CASE("unknown pre-tokenizer is refused by name with the known ones, unless allowed") {
  try {
    make_tokenizer(test::byte_level_sample("no-such-rule"));
    FAIL("accepted");
  } catch (const TokenizerError& error) {
    const std::string message = error.what();
    CHECK(message.find("'no-such-rule'") != std::string::npos);
    for (const char* known : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken"}) {
      CHECK(message.find(known) != std::string::npos);
    }
    CHECK(error.hint().find("--force") != std::string::npos);
  }
  CHECK_THROWS_WITH(make_tokenizer(test::byte_level_sample("")), Catch::Contains("names no pre-tokenizer"));

  const auto forced = make_tokenizer(test::byte_level_sample("no-such-rule"), {.allow_unknown_pre = true});
  const auto standard = make_tokenizer(test::byte_level_sample("default"));
  const std::string text = "hello hello, 1234567 aab!";
  CHECK(forced->encode(text) == standard->encode(text));
  CHECK(forced->decode(forced->encode(text)) == text);
}

TEST_CASE("pre-tokenizer names of one rule cut alike") {
  const std::string text = "I'VE 12345 \u4E2D\u6587 HelloWorld \n x";
  CHECK(words("llama3", text) == words("llama-bpe", text));
  CHECK(words("llama4", text) == words("gpt-4o", text));
  CHECK(words("starcoder", text) == words("smollm", text));
  CHECK(words("olmo", text) == words("gpt-2", text));
}

}  // namespace
}  // namespace genai
