#include "cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/content_hash.h"
#include "cli/machine_facts.h"

namespace genai::cli {
namespace {

void add_ids(ContentHash& hash, const std::vector<std::int32_t>& prompt) {
  for (const std::int32_t token : prompt) hash.add(static_cast<std::uint64_t>(token));
}

Report::Text text_report(const TextRequest& request, const TextResult& result) {
  const Generation& generation = result.generation;
  ContentHash prompt_hash;
  add_ids(prompt_hash, request.generation.prompt);
  Report::Text text;
  text.prompt_tokens = request.generation.prompt.size();
  text.generated_tokens = generation.tokens.size();
  text.seed = request.generation.sampler.seed;
  text.finish_reason = result.finish_reason;
  text.prompt_hash = prompt_hash.value();
  text.output_hash = result.output_hash;
  if (!generation.step_hashes.empty()) text.logits_hash = generation.logits_hash;
  text.step_logits_hashes = generation.step_hashes;
  return text;
}

void put_texts(const std::vector<TextRequest>& requests, const std::vector<TextResult>& results, Report& report) {
  ContentHash prompt_hash;
  for (std::size_t row = 0; row < requests.size(); ++row) {
    add_ids(prompt_hash, requests[row].generation.prompt);
    report.texts.push_back(text_report(requests[row], results[row]));
    if (const std::optional<std::uint64_t>& hash = report.texts.back().logits_hash)
      report.logits_hash = report.logits_hash.value_or(0) + *hash;
  }
  report.prompt_hash = prompt_hash.value();
}

// Bytes of weights that a step has to read: all, but for an embedding that is looked up only.
std::uint64_t step_weight_bytes(const WeightMap& map) {
  const PlacedTensor* embedding = map.find("token_embd.weight");
  const bool is_tied = map.find("output.weight") == nullptr;
  return embedding == nullptr || is_tied ? map.total_bytes : map.total_bytes - embedding->size_bytes;
}

std::optional<Report::Traffic> traffic_of(const DecodeCounters& counters, const ResidencyPlan& plan) {
  if (counters.decode_steps == 0) return std::nullopt;
  const PassTraffic& counted = counters.decode_traffic;
  const auto of = [](const auto& by_lane, Lane lane) { return by_lane[static_cast<std::size_t>(lane)]; };
  return Report::Traffic{
      .steps = counters.decode_steps,
      .step_rows = counters.step_rows,
      .htod_bytes = counted.copied_bytes,
      .page_ins = counted.copies,
      .evictions = counted.copies,  // a slot that takes a chunk in gives one up
      .zero_copy_bytes = of(counted.read_bytes, Lane::zero_copy),
      .host_computed_bytes = of(counted.read_bytes, Lane::host),
      .floor_bytes_per_step = of(plan.pass_bytes, Lane::ring) + of(plan.pass_bytes, Lane::zero_copy)};
}

void put_ledger(const ResidencyArena& arena, Report& report) {
  report.committed_peak_bytes = arena.committed_peak_bytes();
  report.pinned_bytes = arena.committed_host_bytes();
  report.pageable_bytes = arena.committed_pageable_bytes();
  for (std::size_t i = 0; i < kMemoryKindCount; ++i) {
    const MemoryKind kind = static_cast<MemoryKind>(i);
    if (kind == MemoryKind::staging) continue;  // given back when the weights were there
    const std::string name = kind == MemoryKind::cold ? "cold" : std::string(memory_kind_name(kind));
    report.committed_bytes.push_back({name, arena.committed_bytes(kind)});
  }
}

void put_device_speed(const OpenedDevice& opened, const DeviceTime& time, Model& model, Report& report) {
  // The host's own clock has timed its steps already.
  if (!opened.measure_read_gbps || time.steps == 0) return;
  report.hbm_gbps = static_cast<double>(time.read_bytes) / time.seconds / 1e9;
  // Resident weights are as good a range to read as any, and take no memory of their own. They begin with their range.
  const PlacedTensor& any = model.weight_map().tensors.front();
  const auto offset = static_cast<std::int64_t>(any.offset_bytes[static_cast<std::size_t>(Lane::resident)]);
  report.read_peak_gbps = opened.measure_read_gbps(model.stream(), model.weight_address(any).byte_offset(-offset),
                                                   model.weight_map().resident_bytes);
}

}  // namespace

std::string graph_memory_warning(const Report& report) {
  const auto kept = std::find_if(report.committed_bytes.begin(), report.committed_bytes.end(),
                                 [](const auto& part) { return part.kind == memory_kind_name(MemoryKind::graphs); });
  if (!report.graph_bytes || kept == report.committed_bytes.end() || *report.graph_bytes <= kept->bytes) return {};
  return fmt::format(
      "{} bytes of device memory went while graphs were made, and {} were kept for them: the budget may be "
      "exceeded by the rest, unless another program took it",
      *report.graph_bytes, kept->bytes);
}

void put_graph_counters(const DecodeCounters& counters, bool graph, std::uint64_t graph_count, Report& report) {
  report.captures = counters.captures;
  report.replays = counters.replays;
  if (!graph || counters.decode_steps == 0) return;
  report.fallbacks = counters.eager_steps;
  report.invalidations = counters.captures - std::min(counters.captures, graph_count);
  report.segments = counters.replays / counters.decode_steps;
  if (counters.eager_steps == 0) report.eager_nodes = 0;
}

RunReport::RunReport(Session& session)
    : session_(session), cache_address_(session.model().cache().view(0).base.address()) {}

Report RunReport::collect(const std::vector<TextRequest>& requests, const std::vector<TextResult>& results,
                          std::uint64_t output_hash) const {
  Model& model = session_.model();
  const DecodeCounters& counters = session_.loop().counters();
  const OpenedDevice& opened = session_.device();
  Report report;
  report.device_name = opened.device->name();
  report.sm_count = opened.sm_count;
  report.device_driver = opened.driver;
  report.fallback_reason = opened.fallback_reason;
  if (const std::string& refusal = model.pinning_refusal(); !refusal.empty())
    report.fallback_reason += (report.fallback_reason.empty() ? "" : "; ") + refusal;
  report.cpu_name = cpu_name();
  report.threads = opened.threads;
  report.threads_reason = opened.threads_reason;
  report.instruction_set = opened.instruction_set;
  report.model_path = session_.facts().path;
  report.model_arch = session_.facts().arch;
  report.model_bytes = session_.facts().bytes;
  report.model_hash = session_.facts().hash;

  report.budget_bytes = session_.budget_bytes();
  report.allocator = allocator_name(model.arena().allocator());
  if (model.arena().allocator() == Allocator::arena) put_ledger(model.arena(), report);
  const ResidencyPlan& plan = model.plan();
  if (plan.mode != OffloadMode::off) report.mode = offload_mode_name(plan.mode);
  report.cold_bytes = plan.cold_bytes();
  if (plan.pass_seconds > 0.0) report.predicted_pass_seconds = plan.pass_seconds;
  report.bottleneck = plan.bottleneck;
  report.resident_bytes = model.weight_bytes() - plan.cold_bytes();
  report.traffic = traffic_of(counters, plan);
  report.step_weight_bytes = step_weight_bytes(model.weight_map());
  put_graph_counters(counters, session_.graph(), session_.loop().captured_widths(), report);
  if (report.segments) report.graph_bytes = session_.loop().graph_bytes();
  report.kv_committed_bytes = model.cache().committed_bytes();
  report.kv_growth_events = counters.kv_growth_events;
  // Growth that moved the cache would have given it another address.
  const bool moved = model.cache().view(0).base.address() != cache_address_;
  report.kv_bytes_moved = moved ? model.cache().committed_bytes() : 0;

  report.context_tokens = session_.context_tokens();
  report.pass_rows = session_.pass_rows();
  report.batch = session_.sequence_count();
  report.prompt_tokens = counters.prompt_tokens;
  report.generated_tokens = counters.generated_tokens;
  report.load_seconds = session_.load_seconds();
  report.load_file_bytes = model.weight_load().file_bytes;
  report.load_weights_seconds = model.weight_load().seconds;
  report.prefill_seconds = counters.prefill_seconds;
  report.decode_seconds = counters.decode_seconds;
  report.time_to_first_token_seconds = counters.time_to_first_token_seconds;
  report.inter_token_seconds = counters.inter_token_seconds;
  put_device_speed(opened, counters.device_time, model, report);

  put_texts(requests, results, report);
  report.output_hash = output_hash;
  report.rss_peak_bytes = rss_peak_bytes();
  report.huge_page_bytes = huge_page_bytes();
  return report;
}

}  // namespace genai::cli
