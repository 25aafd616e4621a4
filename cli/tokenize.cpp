#include "cli/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/prompt_source.h"
#include "cli/session.h"
#include "engine/model/gguf_file.h"
#include "engine/model/printable_text.h"
#include "tokenizer/utf8.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string lines(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids)
    text += fmt::format("{:6} -> '{}'\n", id, printable_text(tokenizer.token_bytes(id, true), 1000));
  return text;
}

// A token that is not whole UTF-8 has its bytes in hexadecimal, since JSON cannot hold them as text.
Json piece(const Tokenizer& tokenizer, std::int32_t id) {
  const std::string bytes = tokenizer.token_bytes(id, true);
  Json json = {{"id", id}};
  if (whole_utf8_bytes(bytes) == bytes.size()) {
    json["text"] = bytes;
    return json;
  }
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  json["hex"] = hex;
  return json;
}

std::string document(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  Json json;
  json["count"] = ids.size();
  json["ids"] = ids;
  json["pieces"] = Json::array();
  for (const std::int32_t id : ids) json["pieces"].push_back(piece(tokenizer, id));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int tokenize(const TokenizeOptions& options, Output& output, Console& console) {
  const GgufFile file(options.model_path);
  const TokenizerAndWarning opened = open_tokenizer(file, options.force_pre_tokenizer);
  if (!opened.warning.empty()) console.warn(opened.warning);
  const std::string text = read_prompt(options.prompt);
  const std::vector<std::int32_t> ids = opened.tokenizer->encode(
      text, {.add_special = options.add_special, .parse_special = options.prompt.parse_special});
  switch (options.form) {
    case TokenizeOptions::Form::lines:
      output.write(lines(*opened.tokenizer, ids));
      break;
    case TokenizeOptions::Form::ids:
      output.write(fmt::format("[{}]\n", fmt::join(ids, ", ")));
      break;
    case TokenizeOptions::Form::json:
      output.write(document(*opened.tokenizer, ids));
      break;
  }
  return 0;
}

}  // namespace genai::cli
