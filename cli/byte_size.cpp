#include "cli/byte_size.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "engine/error.h"

namespace genai::cli {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr std::array kUnits = {
    Unit{"b", 1.0},  Unit{"kib", 0x1p10}, Unit{"mib", 0x1p20}, Unit{"gib", 0x1p30}, Unit{"tib", 0x1p40},
    Unit{"kb", 1e3}, Unit{"mb", 1e6},     Unit{"gb", 1e9},     Unit{"tb", 1e12},
};

constexpr std::string_view kHint = "write a size with its unit (6GiB, 300MiB, 8GB), a share (60%), or auto";

}  // namespace

MemoryLimit parse_memory_limit(std::string_view text, std::string_view origin) {
  const auto reject = [&](std::string_view why) {
    throw UsageError(fmt::format("{}: '{}' {}", origin, text, why), std::string(kHint));
  };
  if (text == "auto") return {.kind = MemoryLimit::Kind::automatic};
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (failure != std::errc() || !std::isfinite(number)) reject("is not a size");
  if (std::signbit(number)) reject("is negative");
  std::string unit;
  for (const char* letter = rest; letter != end; ++letter)
    if (!(unit.empty() && *letter == ' ')) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*letter)));
  if (unit.empty()) reject("has no unit");
  if (unit == "%") {
    if (number > 100.0) reject("is more than everything");
    return {.kind = MemoryLimit::Kind::percent, .percent = number};
  }
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * known.bytes;
    if (bytes > 0x1p63) reject("is more than any machine has");
    return {.kind = MemoryLimit::Kind::bytes, .bytes = static_cast<std::uint64_t>(bytes)};
  }
  reject("has an unknown unit");
  return {};
}

std::string byte_size_text(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::string_view unit;
  for (const std::string_view next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (value < 1023.995) break;
    value /= 1024.0;
    unit = next;
  }
  return fmt::format("{:.{}f} {}", value, value < 10.0 ? 2 : value < 100.0 ? 1 : 0, unit);
}

}  // namespace genai::cli
