#include "cli/flag_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "cli/suggestion.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

// The whole text as a number; nothing where it is none or out of the type's range.
template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number number{};
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void reject(const RawValue& value, const std::string& expected, const std::string& hint = {}) {
  throw UsageError(fmt::format("{}: expected {}, found '{}'", value.origin, expected, value.text), hint);
}

int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

}  // namespace

std::int64_t parse_integer(const RawValue& value, std::int64_t lowest, std::int64_t highest) {
  const std::optional<std::int64_t> number = whole_number<std::int64_t>(value.text);
  if (!number || *number < lowest || *number > highest)
    reject(value, fmt::format("a whole number from {} to {}", lowest, highest));
  return *number;
}

std::uint64_t parse_unsigned(const RawValue& value) {
  const std::optional<std::uint64_t> number = whole_number<std::uint64_t>(value.text);
  if (!number) reject(value, fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint64_t>::max()));
  return *number;
}

double parse_number(const RawValue& value) {
  const std::optional<double> number = whole_number<double>(value.text);
  if (!number || !std::isfinite(*number)) reject(value, "a number");
  return *number;
}

bool parse_switch(const RawValue& value) {
  for (const std::string_view yes : {"1", "true", "yes", "on"})
    if (value.text == yes) return true;
  for (const std::string_view no : {"0", "false", "no", "off"})
    if (value.text == no) return false;
  reject(value, "1 or 0 (or true, yes, on; false, no, off)");
}

std::size_t parse_choice(const RawValue& value, const std::vector<std::string>& choices) {
  std::string list;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (value.text == choices[i]) return i;
    list += fmt::format("{}{}", i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ", choices[i]);
  }
  const std::optional<std::string> meant = closest_name(value.text, choices);
  reject(value, list, meant ? fmt::format("did you mean {}?", *meant) : "");
}

std::string replace_escapes(const RawValue& value) {
  std::string result;
  const std::string& text = value.text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    const char letter = i + 1 < text.size() ? text[i + 1] : '\0';
    constexpr std::string_view kLetters = "ntr0\\\"'";
    constexpr std::string_view kBytes("\n\t\r\0\\\"'", 7);
    if (letter == 'x' && i + 3 < text.size() && hex_digit(text[i + 2]) >= 0 && hex_digit(text[i + 3]) >= 0) {
      result += static_cast<char>(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else if (const std::size_t found = letter == '\0' ? std::string_view::npos : kLetters.find(letter);
               found != std::string_view::npos) {
      result += kBytes[found];
      ++i;
    } else {
      throw UsageError(fmt::format("{}: unknown escape at byte {}: '{}'", value.origin, i, text.substr(i, 4)),
                       "known are \\n \\t \\r \\0 \\\\ \\\" \\' and \\xHH; leave -e out to take the text as it is");
    }
  }
  return result;
}

bool is_switched_on(const RawCommandLine& line, Flag flag) {
  const RawValue* value = line.find(flag);
  return value != nullptr && parse_switch(*value);
}

bool choose_switch(const RawCommandLine& line, Flag on, Flag off, bool otherwise) {
  const RawValue* positive = line.find(on);
  const RawValue* negative = line.find(off);
  if (positive == nullptr && negative == nullptr) return otherwise;
  if (negative == nullptr) return parse_switch(*positive);
  if (positive == nullptr) return !parse_switch(*negative);
  if (positive->from_environment != negative->from_environment)
    return positive->from_environment ? !parse_switch(*negative) : parse_switch(*positive);
  if (parse_switch(*positive) == parse_switch(*negative))
    throw UsageError(fmt::format("{} and {} contradict each other", positive->origin, negative->origin),
                     "leave one of the two out");
  return parse_switch(*positive);
}

}  // namespace genai::cli
