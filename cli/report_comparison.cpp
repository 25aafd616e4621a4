#include "cli/report_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

// What forecasts hang on besides the model and the request.
constexpr const char* kCircumstances[] = {"mode",  "allocator", "budget_bytes", "pageable_bytes", "ubatch_tokens",
                                          "batch", "cold",      "lane_speeds",  "graph"};
// Of the plan alone, and of the plan and the steps.
constexpr const char* kPlacementCounters[] = {"resident_bytes", "cold_bytes", "pinned_bytes", "step_weight_bytes",
                                              "floor_bytes_per_step"};
constexpr const char* kRunCounters[] = {"committed_peak_bytes",
                                        "decode_steps",
                                        "htod_bytes",
                                        "page_ins",
                                        "evictions",
                                        "zero_copy_bytes",
                                        "captures",
                                        "replays",
                                        "fallbacks",
                                        "host_computed_bytes",
                                        "segments",
                                        "kv_committed_bytes",
                                        "kv_growth_events",
                                        "kv_bytes_moved"};

// The field, or where it is kept for the replay; null where there is none.
Json field(const Json& report, const char* name) {
  if (report.contains(name)) return report.at(name);
  const Json& replay = report.at("replay");
  return replay.contains(name) ? replay.at(name) : Json();
}

std::string shown(const Json& value) { return value.is_null() ? "none" : value.dump(); }

void compare_field(const Json& report, const Json& replay, const char* name, std::optional<std::size_t> row,
                   std::vector<Difference>& differences) {
  const Json expected = report.contains(name) ? report.at(name) : Json();
  const Json found = replay.contains(name) ? replay.at(name) : Json();
  if (expected != found)
    differences.push_back(
        {.field = name, .row = row, .step = std::nullopt, .expected = shown(expected), .found = shown(found)});
}

std::optional<Difference> first_different_step(const Json& report, const Json& replay, std::size_t row) {
  constexpr const char* kSteps = "step_logits_hashes";
  const Json expected = report.contains(kSteps) ? report.at(kSteps) : Json::array();
  const Json found = replay.contains(kSteps) ? replay.at(kSteps) : Json::array();
  for (std::size_t step = 0; step < std::max(expected.size(), found.size()); ++step) {
    const Json one = step < expected.size() ? expected[step] : Json();
    const Json other = step < found.size() ? found[step] : Json();
    if (one != other)
      return Difference{
          .field = "logits_hash", .row = row, .step = step, .expected = shown(one), .found = shown(other)};
  }
  return std::nullopt;
}

}  // namespace

std::size_t text_count(const Json& report) { return report.contains("rows") ? report.at("rows").size() : 1; }

const Json& text_entry(const Json& report, std::size_t row) {
  return report.contains("rows") ? report.at("rows").at(row) : report;
}

std::vector<Difference> compare_texts(const Json& report, const Json& replay) {
  std::vector<Difference> differences;
  for (std::size_t row = 0; row < text_count(report); ++row) {
    const Json& expected = text_entry(report, row);
    const Json& found = text_entry(replay, row);
    if (const std::optional<Difference> step = first_different_step(expected, found, row)) {
      differences.push_back(*step);
      continue;
    }
    for (const char* name : {"prompt_hash", "generated_tokens", "logits_hash", "output_hash"})
      compare_field(expected, found, name, row, differences);
  }
  // A text by itself is the run.
  if (report.contains("rows") && differences.empty())
    for (const char* name : {"prompt_hash", "logits_hash", "output_hash"})
      compare_field(report, replay, name, std::nullopt, differences);
  return differences;
}

std::string counters_obstacle(const Json& report, const Json& replay) {
  const auto obstacle = [](const std::string& name, const Json& expected, const Json& found) {
    return fmt::format("{} is {}, and {} in the report", name, shown(found), shown(expected));
  };
  const Json& device = report.at("device").at("name");
  if (device != replay.at("device").at("name")) return obstacle("device", device, replay.at("device").at("name"));
  for (const char* name : kCircumstances) {
    const Json expected = field(report, name), found = field(replay, name);
    if (expected != found) return obstacle(name, expected, found);
  }
  return {};
}

std::vector<Difference> compare_counters(const Json& report, const Json& replay, bool is_whole) {
  std::vector<Difference> differences;
  for (const char* name : kPlacementCounters) compare_field(report, replay, name, std::nullopt, differences);
  if (is_whole)
    for (const char* name : kRunCounters) compare_field(report, replay, name, std::nullopt, differences);
  return differences;
}

}  // namespace genai::cli
