// reference_support.h - what an fp32 implementation says about real and tiny models, read from data/reference, where a
// README explains every field; and the tolerances that it suggests for an engine with int8 activations.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/shared_data.h"

namespace genai::test {

// Log probabilities are natural. prompt_logprobs[i] belongs to ids[i + 1]; greedy_logprobs[i] and margins[i] (best
// logit minus the second best) to greedy_ids[i].
struct ReferenceCase {
  std::string name;
  std::string prompt;
  bool parse_special = false;
  std::vector<std::int32_t> ids;
  std::vector<double> prompt_logprobs;
  std::vector<std::int32_t> greedy_ids;
  std::vector<double> greedy_logprobs;
  std::vector<double> margins;
  std::optional<std::int32_t> first_eog;
};

struct ReferenceText {
  std::vector<std::int32_t> ids;
  std::int32_t window = 0;
  double mean_nll = 0.0;                // of ids[1 .. window)
  std::vector<double> next_logprobs;    // of ids[1 ..], in that window
  double windows_256_mean_nll = 0.0;    // over all windows
  std::vector<double> windows_256_nll;  // of each
};

struct Reference {
  std::string model_file;
  bool add_bos = false;
  std::int32_t bos_id = 0;
  std::vector<ReferenceCase> cases;
  ReferenceText text;
};

// Largest absolute differences from the reference.
struct ReferenceTolerances {
  double mean_nll;    // of the 1024 window, and over all 256 windows
  double window_nll;  // of one 256 window
  double next_mean;   // next_logprobs
  double next_max;
  double prompt_mean;  // one prompt of at least 8 predictions
  double greedy_mean;  // one case, fed with greedy_ids
  double greedy_max;
  double certain_margin;  // above it the argmax must be the same
};
inline constexpr ReferenceTolerances kSmollm2Tolerances{.mean_nll = 0.007,
                                                        .window_nll = 0.018,
                                                        .next_mean = 0.12,
                                                        .next_max = 1.0,
                                                        .prompt_mean = 0.26,
                                                        .greedy_mean = 0.12,
                                                        .greedy_max = 0.8,
                                                        .certain_margin = 0.8};
inline constexpr ReferenceTolerances kGemma3Tolerances{.mean_nll = 0.006,
                                                       .window_nll = 0.013,
                                                       .next_mean = 0.10,
                                                       .next_max = 0.7,
                                                       .prompt_mean = 0.20,
                                                       .greedy_mean = 0.09,
                                                       .greedy_max = 0.7,
                                                       .certain_margin = 0.5};

struct TopToken {
  std::int32_t id = 0;
  double logprob = 0.0;
};

struct TinyReference {
  std::string file;                // beside tiny.json
  bool has_float_weights = false;  // nothing is rounded to int8
  std::vector<std::int32_t> ids;
  std::vector<double> next_logprobs;
  std::vector<TopToken> last_top8;       // after all ids
  std::vector<std::int32_t> greedy_ids;  // after ids[0 .. 24)
  std::vector<double> margins;
  // What int8 activations changed in a simulation, in next_logprobs.
  double simulated_mean = 0.0;
  double simulated_max = 0.0;
};
inline constexpr std::size_t kTinyGreedyPrompt = 24;

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

inline Reference read_reference(const std::filesystem::path& path) {
  const nlohmann::json json = read_json(path);
  Reference reference;
  json.at("model_file").get_to(reference.model_file);
  json.at("add_bos").get_to(reference.add_bos);
  json.at("bos_id").get_to(reference.bos_id);
  for (const nlohmann::json& entry : json.at("cases")) {
    ReferenceCase& each = reference.cases.emplace_back();
    entry.at("name").get_to(each.name);
    entry.at("prompt").get_to(each.prompt);
    entry.at("parse_special").get_to(each.parse_special);
    entry.at("ids").get_to(each.ids);
    entry.at("prompt_logprobs").get_to(each.prompt_logprobs);
    entry.at("greedy_ids").get_to(each.greedy_ids);
    entry.at("greedy_logprobs").get_to(each.greedy_logprobs);
    entry.at("margins").get_to(each.margins);
    if (!entry.at("first_eog").is_null()) each.first_eog = entry.at("first_eog").get<std::int32_t>();
  }
  const nlohmann::json& text = json.at("text");
  text.at("ids").get_to(reference.text.ids);
  text.at("window").get_to(reference.text.window);
  text.at("mean_nll").get_to(reference.text.mean_nll);
  text.at("next_logprobs").get_to(reference.text.next_logprobs);
  text.at("windows_256").at("mean_nll").get_to(reference.text.windows_256_mean_nll);
  text.at("windows_256").at("each").get_to(reference.text.windows_256_nll);
  return reference;
}

inline std::vector<TinyReference> read_tiny_references(const std::filesystem::path& path) {
  const nlohmann::json json = read_json(path);
  std::vector<TinyReference> references;
  for (const nlohmann::json& entry : json.at("models")) {
    TinyReference& each = references.emplace_back();
    entry.at("file").get_to(each.file);
    entry.at("ids").get_to(each.ids);
    entry.at("next_logprobs").get_to(each.next_logprobs);
    for (const nlohmann::json& pair : entry.at("last_logits_top8"))
      each.last_top8.push_back({pair.at(0).get<std::int32_t>(), pair.at(1).get<double>()});
    entry.at("greedy_from_24").get_to(each.greedy_ids);
    entry.at("margins").get_to(each.margins);
    entry.at("q8_simulation").at("mean_abs").get_to(each.simulated_mean);
    entry.at("q8_simulation").at("max_abs").get_to(each.simulated_max);
    each.has_float_weights = true;
    for (const auto& [type, count] : entry.at("types").items())
      each.has_float_weights = each.has_float_weights && (type == "F32" || type == "F16" || type == "BF16");
  }
  return references;
}

}  // namespace genai::test
