#include "cli/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/batch_file.h"
#include "cli/interrupt.h"
#include "cli/ordered_texts.h"
#include "cli/prompt_source.h"
#include "cli/replay.h"
#include "cli/report_file.h"
#include "cli/run_report.h"
#include "cli/session.h"
#include "cli/text_requests.h"
#include "cli/version.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

SessionOptions session_options(const RunOptions& options, Console& console) {
  SessionOptions session;
  session.model_path = options.model_path;
  session.force_pre_tokenizer = options.force_pre_tokenizer;
  session.placement = options.placement;
  session.graph = options.graph;
  session.check = options.check;
  session.progress = [&console](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    throw_if_interrupted();
    console.show_progress(done_bytes, std::max<std::uint64_t>(total_bytes, 1), "bytes");
  };
  return session;
}

void print_warnings(const Session& session, std::size_t& printed, Console& console) {
  for (; printed < session.warnings().size(); ++printed) console.warn(session.warnings()[printed]);
}

// Thirty-two bits: a number that can be read in any JSON and typed again.
std::uint64_t random_seed() { return std::random_device{}(); }

// The lines of a batch file, or one prompt as many times as texts are generated at once, with seeds that count up.
std::vector<PromptRow> read_rows(const RunOptions& options, Console& console) {
  const std::string text = read_prompt(options.prompt);
  if (options.is_batch_file) {
    std::vector<std::string> warnings;
    const bool is_stdin = options.prompt.source == PromptOptions::Source::standard_input;
    const BatchFile file{
        .name = is_stdin ? "stdin" : options.prompt.text, .text = text, .replace_escapes = options.escapes};
    std::vector<PromptRow> rows = read_batch_file(file, options.row, warnings);
    for (const std::string& warning : warnings) console.warn(warning);
    for (PromptRow& row : rows)
      if (!row.settings.seed) row.settings.seed = random_seed();
    return rows;
  }
  const std::uint64_t seed = options.row.seed ? *options.row.seed : random_seed();
  std::vector<PromptRow> rows(static_cast<std::size_t>(options.placement.parallel),
                              {.prompt = text, .settings = options.row, .origin = {}});
  for (std::size_t row = 0; row < rows.size(); ++row) rows[row].settings.seed = seed + row;
  return rows;
}

TextRequest make_request(const Session& session, const PromptRow& row, const RunOptions& options) {
  std::vector<std::int32_t> ids = session.encode(row.prompt, options.prompt.parse_special);
  const std::string where = row.origin.empty() ? "" : row.origin + ": ";
  try {
    session.require_fits(ids);
  } catch (const ContextError& error) {
    throw ContextError(where + error.what(), error.hint());
  } catch (const UsageError& error) {
    throw UsageError(where + error.what(), error.hint());
  }
  return make_text_request(session, std::move(ids), row.settings, options.ignore_end);
}

std::string json_document(const Report& report, const std::vector<std::string>& texts) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["genai_version"] = kVersion;
  json["arithmetic"] = kArithmetic;
  json["results"] = Json::array();
  for (std::size_t row = 0; row < texts.size(); ++row) {
    Json result = {{"index", row}, {"text", texts[row]}};
    result.update(Json::parse(text_report_json(report.texts[row])));
    json["results"].push_back(std::move(result));
  }
  // The bytes of a text need not be UTF-8; JSON is. output_hash is that of the bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_report(const Report& report, const RunOptions& options, ReportFile& file, Console& console) {
  ReportForm form = options.report;
  if (form == ReportForm::automatic) form = console.is_terminal() ? ReportForm::human : ReportForm::json;
  if (form == ReportForm::json) console.line(report_json(report, ReportDetail::run));
  if (form == ReportForm::human) console.line(report_summary(report));
  file.write(report_json(report, ReportDetail::steps) + "\n");
}

}  // namespace

int run(const RunOptions& options, Output& output, Console& console) {
  ReportFile report_file(options.report_file, options.model_path);
  Session session(session_options(options, console));
  std::size_t warnings_printed = 0;
  print_warnings(session, warnings_printed, console);

  const std::vector<PromptRow> rows = read_rows(options, console);
  std::vector<TextRequest> requests;
  for (const PromptRow& row : rows) {
    requests.push_back(make_request(session, row, options));
    if (options.dump_prompt)
      console.line(fmt::format("prompt ids: [{}]", fmt::join(requests.back().generation.prompt, ", ")));
  }

  throw_if_interrupted();
  console.begin_progress("loading");
  session.limit_sequences(requests.size());
  session.load();
  console.end_progress();
  print_warnings(session, warnings_printed, console);
  console.debug(fmt::format("{}; {} threads ({}); context {} tokens, {} a pass; {} bytes of weights",
                            session.device().device->name(), session.device().threads, session.device().threads_reason,
                            session.context_tokens(), session.pass_rows(), session.model().weight_bytes()));

  const RunReport run_report(session);
  OrderedTexts ordered(requests.size(), output);
  CollectedTexts collected(requests.size());
  TextSink& sink = options.json ? static_cast<TextSink&>(collected) : ordered;
  console.begin_progress("reading the prompt");
  BatchEvents watcher;
  bool text_has_begun = false;
  watcher.on_token = [&](std::size_t, std::int32_t) {
    console.end_progress();
    text_has_begun = true;
    return true;
  };
  watcher.on_prefill = [&](std::size_t, std::int32_t done, std::int32_t total) {
    if (text_has_begun) return;  // the terminal is the text's
    console.show_progress(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
  };
  std::vector<TextResult> results;
  try {
    results = generate_texts(session, requests, options.show_special, sink, watcher);
  } catch (...) {
    console.end_progress();
    throw;
  }
  console.end_progress();

  Report report = run_report.collect(requests, results, options.json ? collected.output_hash() : ordered.output_hash());
  report.replay =
      replay_json(make_replay(options, session, requests)).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (const std::string warning = graph_memory_warning(report); !warning.empty()) console.warn(warning);
  if (options.json) output.write(json_document(report, collected.texts()));
  if (output.is_terminal() && output.is_inside_line() && console.is_terminal()) console.end_line();
  print_report(report, options, report_file, console);
  const bool interrupted = std::any_of(results.begin(), results.end(), [](const TextResult& result) {
    return result.generation.finish == FinishReason::interrupted;
  });
  return interrupted ? kInterruptedExitCode : 0;
}

}  // namespace genai::cli
