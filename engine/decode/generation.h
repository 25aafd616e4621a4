// generation.h - what is asked for and what comes back for one text. Plain values.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/decode/sampler.h"

namespace genai {

enum class FinishReason { end_of_generation, length, stop, interrupted };
std::string_view finish_reason_name(FinishReason reason);

struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = -1;  // negative: until the context is full
  SamplerSettings sampler;
  std::vector<std::int32_t> end_ids;  // tokens that end the text
};

struct Generation {
  std::vector<std::int32_t> tokens;  // without the one that ended it
  FinishReason finish = FinishReason::length;
  std::optional<std::int32_t> end_token;  // the one that ended it, where one did
  // Over every row whose logits were computed: the last one of the prompt, then one a step.
  std::uint64_t logits_hash = 0;
  std::vector<std::uint64_t> step_hashes;
};

}  // namespace genai
