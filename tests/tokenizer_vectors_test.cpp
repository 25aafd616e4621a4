// tokenizer_vectors_test.cpp - the ids that others give: published vectors of nine vocabularies, and two real models.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/gguf_vocabulary.h"
#include "tests/real_models.h"
#include "tests/shared_data.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8_stream.h"

namespace genai {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr const char* kPublishedVocabularies[] = {
    "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-spm", "mpt", "phi-3", "refact", "starcoder"};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Each part is ended by the separator; what follows the last one must be nothing.
std::vector<std::string> split_at(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  CHECK(text.size() == begin);
  return parts;
}

Ids parse_ids(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::int32_t>(words), {}};
}

// The bytes go out as a reader would see them, with the unfinished end written as the reference writes it.
std::string hex(const std::string& bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  Utf8Stream stream;
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(tokenizer.token_bytes(id));
  return text + stream.flush();
}

void check_reference(const Tokenizer& tokenizer, const nlohmann::json& reference) {
  CHECK(tokenizer.adds_bos() == reference.at("add_bos").get<bool>());
  CHECK(tokenizer.bos_id() == reference.at("bos_id").get<std::int32_t>());
  CHECK(tokenizer.eos_id() == reference.at("eos_id").get<std::int32_t>());
  REQUIRE(reference.at("cases").size() == 15);
  for (const auto& one : reference.at("cases")) {
    CAPTURE(one.at("name").get<std::string>());
    const auto prompt = one.at("prompt").get<std::string>();
    const Ids expected = one.at("ids");
    const bool trusted = one.at("parse_special");
    CHECK(tokenizer.encode(prompt, {.add_special = true, .parse_special = trusted}) == expected);
    Ids without_bos = expected;
    if (tokenizer.adds_bos()) without_bos.erase(without_bos.begin());
    CHECK(tokenizer.decode(without_bos, /*special=*/true) == prompt);

    Ids shown = one.at("greedy_ids");
    if (!one.at("first_eog").is_null()) shown.resize(one.at("first_eog").get<std::size_t>());
    const std::string text = streamed(tokenizer, shown);
    if (one.contains("greedy_hex")) {
      CHECK(hex(text) == one.at("greedy_hex").get<std::string>());
    } else {
      CHECK(text == one.at("greedy_text").get<std::string>());
    }
    const Ids greedy = one.at("greedy_ids");
    const auto end =
        std::find_if(greedy.begin(), greedy.end(), [&](std::int32_t id) { return tokenizer.is_end_of_generation(id); });
    CHECK((end == greedy.end()) == one.at("first_eog").is_null());
    if (end != greedy.end()) CHECK(end - greedy.begin() == one.at("first_eog").get<std::ptrdiff_t>());
  }
}

void check_text(const Tokenizer& tokenizer, const nlohmann::json& reference, const std::string& text) {
  CHECK(tokenizer.encode(text) == reference.at("text").at("ids").get<Ids>());
  CHECK(tokenizer.decode(tokenizer.encode(text, kPlain)) == text);
}

TEST_CASE("tokenizer gives the published ids of every vocabulary, and the text back") {
  for (const std::string name : kPublishedVocabularies) {
    const auto file = test::shared_data("tokenizer/" + name + ".gguf");
    if (!file) GENAI_SKIP("the vocabularies are not there");
    const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*file));
    const auto texts =
        split_at(read_file(test::shared_data("tokenizer/" + name + ".inp").value()), "\n__ggml_vocab_test__\n");
    const auto lines = split_at(read_file(test::shared_data("tokenizer/" + name + ".out").value()), "\n");
    REQUIRE(texts.size() == 46);
    REQUIRE(lines.size() == texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(name, i, texts[i]);
      const Ids ids = tokenizer->encode(texts[i], kPlain);
      CHECK(ids == parse_ids(lines[i]));
      CHECK(tokenizer->decode(ids) == texts[i]);
    }
  }
}

TEST_CASE("tokenizer gives difficult text back byte for byte in every published vocabulary") {
  const std::vector<std::string> texts = {
      "one\r\ntwo\r\n\r\nthree",
      "Hello world! Caf\u00E9 d\u00E9j\u00E0 vu \u2014 123 \U0001F60A",
      "no\u00A0break\u00A0 space \u00A0",
      "family \U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 flag \U0001F3F3\uFE0F\u200D\U0001F308",
      "Mongolian\u180Evowel\u2003em\u3000ideographic\u0085next",
      std::string("zero\0zero\0", 10),
      "tabs\t\t\tand   spaces     \t \n  \n end   ",
      "<s><unk><|endoftext|><|im_start|>user<|im_end|><bos><eos><end_of_turn><0x41>",
      "cut emoji \xF0\x9F\x98",
      "\x80 continuation \xBF\xBF, start \xC3",
  };
  for (const std::string name : kPublishedVocabularies) {
    const auto file = test::shared_data("tokenizer/" + name + ".gguf");
    if (!file) GENAI_SKIP("the vocabularies are not there");
    const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*file));
    for (const std::string& text : texts) {
      CAPTURE(name, text);
      CHECK(tokenizer->decode(tokenizer->encode(text, kPlain)) == text);
    }
  }
}

TEST_CASE("tokenizer replaces bytes that occur in no UTF-8 only where a vocabulary lacks them") {
  const std::string text = "\xFF lone \xC0\xAF";
  const std::string replaced = "\uFFFD lone \uFFFD\xAF";
  for (const std::string name : kPublishedVocabularies) {
    const auto file = test::shared_data("tokenizer/" + name + ".gguf");
    if (!file) GENAI_SKIP("the vocabularies are not there");
    const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*file));
    CAPTURE(name);
    const bool has_all_bytes = name == "gpt-2" || name == "llama-spm" || name == "phi-3";
    CHECK(tokenizer->decode(tokenizer->encode(text, kPlain)) == (has_all_bytes ? text : replaced));
  }
}

TEST_CASE("smollm2 tokenizer gives the ids of every reference case") {
  const auto model = test::smollm2();
  const auto reference = test::shared_data("reference/smollm2-135m-q4_1.json");
  const auto text = test::shared_data("reference/ppl-text.txt");
  if (!model || !reference || !text) GENAI_SKIP("SmolLM2 or its reference is not there: scripts/fetch_models.sh");
  const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*model));
  const auto expected = nlohmann::json::parse(read_file(*reference));
  check_reference(*tokenizer, expected);
  check_text(*tokenizer, expected, read_file(*text));
  CHECK(tokenizer->end_of_generation_ids() == expected.at("eog_ids").get<Ids>());
}

TEST_CASE("gemma3 tokenizer gives the ids of every reference case") {
  const auto model = test::gemma3();
  const auto reference = test::shared_data("reference/gemma3-270m-q4_k_m.json");
  const auto text = test::shared_data("reference/ppl-text.txt");
  if (!model || !reference || !text) GENAI_SKIP("Gemma 3 or its reference is not there: scripts/fetch_models.sh");
  const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*model));
  const auto expected = nlohmann::json::parse(read_file(*reference));
  check_reference(*tokenizer, expected);
  check_text(*tokenizer, expected, read_file(*text));
  // 212 is </s>, here the closing tag of HTML and no end; 106 is <end_of_turn>, which no key of the file names.
  CHECK(tokenizer->end_of_generation_ids() == Ids{1, 106});
  CHECK(tokenizer->token_bytes(212) == "</s>");
  CHECK(tokenizer->encode("</s>", kPlain) == Ids{212});
  CHECK(tokenizer->encode("\n", kPlain) == Ids{107});
  CHECK(tokenizer->encode("<end_of_turn>", kPlain) != Ids{106});
  CHECK(tokenizer->encode("<end_of_turn>", {.add_special = false, .parse_special = true}) == Ids{106});
  CHECK(tokenizer->token_bytes(106).empty());
  // Runs of spaces are tokens with real spaces in their names, 31 the longest.
  CHECK(tokenizer->encode(std::string(31, ' '), kPlain) == Ids{167});
  CHECK(tokenizer->encode(std::string(33, ' '), kPlain) == Ids{167, 138});
}

TEST_CASE("tiny reference models stop at both of their end tokens") {
  for (const char* name : {"tiny-llama-Q4_0", "tiny-qwen2-Q4_K_M", "tiny-qwen3-Q4_K_M", "tiny-gemma3-Q4_K_M"}) {
    const auto file = test::shared_data(std::string("reference/tiny/") + name + ".gguf");
    if (!file) GENAI_SKIP("the tiny reference models are not there");
    const auto tokenizer = make_tokenizer(test::read_gguf_vocabulary(*file));
    CHECK(tokenizer->vocabulary_size() == 320);
    CHECK(tokenizer->end_of_generation_ids() == Ids{318, 319});
    const std::string text = "in the \xFF";
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
}

}  // namespace
}  // namespace genai
