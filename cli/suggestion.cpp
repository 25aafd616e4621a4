#include "cli/suggestion.h"

#include <algorithm>
#include <vector>

namespace genai::cli {

std::size_t edit_distance(std::string_view from, std::string_view to) {
  // Rows of the table of distances between prefixes: two back, the one before, this one.
  std::vector<std::size_t> before_last(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[to.size()];
}

std::optional<std::string> closest_name(std::string_view name, std::span<const std::string> known) {
  constexpr std::size_t kShortestPrefix = 3;
  std::optional<std::string> closest;
  std::size_t best = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    std::size_t distance = edit_distance(name, candidate);
    const std::size_t shorter = std::min(name.size(), candidate.size());
    if (shorter >= kShortestPrefix && name.substr(0, shorter) == std::string_view(candidate).substr(0, shorter))
      distance = std::min<std::size_t>(distance, 1);
    if (distance < best) {
      best = distance;
      closest = candidate;
    }
  }
  return closest;
}

}  // namespace genai::cli
