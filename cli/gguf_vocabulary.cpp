#include "cli/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/error.h"

namespace genai::cli {
namespace {

std::vector<std::string> strings(const std::optional<std::vector<std::string_view>>& views) {
  if (!views) return {};
  return {views->begin(), views->end()};
}

std::optional<std::uint32_t> token_id(const GgufMetadata& metadata, std::string_view name) {
  const std::string key = fmt::format("tokenizer.ggml.{}", name);
  const GgufMetadata::Entry* entry = metadata.find(key);
  // Some converters write -1 for "there is none".
  if (entry != nullptr && entry->type == GgufValueType::i32 && metadata.find_i64(key) == -1) return std::nullopt;
  return metadata.find_u32(key);
}

}  // namespace

Vocabulary read_vocabulary(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  Vocabulary vocabulary;
  if (metadata.find("tokenizer.ggml.model") == nullptr)
    throw ModelFileError(file.path(), "the file has no vocabulary ('tokenizer.ggml.model' is missing)",
                         "convert the model again with its tokenizer");
  vocabulary.model = metadata.require_string("tokenizer.ggml.model");
  vocabulary.pre = metadata.find_string("tokenizer.ggml.pre").value_or("");
  vocabulary.tokens = strings(metadata.require_string_array("tokenizer.ggml.tokens"));
  vocabulary.scores = metadata.find_f32_array("tokenizer.ggml.scores").value_or(std::vector<float>());
  vocabulary.merges = strings(metadata.find_string_array("tokenizer.ggml.merges"));
  if (const auto types = metadata.find_i64_array("tokenizer.ggml.token_type")) {
    const auto wide =
        std::find_if(types->begin(), types->end(), [](std::int64_t type) { return type < 0 || type > 255; });
    if (wide != types->end())
      metadata.reject(*metadata.find("tokenizer.ggml.token_type"), "token types from 1 to 6",
                      "convert the model again");
    for (const std::int64_t type : *types) vocabulary.types.push_back(static_cast<TokenType>(type));
  }
  vocabulary.bos_id = token_id(metadata, "bos_token_id");
  vocabulary.eos_id = token_id(metadata, "eos_token_id");
  vocabulary.eot_id = token_id(metadata, "eot_token_id");
  vocabulary.eom_id = token_id(metadata, "eom_token_id");
  vocabulary.unk_id = token_id(metadata, "unknown_token_id");
  vocabulary.pad_id = token_id(metadata, "padding_token_id");
  vocabulary.add_bos = metadata.find_bool("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = metadata.find_bool("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = metadata.find_bool("tokenizer.ggml.add_space_prefix");
  return vocabulary;
}

}  // namespace genai::cli
