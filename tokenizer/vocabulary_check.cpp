#include "tokenizer/vocabulary_check.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "tokenizer/end_of_generation.h"

namespace genai {
namespace {

constexpr const char* kBadFileHint = "the model file is damaged or was converted wrongly; get or convert it again";

[[noreturn]] void refuse(const std::string& what) { throw TokenizerError("vocabulary: " + what, kBadFileHint); }

// Enough of a token to recognise it; it may be long and hold anything.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShownBytes = 40;
  std::string shown = "'";
  for (const char character : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += character;
    }
  }
  shown += text.size() > kShownBytes ? "'..." : "'";
  return shown;
}

void check_tokens(const Vocabulary& vocabulary) {
  if (vocabulary.tokens.empty()) refuse("it has no tokens");
  if (vocabulary.tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    refuse(fmt::format("{} tokens are more than ids can count", vocabulary.tokens.size()));
  }
  std::unordered_map<std::string_view, std::size_t> seen;
  seen.reserve(vocabulary.tokens.size());
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) continue;
    const auto [found, inserted] = seen.try_emplace(vocabulary.tokens[id], id);
    if (!inserted) refuse(fmt::format("tokens {} and {} are both {}", found->second, id, quoted(found->first)));
  }
}

void check_types(Vocabulary& vocabulary) {
  if (vocabulary.types.empty()) vocabulary.types.assign(vocabulary.tokens.size(), TokenType::kNormal);
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    refuse(fmt::format("{} tokens but {} token types", vocabulary.tokens.size(), vocabulary.types.size()));
  }
  for (std::size_t id = 0; id < vocabulary.types.size(); ++id) {
    const auto type = static_cast<std::int32_t>(vocabulary.types[id]);
    if (type < 0 || type > static_cast<std::int32_t>(TokenType::kByte)) {
      refuse(fmt::format("token {} has type {}; types are 0 to 6", id, type));
    }
    if (type == 0) vocabulary.types[id] = TokenType::kNormal;
    if (vocabulary.tokens[id].empty()) vocabulary.types[id] = TokenType::kControl;
  }
}

void check_scores(const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) return;
  if (vocabulary.scores.size() != vocabulary.tokens.size()) {
    refuse(fmt::format("{} tokens but {} scores", vocabulary.tokens.size(), vocabulary.scores.size()));
  }
  for (std::size_t id = 0; id < vocabulary.scores.size(); ++id) {
    if (!std::isfinite(vocabulary.scores[id])) refuse(fmt::format("the score of token {} is not a number", id));
  }
}

void check_special_ids(const Vocabulary& vocabulary) {
  const struct {
    const char* name;
    const std::optional<std::uint32_t>& id;
  } special_ids[] = {{"bos", vocabulary.bos_id}, {"eos", vocabulary.eos_id}, {"eot", vocabulary.eot_id},
                     {"eom", vocabulary.eom_id}, {"unk", vocabulary.unk_id}, {"pad", vocabulary.pad_id}};
  for (const auto& special : special_ids) {
    if (special.id && *special.id >= vocabulary.tokens.size()) {
      refuse(
          fmt::format("the {} id is {}, but there are {} tokens", special.name, *special.id, vocabulary.tokens.size()));
    }
  }
  if (vocabulary.add_bos.value_or(false) && !vocabulary.bos_id) refuse("it wants BOS added but names no bos id");
  if (vocabulary.add_eos.value_or(false) && !vocabulary.eos_id) refuse("it wants EOS added but names no eos id");
}

}  // namespace

Vocabulary check_vocabulary(Vocabulary vocabulary) {
  check_tokens(vocabulary);
  check_types(vocabulary);
  check_scores(vocabulary);
  check_special_ids(vocabulary);
  mark_end_tokens_as_control(vocabulary);
  return vocabulary;
}

}  // namespace genai
