// flag_values.h - raw values as numbers, choices and yes or no. Every rejection names the flag or variable, the value
// and the range.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"

namespace genai::cli {

// Throws UsageError where the text is no whole number or outside of [lowest, highest].
std::int64_t parse_integer(const RawValue& value, std::int64_t lowest, std::int64_t highest);
// All 64 bits. Throws UsageError.
std::uint64_t parse_unsigned(const RawValue& value);
// Finite. Throws UsageError.
double parse_number(const RawValue& value);
// 1, true, yes, on and 0, false, no, off. Throws UsageError.
bool parse_switch(const RawValue& value);
// Index into `choices`. Throws UsageError, with a suggestion.
std::size_t parse_choice(const RawValue& value, const std::vector<std::string>& choices);
// \n, \t, \r, \0, \\, \", \', \xHH. Throws UsageError for another escape.
std::string replace_escapes(const RawValue& value);

bool is_switched_on(const RawCommandLine& line, Flag flag);
// Of a flag and its opposite: a flag beats the environment. Throws UsageError where both are given the same way and
// contradict each other.
bool choose_switch(const RawCommandLine& line, Flag on, Flag off, bool otherwise);

}  // namespace genai::cli
