// byte_size.h - amounts of memory as people write and read them: "6GiB", "300MiB", "1.5GB", "60%", "auto".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace genai::cli {

// What a limit is measured by is known only when the device is open.
struct MemoryLimit {
  enum class Kind { none, bytes, percent, automatic };
  Kind kind = Kind::none;
  std::uint64_t bytes = 0;
  double percent = 0.0;
};

// Throws UsageError, naming `origin` (a flag or a variable), for a missing or unknown unit, a negative number, a share
// outside 0 to 100 %, or more than 2^63 bytes. KiB, MiB, GiB, TiB count by 1024, kB, MB, GB, TB by 1000.
MemoryLimit parse_memory_limit(std::string_view text, std::string_view origin);

// "1.50 GiB", "17 B".
std::string byte_size_text(std::uint64_t bytes);

}  // namespace genai::cli
