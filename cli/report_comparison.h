// report_comparison.h - what differs between the report of a run and that of its replay. Both are whole reports, with
// the hashes of steps. Pure.
#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace genai::cli {

struct Difference {
  std::string field;
  std::optional<std::size_t> row;   // of the texts, from 0; nothing: of the run
  std::optional<std::size_t> step;  // from 0, the choice of the first token
  std::string expected;             // in the report, as JSON
  std::string found;                // in the replay
};

// The hashes of each text: the first step whose logits differ, else what else differs. Both have as many texts.
std::vector<Difference> compare_texts(const nlohmann::ordered_json& report, const nlohmann::ordered_json& replay);

// Why the counters of the two cannot be compared; empty where they ran in the same way and can.
std::string counters_obstacle(const nlohmann::ordered_json& report, const nlohmann::ordered_json& replay);
// Of the counters that the plan forecasts. `is_whole`: all texts ended by themselves, so that totals compare.
std::vector<Difference> compare_counters(const nlohmann::ordered_json& report, const nlohmann::ordered_json& replay,
                                         bool is_whole);

// The texts' entries: rows, or the report itself where there is one text.
std::size_t text_count(const nlohmann::ordered_json& report);
const nlohmann::ordered_json& text_entry(const nlohmann::ordered_json& report, std::size_t row);

}  // namespace genai::cli
