#include "cli/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/byte_size.h"
#include "cli/content_hash.h"
#include "cli/interrupt.h"
#include "cli/ordered_texts.h"
#include "cli/prompt_source.h"
#include "cli/replay.h"
#include "cli/report_comparison.h"
#include "cli/run_report.h"
#include "cli/version.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

Json read_report(const std::string& path) {
  const std::string text = read_text_file(path);
  Json report;
  try {
    report = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw UsageError(fmt::format("{}: not JSON, at byte {} of {}", path, error.byte, text.size()),
                     "the file is cut short or no report; name one that genai run --report-file has written");
  }
  const auto require = [&](const char* name, int expected) {
    if (!report.is_object() || !report.contains(name))
      throw UsageError(fmt::format("{}: it has no {}", path, name), "name a file of genai run --report-file");
    if (report.at(name) != expected)
      throw UsageError(fmt::format("{}: {} is {}, this genai has {}", path, name, report.at(name).dump(), expected),
                       "replay it with the genai that wrote it");
  };
  require("schema_version", kReportSchema);
  require("arithmetic", kArithmetic);
  return report;
}

// What the comparison reads must be there, and of its kind, before anything is computed.
void require_results(const Json& report, const Replay& replay, const std::string& path) {
  const auto require = [&](bool is_so, const std::string& what) {
    if (!is_so) throw UsageError(fmt::format("{}: {}", path, what), "the report has been changed or damaged");
  };
  const auto require_text = [&](const Json& json, const char* name) {
    require(json.contains(name) && json.at(name).is_string(), fmt::format("there is no {}", name));
  };
  for (const char* part : {"device", "model"}) require(report.contains(part), fmt::format("there is no {}", part));
  require_text(report.at("device"), "name");
  require_text(report.at("model"), "path");
  require_text(report.at("model"), "hash");
  require(!report.contains("rows") || report.at("rows").is_array(), "its rows are no list");
  require(text_count(report) == replay.rows.size(), "it has not as many results as prompts");
  for (std::size_t row = 0; row < replay.rows.size(); ++row) {
    const Json& text = text_entry(report, row);
    for (const char* name : {"finish_reason", "output_hash", "prompt_hash"}) require_text(text, name);
    require(text.contains("generated_tokens") && text.at("generated_tokens").is_number_unsigned(),
            "there is no generated_tokens");
    require(!text.contains("step_logits_hashes") || text.at("step_logits_hashes").is_array(),
            "its step_logits_hashes are no list");
  }
}

// Ended by a person, not by what was asked for: the replay goes as far and no further.
bool was_cut(const Json& text) {
  return text.at("finish_reason") == "interrupted" || text.at("finish_reason") == "output_closed";
}

TextRequest make_request(const Session& session, const Replay::Row& row, const Json& text, bool ignore_end) {
  session.require_fits(row.prompt);
  for (const std::int32_t id : row.prompt)
    if (id < 0 || id >= session.config().vocabulary_size)
      throw UsageError(fmt::format("the report's prompt has the token {}, and the model {} of them", id,
                                   session.config().vocabulary_size),
                       "the report has been changed or damaged");
  RowSettings settings = row.settings;
  if (was_cut(text))
    settings.max_tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(text.at("generated_tokens").get<std::int64_t>(), RowSettings::kMostTokens));
  return make_text_request(session, row.prompt, settings, ignore_end);
}

void require_same_model(const Json& report, const Session& session) {
  const std::string hash = hash_text(session.facts().hash);
  if (report.at("model").at("hash") == hash) return;
  throw UsageError(fmt::format("{} is another model: its hash is {}, the report's {}", session.facts().path, hash,
                               report.at("model").at("hash").get<std::string>()),
                   "name the file that the report was made with: -m FILE");
}

struct Outcome {
  std::vector<Difference> differences;
  std::string counters_obstacle;  // empty: counters were compared
  std::size_t texts = 0;
  std::size_t steps = 0;
};

Json document(const Outcome& outcome, const Json& replayed, const VerifyOptions& options) {
  Json json = {{"schema_version", kReportSchema},
               {"genai_version", kVersion},
               {"arithmetic", kArithmetic},
               {"report", options.report_path},
               {"agrees", outcome.differences.empty()},
               {"texts", outcome.texts},
               {"steps", outcome.steps},
               {"device", replayed.at("device").at("name")},
               {"mode", replayed.at("mode")}};
  if (replayed.contains("budget_bytes")) json["budget_bytes"] = replayed.at("budget_bytes");
  json["counters_compared"] = outcome.counters_obstacle.empty();
  if (!outcome.counters_obstacle.empty()) json["counters_obstacle"] = outcome.counters_obstacle;
  json["differences"] = Json::array();
  for (const Difference& difference : outcome.differences) {
    Json entry = {{"field", difference.field}};
    if (difference.row) entry["row"] = *difference.row;
    if (difference.step) entry["step"] = *difference.step;
    entry["expected"] = difference.expected;
    entry["found"] = difference.found;
    json["differences"].push_back(std::move(entry));
  }
  return json;
}

std::string summary(const Outcome& outcome, const Json& replayed) {
  std::string budget;
  if (replayed.contains("budget_bytes"))
    budget = fmt::format(", budget {}", byte_size_text(replayed.at("budget_bytes").get<std::uint64_t>()));
  std::string text = fmt::format(
      "replayed {} text{}, {} steps, on {}, mode {}{}\n", outcome.texts, outcome.texts == 1 ? "" : "s", outcome.steps,
      replayed.at("device").at("name").get<std::string>(), replayed.at("mode").get<std::string>(), budget);
  for (const Difference& difference : outcome.differences) {
    std::string where = difference.field;
    if (difference.step) where += fmt::format(" of step {}", *difference.step);
    if (difference.row && outcome.texts > 1) where += fmt::format(" of row {}", *difference.row);
    text += fmt::format("differs: {} is {}, the report has {}\n", where, difference.found, difference.expected);
  }
  if (!outcome.counters_obstacle.empty())
    text += fmt::format("counters are not compared: {}\n", outcome.counters_obstacle);
  if (outcome.differences.empty())
    text += outcome.counters_obstacle.empty() ? "all hashes and counters agree\n" : "all hashes agree\n";
  return text;
}

}  // namespace

int verify(const VerifyOptions& options, Output& output, Console& console) {
  const Json report = read_report(options.report_path);
  Replay replay = read_replay(report, options.report_path);
  require_results(report, replay, options.report_path);

  RunOptions run;
  run.model_path = options.model_path.empty() ? report.at("model").at("path").get<std::string>() : options.model_path;
  run.placement = options.overrides.applied_to(replay.placement);
  run.graph = options.overrides.graph(replay.graph);
  run.ignore_end = replay.ignore_end;
  run.show_special = replay.show_special;
  SessionOptions session_options;
  session_options.model_path = run.model_path;
  session_options.force_pre_tokenizer = true;  // prompts are token ids: nothing is cut into tokens
  session_options.placement = run.placement;
  session_options.graph = run.graph;
  session_options.progress = [&console](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    throw_if_interrupted();
    console.show_progress(done_bytes, std::max<std::uint64_t>(total_bytes, 1), "bytes");
  };
  Session session(session_options);
  require_same_model(report, session);
  std::vector<TextRequest> requests;
  bool is_whole = true;
  for (std::size_t row = 0; row < replay.rows.size(); ++row) {
    const Json& text = text_entry(report, row);
    requests.push_back(make_request(session, replay.rows[row], text, replay.ignore_end));
    is_whole = is_whole && !was_cut(text);
  }

  console.begin_progress("loading");
  session.limit_sequences(requests.size());
  const std::size_t warnings_before = session.warnings().size();  // those of the first run
  session.load();
  console.end_progress();
  for (std::size_t i = warnings_before; i < session.warnings().size(); ++i) console.warn(session.warnings()[i]);
  const RunReport run_report(session);
  CollectedTexts texts(requests.size());
  const std::vector<TextResult> results = generate_texts(session, requests, replay.show_special, texts);
  throw_if_interrupted();

  Report made = run_report.collect(requests, results, texts.output_hash());
  made.replay = replay_json(make_replay(run, session, requests)).dump();
  const Json replayed = Json::parse(report_json(made, ReportDetail::steps));
  Outcome outcome{.differences = compare_texts(report, replayed),
                  .counters_obstacle = counters_obstacle(report, replayed),
                  .texts = requests.size(),
                  .steps = 0};
  for (const TextResult& result : results) outcome.steps += result.generation.step_hashes.size();
  if (outcome.counters_obstacle.empty()) {
    const std::vector<Difference> counters = compare_counters(report, replayed, is_whole);
    outcome.differences.insert(outcome.differences.end(), counters.begin(), counters.end());
  }
  output.write(options.json ? document(outcome, replayed, options).dump() + "\n" : summary(outcome, replayed));
  return outcome.differences.empty() ? 0 : 1;
}

}  // namespace genai::cli
