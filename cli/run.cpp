#include "cli/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "cli/interrupt.h"
#include "cli/prompt_source.h"
#include "cli/report_file.h"
#include "cli/run_report.h"
#include "cli/session.h"
#include "cli/text_writer.h"

namespace genai::cli {
namespace {

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

// A stop text that is a special token has no visible text that could be matched: it ends the text as a token.
std::vector<std::int32_t> special_stop_ids(const Tokenizer& tokenizer, const std::vector<std::string>& stops) {
  std::vector<std::int32_t> ids;
  for (const std::string& stop : stops) {
    const std::optional<std::int32_t> id = tokenizer.find_token(stop);
    if (id && tokenizer.token_type(*id) == TokenType::kControl) ids.push_back(*id);
  }
  return ids;
}

std::string finish_reason(const Generation& generation, const TextWriter& writer, const Output& output,
                          const std::vector<std::int32_t>& stop_ids) {
  if (output.reader_gone()) return "output_closed";
  const bool by_stop_id =
      generation.end_token && std::find(stop_ids.begin(), stop_ids.end(), *generation.end_token) != stop_ids.end();
  // A stop text may become complete with the very last token.
  if (writer.stopped() || by_stop_id) return std::string(finish_reason_name(FinishReason::stop));
  return std::string(finish_reason_name(generation.finish));
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

  GenerationRequest request;
  request.prompt = session.encode(read_prompt(options.prompt), options.prompt.parse_special);
  if (options.dump_prompt) console.line(fmt::format("prompt ids: [{}]", fmt::join(request.prompt, ", ")));
  session.require_fits(request.prompt);
  request.max_tokens = options.max_tokens;
  request.sampler = options.sampler;
  request.sampler.seed = options.seed ? *options.seed : random_seed();
  const std::vector<std::int32_t> stop_ids = special_stop_ids(session.tokenizer(), options.stops);
  if (!options.ignore_end) request.end_ids = session.tokenizer().end_of_generation_ids();
  request.end_ids.insert(request.end_ids.end(), stop_ids.begin(), stop_ids.end());

  throw_if_interrupted();
  console.begin_progress("loading");
  session.load();
  console.end_progress();
  print_warnings(session, warnings_printed, console);
  console.debug(fmt::format("{}; {} threads ({}); context {} tokens, {} a pass; {} bytes of weights",
                            session.device().device->name(), session.device().threads, session.device().threads_reason,
                            session.context_tokens(), session.pass_rows(), session.model().weight_bytes()));

  RunReport run_report(session);
  TextWriter writer(session.tokenizer(), options.stops, options.show_special, output);
  console.begin_progress("reading the prompt");
  const auto on_token = [&](std::int32_t token) {
    console.end_progress();
    return writer.push(token);
  };
  const auto on_prefill = [&](std::int32_t done, std::int32_t total) {
    console.show_progress(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
  };
  Generation generation;
  try {
    generation = session.loop().generate(request, on_token, interrupt_flag(), on_prefill);
  } catch (...) {
    console.end_progress();
    writer.finish();
    throw;
  }
  console.end_progress();
  if (options.show_special && generation.end_token && !writer.stopped()) writer.push(*generation.end_token);
  writer.finish();
  if (output.is_terminal() && output.is_inside_line() && console.is_terminal()) console.end_line();

  const std::string finish = finish_reason(generation, writer, output, stop_ids);
  print_report(run_report.collect(request, generation, finish, writer.output_hash()), options, report_file, console);
  return generation.finish == FinishReason::interrupted ? kInterruptedExitCode : 0;
}

}  // namespace genai::cli
