// gguf_vocabulary.h - reads the vocabulary of a GGUF file for the tests of the tokenizer, which must not need the
// engine. For files that are known to be good: a damaged one gives an exception and no explanation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace genai::test {

class GgufVocabularyReader {
 public:
  explicit GgufVocabularyReader(const std::filesystem::path& path) : file_(path, std::ios::binary) {
    if (read<std::uint32_t>() != 0x46554747) throw std::runtime_error(path.string() + " is no GGUF file");
    read<std::uint32_t>();  // version
    read<std::uint64_t>();  // tensors
    const auto pair_count = read<std::uint64_t>();
    for (std::uint64_t i = 0; i < pair_count; ++i) read_pair();
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  enum ValueType : std::uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

  template <class Number>
  Number read() {
    Number value{};
    file_.read(reinterpret_cast<char*>(&value), sizeof value);
    if (!file_) throw std::runtime_error("the GGUF file ends too early");
    return value;
  }

  std::string read_text() {
    std::string text(read<std::uint64_t>(), '\0');
    file_.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }

  static std::size_t number_bytes(std::uint32_t type) {
    constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kBytes[type];
  }

  template <class Element, class Read>
  void read_elements(std::vector<Element>& elements, std::uint64_t count, Read read_one) {
    for (std::uint64_t i = 0; i < count; ++i) elements.push_back(read_one());
  }

  void read_pair() {
    const std::string key = read_text();
    const auto type = read<std::uint32_t>();
    if (type == kArray) {
      const auto element_type = read<std::uint32_t>();
      const auto count = read<std::uint64_t>();
      read_array(key, element_type, count);
    } else if (type == kString) {
      const std::string text = read_text();
      if (key == "tokenizer.ggml.model") vocabulary_.model = text;
      if (key == "tokenizer.ggml.pre") vocabulary_.pre = text;
    } else if (type == kUint32) {
      const auto number = read<std::uint32_t>();
      if (key == "tokenizer.ggml.bos_token_id") vocabulary_.bos_id = number;
      if (key == "tokenizer.ggml.eos_token_id") vocabulary_.eos_id = number;
      if (key == "tokenizer.ggml.eot_token_id") vocabulary_.eot_id = number;
      if (key == "tokenizer.ggml.eom_token_id") vocabulary_.eom_id = number;
      if (key == "tokenizer.ggml.unknown_token_id") vocabulary_.unk_id = number;
      if (key == "tokenizer.ggml.padding_token_id") vocabulary_.pad_id = number;
    } else if (type == kBool) {
      const bool flag = read<std::uint8_t>() != 0;
      if (key == "tokenizer.ggml.add_bos_token") vocabulary_.add_bos = flag;
      if (key == "tokenizer.ggml.add_eos_token") vocabulary_.add_eos = flag;
      if (key == "tokenizer.ggml.add_space_prefix") vocabulary_.add_space_prefix = flag;
    } else {
      file_.seekg(static_cast<std::streamoff>(number_bytes(type)), std::ios::cur);
    }
  }

  void read_array(const std::string& key, std::uint32_t element_type, std::uint64_t count) {
    const auto text = [this] { return read_text(); };
    if (key == "tokenizer.ggml.tokens") {
      read_elements(vocabulary_.tokens, count, text);
    } else if (key == "tokenizer.ggml.merges") {
      read_elements(vocabulary_.merges, count, text);
    } else if (key == "tokenizer.ggml.scores") {
      read_elements(vocabulary_.scores, count, [this] { return read<float>(); });
    } else if (key == "tokenizer.ggml.token_type") {
      read_elements(vocabulary_.types, count, [this] { return static_cast<TokenType>(read<std::int32_t>()); });
    } else if (element_type == kString) {
      for (std::uint64_t i = 0; i < count; ++i) read_text();
    } else {
      file_.seekg(static_cast<std::streamoff>(count * number_bytes(element_type)), std::ios::cur);
    }
  }

  std::ifstream file_;
  Vocabulary vocabulary_;
};

inline Vocabulary read_gguf_vocabulary(const std::filesystem::path& path) {
  return GgufVocabularyReader(path).vocabulary();
}

}  // namespace genai::test
