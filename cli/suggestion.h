// suggestion.h - which known name somebody meant who mistyped one.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace genai::cli {

// Insertions, deletions, replacements and swaps of neighbours that make one of the two the other.
std::size_t edit_distance(std::string_view from, std::string_view to);

// The closest of `known`, the first of equals; a name of which `name` is the beginning, or that begins `name`, counts
// as one edit away. Nothing when all are further than a third of the name's length.
std::optional<std::string> closest_name(std::string_view name, std::span<const std::string> known);

}  // namespace genai::cli
