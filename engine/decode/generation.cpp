#include "engine/decode/generation.h"

namespace genai {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::end_of_generation:
      return "end_of_generation";
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::interrupted:
      return "interrupted";
  }
  return "unknown";
}

}  // namespace genai
