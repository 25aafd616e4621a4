#include "tokenizer/end_of_generation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>

namespace genai {
namespace {

struct EndName {
  std::string_view text;
  bool unmistakable;  // means nothing else, whatever the type of the token says
};

constexpr std::array kEndNames = {
    // End of a turn, a message or a text.
    EndName{"<|endoftext|>", true},
    EndName{"<|end_of_text|>", true},
    EndName{"<|im_end|>", true},
    EndName{"<|eot_id|>", true},
    EndName{"<|eom_id|>", true},
    EndName{"<|eot|>", true},
    EndName{"<|eom|>", true},
    EndName{"<|EOT|>", true},
    EndName{"<|end|>", true},
    EndName{"<|return|>", true},
    EndName{"<|call|>", true},
    EndName{"<|calls|>", true},
    EndName{"<|flush|>", true},
    EndName{"<|endofturn|>", true},
    EndName{"<|END_OF_TURN_TOKEN|>", true},
    EndName{"<end_of_turn>", true},
    EndName{"<end_of_utterance>", true},
    EndName{"<｜end▁of▁sentence｜>", true},
    EndName{"<turn|>", true},
    EndName{"<|tool_response>", true},
    EndName{"</s>", false},
    EndName{"<eos>", false},
    EndName{"<EOT>", false},
    EndName{"_<EOT>", false},
    EndName{"[EOT]", false},
    EndName{"[EOS]", false},
    // End of a file where a model continues code: what follows belongs to another file.
    EndName{"<|fim_pad|>", false},
    EndName{"<fim-pad>", false},
    EndName{"<fim_pad>", false},
    EndName{"<|fim_repo|>", false},
    EndName{"<|repo_name|>", false},
    EndName{"<fim-repo>", false},
    EndName{"<reponame>", false},
    EndName{"<|file_sep|>", false},
};

const EndName* find_end_name(std::string_view text) {
  const auto* found =
      std::find_if(kEndNames.begin(), kEndNames.end(), [&](const EndName& name) { return name.text == text; });
  return found == kEndNames.end() ? nullptr : found;
}

bool never_shown(TokenType type) { return type == TokenType::kControl || type == TokenType::kUnknown; }

}  // namespace

void mark_end_tokens_as_control(Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (never_shown(vocabulary.types[id])) continue;
    const EndName* name = find_end_name(vocabulary.tokens[id]);
    if (name != nullptr && name->unmistakable) vocabulary.types[id] = TokenType::kControl;
  }
}

std::vector<std::int32_t> find_end_of_generation_ids(const Vocabulary& vocabulary) {
  std::set<std::int32_t> ids;
  std::optional<std::int32_t> end_of_message;  // "<|end|>"
  bool has_return = false;
  bool has_call = false;
  bool has_flush = false;
  for (std::size_t index = 0; index < vocabulary.tokens.size(); ++index) {
    const std::string& text = vocabulary.tokens[index];
    if (!never_shown(vocabulary.types[index]) || find_end_name(text) == nullptr) continue;
    const auto id = static_cast<std::int32_t>(index);
    ids.insert(id);
    if (text == "<|end|>") end_of_message = id;
    has_return = has_return || text == "<|return|>";
    has_call = has_call || text == "<|call|>" || text == "<|calls|>";
    has_flush = has_flush || text == "<|flush|>";
  }
  // In formats with channels <|end|> closes one message of an answer; the answer goes on until one of the others.
  if (end_of_message && has_call && (has_return || has_flush)) ids.erase(*end_of_message);
  for (const auto& named : {vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id}) {
    if (named) ids.insert(static_cast<std::int32_t>(*named));
  }
  return {ids.begin(), ids.end()};
}

}  // namespace genai
