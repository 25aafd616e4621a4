#include "cli/content_hash.h"

#include <fmt/format.h>

namespace genai::cli {

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace genai::cli
