#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/byte_size.h"
#include "cli/content_hash.h"
#include "cli/version.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

// Numbers that a person may compare by eye: microseconds are enough of a millisecond.
double rounded(double value) { return std::round(value * 1000.0) / 1000.0; }
double milliseconds(double seconds) { return rounded(seconds * 1000.0); }

template <class Value>
void put(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = *value;
}

std::optional<double> rate(double count, std::optional<double> seconds) {
  if (!seconds || !(*seconds > 0.0) || !(count > 0.0)) return std::nullopt;
  return count / *seconds;
}

// In GB/s.
std::optional<double> load_rate(const Report& report) {
  return rate(static_cast<double>(report.load_file_bytes) / 1e9, report.load_weights_seconds);
}

std::optional<double> decode_rate(const Report& report) {
  return rate(static_cast<double>(report.inter_token_seconds.size()), report.decode_seconds);
}

// By the plan, with as many texts a step as there were.
std::optional<double> predicted_rate(const Report& report) {
  if (!report.predicted_pass_seconds) return std::nullopt;
  const double texts = report.traffic
                           ? static_cast<double>(report.traffic->step_rows) / static_cast<double>(report.traffic->steps)
                           : report.batch;
  return rate(texts, report.predicted_pass_seconds);
}

std::optional<double> prefill_rate(const Report& report) {
  return rate(static_cast<double>(report.prompt_tokens), report.prefill_seconds);
}

void put_traffic(Json& json, const Report::Traffic& traffic) {
  json["decode_steps"] = traffic.steps;
  json["floor_bytes_per_step"] = traffic.floor_bytes_per_step;
  const double floor_bytes = static_cast<double>(traffic.floor_bytes_per_step) * static_cast<double>(traffic.steps);
  if (floor_bytes > 0.0)
    json["traffic_over_floor"] = static_cast<double>(traffic.htod_bytes + traffic.zero_copy_bytes) / floor_bytes;
  json["htod_bytes"] = traffic.htod_bytes;
  json["htod_bytes_per_token"] = traffic.htod_bytes / traffic.step_rows;
  json["zero_copy_bytes"] = traffic.zero_copy_bytes;
  json["host_computed_bytes"] = traffic.host_computed_bytes;
  json["page_ins"] = traffic.page_ins;
  json["evictions"] = traffic.evictions;
}

void put_prediction(Json& json, const Report& report) {
  if (!report.bottleneck.empty()) json["bottleneck"] = report.bottleneck;
  const std::optional<double> predicted = predicted_rate(report);
  if (!predicted) return;
  json["predicted_tokens_per_second"] = rounded(*predicted);
  if (const auto measured = decode_rate(report)) json["predicted_over_measured"] = rounded(*predicted / *measured);
}

void put_times(Json& json, const Report& report) {
  json["load_ms"] = milliseconds(report.load_seconds);
  if (const auto speed = load_rate(report)) json["load_gbps"] = rounded(*speed);
  if (report.time_to_first_token_seconds)
    json["time_to_first_token_ms"] = milliseconds(*report.time_to_first_token_seconds);
  if (const auto speed = prefill_rate(report)) json["prefill_tokens_per_second"] = rounded(*speed);
  if (const auto speed = decode_rate(report)) json["decode_tokens_per_second"] = rounded(*speed);
  if (report.hbm_gbps) json["hbm_gbps"] = rounded(*report.hbm_gbps);
  if (report.read_peak_gbps) json["read_peak_gbps"] = rounded(*report.read_peak_gbps);
  if (report.hbm_gbps && report.read_peak_gbps)
    json["roofline_fraction"] = rounded(*report.hbm_gbps / *report.read_peak_gbps);
  if (report.inter_token_seconds.empty()) return;
  std::vector<double> sorted = report.inter_token_seconds;
  std::sort(sorted.begin(), sorted.end());
  json["inter_token_ms"] = {{"p50", milliseconds(percentile(sorted, 0.50))},
                            {"p90", milliseconds(percentile(sorted, 0.90))},
                            {"p99", milliseconds(percentile(sorted, 0.99))},
                            {"max", milliseconds(sorted.back())}};
  if (const double median = percentile(sorted, 0.50); median > 0.0)
    json["weight_gbps"] = rounded(static_cast<double>(report.step_weight_bytes) / median / 1e9);
}

void put_ending(Json& json, const Report::Text& text) {
  json["seed"] = text.seed;
  json["finish_reason"] = text.finish_reason;
}

void put_steps(Json& json, const Report::Text& text, ReportDetail detail) {
  if (!text.logits_hash || detail != ReportDetail::steps) return;
  Json& hashes = json["step_logits_hashes"] = Json::array();
  for (const std::uint64_t hash : text.step_logits_hashes) hashes.push_back(hash_text(hash));
}

Json text_json(const Report::Text& text, ReportDetail detail) {
  Json json = {{"prompt_tokens", text.prompt_tokens}, {"generated_tokens", text.generated_tokens}};
  put_ending(json, text);
  json["prompt_hash"] = hash_text(text.prompt_hash);
  json["output_hash"] = hash_text(text.output_hash);
  if (text.logits_hash) json["logits_hash"] = hash_text(*text.logits_hash);
  put_steps(json, text, detail);
  return json;
}

}  // namespace

double percentile(const std::vector<double>& values, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

std::string report_json(const Report& report, ReportDetail detail) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["genai_version"] = kVersion;
  json["arithmetic"] = kArithmetic;
  json["device"]["name"] = report.device_name;
  put(json["device"], "sm_count", report.sm_count);
  if (!report.device_driver.empty()) json["device"]["driver"] = report.device_driver;
  Json& host = json["host"];
  if (!report.cpu_name.empty()) host["cpu"] = report.cpu_name;
  host["threads"] = report.threads;
  host["threads_reason"] = report.threads_reason;
  if (!report.instruction_set.empty()) host["isa"] = report.instruction_set;
  json["model"] = {{"path", report.model_path},
                   {"arch", report.model_arch},
                   {"bytes", report.model_bytes},
                   {"hash", hash_text(report.model_hash)}};
  json["mode"] = report.mode;
  if (!report.fallback_reason.empty()) json["fallback_reason"] = report.fallback_reason;
  json["allocator"] = report.allocator;
  put(json, "budget_bytes", report.budget_bytes);
  put(json, "committed_peak_bytes", report.committed_peak_bytes);
  for (const Report::CommittedBytes& part : report.committed_bytes) json["committed_bytes"][part.kind] = part.bytes;
  json["resident_bytes"] = report.resident_bytes;
  json["cold_bytes"] = report.cold_bytes;
  put(json, "pinned_bytes", report.pinned_bytes);
  put(json, "pageable_bytes", report.pageable_bytes);
  json["step_weight_bytes"] = report.step_weight_bytes;
  if (report.traffic) put_traffic(json, *report.traffic);
  put(json, "captures", report.captures);
  put(json, "replays", report.replays);
  put(json, "fallbacks", report.fallbacks);
  put(json, "invalidations", report.invalidations);
  put(json, "segments", report.segments);
  put(json, "eager_nodes", report.eager_nodes);
  put(json, "graph_bytes", report.graph_bytes);
  json["kv_committed_bytes"] = report.kv_committed_bytes;
  put(json, "kv_growth_events", report.kv_growth_events);
  put(json, "kv_bytes_moved", report.kv_bytes_moved);
  json["context_tokens"] = report.context_tokens;
  json["ubatch_tokens"] = report.pass_rows;
  json["batch"] = report.batch;
  json["prompt_tokens"] = report.prompt_tokens;
  json["generated_tokens"] = report.generated_tokens;
  put_times(json, report);
  put_prediction(json, report);
  if (report.texts.size() == 1) put_ending(json, report.texts.front());
  json["prompt_hash"] = hash_text(report.prompt_hash);
  json["output_hash"] = hash_text(report.output_hash);
  if (report.logits_hash) json["logits_hash"] = hash_text(*report.logits_hash);
  if (report.texts.size() == 1)
    put_steps(json, report.texts.front(), detail);
  else
    for (const Report::Text& text : report.texts) json["rows"].push_back(text_json(text, detail));
  if (!report.replay.empty() && detail == ReportDetail::steps) json["replay"] = Json::parse(report.replay);
  put(json, "rss_peak_bytes", report.rss_peak_bytes);
  put(json, "huge_page_bytes", report.huge_page_bytes);
  // Paths are bytes of any kind; JSON is not.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_report_json(const Report::Text& text) { return text_json(text, ReportDetail::run).dump(); }

std::string report_summary(const Report& report) {
  std::string line = fmt::format("[{} tokens", report.generated_tokens);
  if (const auto speed = decode_rate(report))
    line += fmt::format(" at {:.1f} tok/s ({:.2f} GB/s of weights)", *speed,
                        *speed * static_cast<double>(report.step_weight_bytes) / 1e9);
  line += fmt::format(" | prompt {}", report.prompt_tokens);
  if (const auto speed = prefill_rate(report)) line += fmt::format(" at {:.1f} tok/s", *speed);
  if (report.time_to_first_token_seconds)
    line += fmt::format(" | first token {:.0f} ms", *report.time_to_first_token_seconds * 1000.0);
  line += fmt::format(" | load {:.2f} s", report.load_seconds);
  if (const auto speed = load_rate(report)) line += fmt::format(" at {:.2f} GB/s", *speed);
  if (report.committed_peak_bytes) line += fmt::format(" | {}", byte_size_text(*report.committed_peak_bytes));
  line += fmt::format(" | {}", report.device_name);
  // On a GPU the threads only load and sample.
  if (!report.sm_count && !report.threads_reason.empty()) line += fmt::format(", {}", report.threads_reason);
  if (report.logits_hash) line += fmt::format(" | logits {}", hash_text(*report.logits_hash));
  if (report.texts.size() == 1)
    return line + fmt::format(" | seed {} | {}]", report.texts.front().seed, report.texts.front().finish_reason);
  return line + fmt::format(" | {} texts, {} at once]", report.texts.size(), report.batch);
}

}  // namespace genai::cli
