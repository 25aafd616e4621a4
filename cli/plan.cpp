#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/byte_size.h"
#include "cli/lane_speed_values.h"
#include "cli/session.h"
#include "cli/version.h"
#include "engine/error.h"
#include "engine/residency/host_lane.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Lane kLanes[] = {Lane::resident, Lane::ring, Lane::zero_copy, Lane::host};

Json lane_json(const std::uint64_t (&bytes)[kLaneCount]) {
  Json json;
  for (const Lane lane : kLanes) json[std::string(lane_name(lane))] = bytes[static_cast<int>(lane)];
  return json;
}

// Nothing where the speed of a lane in use is unknown.
std::optional<double> tokens_per_second(const ResidencyPlan& plan) {
  if (plan.pass_seconds > 0.0) return 1.0 / plan.pass_seconds;
  return std::nullopt;
}

void put_prediction(Json& json, const ResidencyPlan& plan) {
  const std::optional<double> rate = tokens_per_second(plan);
  if (!rate) return;
  json["predicted_tokens_per_second"] = *rate;
  json["bottleneck"] = plan.bottleneck;
}

// With a GiB more of device memory; nothing where no weight would come in.
std::optional<ResidencyPlan> with_next_gib(PlanRequest request, const ResidencyPlan& plan) {
  if (!request.budget_bytes || plan.cold_bytes() == 0) return std::nullopt;
  *request.budget_bytes += std::uint64_t{1} << 30;
  ResidencyPlan more = make_residency_plan(request);
  if (more.cold_bytes() >= plan.cold_bytes()) return std::nullopt;
  return more;
}

Json document(const PlanRequest& request, const ResidencyPlan& plan) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["mode"] = offload_mode_name(plan.mode);
  if (request.budget_bytes) json["budget_bytes"] = *request.budget_bytes;
  json["committed_bytes"] = plan.committed_bytes;
  json["smallest_budget_bytes"] = smallest_budget(request);
  json["kv_bytes"] = request.fixed.kv;
  json["workspace_bytes"] = request.fixed.workspace;
  json["graph_reserve_bytes"] = request.fixed.graphs;
  json["vector_bytes"] = request.fixed.vectors;
  json["ring_slots"] = plan.ring_slots;
  json["ring_slot_bytes"] = plan.ring_slot_bytes;
  json["cold_bytes"] = plan.cold_bytes();
  json["lane_bytes"] = lane_json(plan.lane_bytes);
  json["step_bytes"] = lane_json(plan.pass_bytes);
  if (request.speeds.are_known()) json["lane_speeds"] = lane_speeds_json(request.speeds);
  put_prediction(json, plan);
  if (const std::optional<ResidencyPlan> more = with_next_gib(request, plan)) {
    Json& next = json["next_gib"] = {{"mode", offload_mode_name(more->mode)}, {"cold_bytes", more->cold_bytes()}};
    put_prediction(next, *more);
  }
  json["matrices"] = Json::array();
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    Json matrix = {{"name", request.matrices[index].name}, {"strip_bytes", request.matrices[index].strip_bytes}};
    for (const Lane lane : kLanes) matrix[std::string(lane_name(lane)) + "_strips"] = plan.matrices[index].of(lane);
    json["matrices"].push_back(matrix);
  }
  return json;
}

std::string prediction_text(const PlanRequest& request, const ResidencyPlan& plan) {
  const std::optional<double> rate = tokens_per_second(plan);
  std::string text =
      rate ? fmt::format("predicted {:.1f} tok/s without attention, bounded by {}\n", *rate, plan.bottleneck)
           : "no prediction: the speeds of the lanes in use are not known (--lane-speeds)\n";
  if (const std::optional<ResidencyPlan> more = with_next_gib(request, plan)) {
    text += fmt::format("one GiB more leaves {} cold", byte_size_text(more->cold_bytes()));
    if (const std::optional<double> next = tokens_per_second(*more); rate && next)
      text += fmt::format(": predicted {:.1f} tok/s ({:+.0f} %), bounded by {}", *next, 100.0 * (*next / *rate - 1.0),
                          more->bottleneck);
    text += "\n";
  }
  return text;
}

std::string table(const PlanRequest& request, const ResidencyPlan& plan) {
  std::string text =
      fmt::format("{:32} {:>10} {:>10} {:>10} {:>10}\n", "rows of", "resident", "ring", "zero-copy", "host");
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    text += fmt::format("{:32}", request.matrices[index].name);
    for (const Lane lane : kLanes) text += fmt::format(" {:>10}", 8 * plan.matrices[index].of(lane));
    text += "\n";
  }
  text += fmt::format("{:32}", "bytes");
  for (const Lane lane : kLanes) text += fmt::format(" {:>10}", byte_size_text(plan.of(lane)));
  text += "\n\n";
  text += fmt::format("mode {}; device memory {}: {} resident weights, {} kv cache, {} workspace, {} graphs, {} ring\n",
                      offload_mode_name(plan.mode), byte_size_text(plan.committed_bytes),
                      byte_size_text(plan.of(Lane::resident) + request.fixed.vectors), byte_size_text(request.fixed.kv),
                      byte_size_text(request.fixed.workspace), byte_size_text(request.fixed.graphs),
                      byte_size_text(plan.ring_slot_bytes * static_cast<std::uint64_t>(plan.ring_slots)));
  if (request.budget_bytes) text += fmt::format("budget {}; ", byte_size_text(*request.budget_bytes));
  text += fmt::format("smallest budget of this mode {} bytes\n", smallest_budget(request));
  text += fmt::format("a step moves {} through the ring, reads {} over the link, computes {} on host cores\n",
                      byte_size_text(plan.pass_of(Lane::ring)), byte_size_text(plan.pass_of(Lane::zero_copy)),
                      byte_size_text(plan.pass_of(Lane::host)));
  if (plan.wide_passes_stream)
    text += fmt::format("a pass of more than {} rows moves {} through the ring instead\n", HostLane::kMaxRows,
                        byte_size_text(plan.pass_of(Lane::ring) + plan.pass_of(Lane::host)));
  return text + prediction_text(request, plan);
}

std::uint64_t sweep_bytes(const MemoryLimit& limit, std::uint64_t whole) {
  if (limit.kind == MemoryLimit::Kind::bytes) return limit.bytes;
  return static_cast<std::uint64_t>(std::ceil(static_cast<double>(whole) * limit.percent / 100.0));
}

struct SweepStep {
  std::uint64_t budget_bytes = 0;
  std::optional<ResidencyPlan> plan;  // nothing: it does not fit
};

// Ten budgets from the first to the last, and what each would do.
std::vector<SweepStep> sweep_steps(PlanRequest request, const PlanOptions::Sweep& sweep) {
  constexpr std::uint64_t kSteps = 10;
  PlanRequest resident = request;
  resident.mode = OffloadMode::off;
  resident.forced_cold.clear();
  const std::uint64_t whole = smallest_budget(resident);
  const std::uint64_t first = sweep_bytes(sweep.first, whole);
  const std::uint64_t last = sweep_bytes(sweep.last, whole);
  std::vector<SweepStep> steps;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    SweepStep step{.budget_bytes = (first * (kSteps - 1 - i) + last * i) / (kSteps - 1), .plan = {}};
    request.budget_bytes = step.budget_bytes;
    try {
      step.plan = make_residency_plan(request);
    } catch (const BudgetError&) {
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

Json sweep_document(const std::vector<SweepStep>& steps) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["sweep"] = Json::array();
  for (const SweepStep& step : steps) {
    Json entry = {{"budget_bytes", step.budget_bytes}, {"fits", step.plan.has_value()}};
    if (step.plan) {
      entry["mode"] = offload_mode_name(step.plan->mode);
      entry["committed_bytes"] = step.plan->committed_bytes;
      entry["cold_bytes"] = step.plan->cold_bytes();
      entry["step_bytes"] = lane_json(step.plan->pass_bytes);
      put_prediction(entry, *step.plan);
    }
    json["sweep"].push_back(entry);
  }
  return json;
}

std::string sweep_table(const std::vector<SweepStep>& steps) {
  std::string text =
      fmt::format("{:>12} {:>9} {:>12} {:>12} {:>9}   bytes a step: {:>10} {:>10} {:>10} {:>10}\n", "budget", "mode",
                  "committed", "cold", "tok/s", "resident", "ring", "zero-copy", "host");
  for (const SweepStep& step : steps) {
    text += fmt::format("{:>12} ", byte_size_text(step.budget_bytes));
    if (!step.plan) {
      text += "does not fit\n";
      continue;
    }
    const std::optional<double> rate = tokens_per_second(*step.plan);
    text += fmt::format("{:>9} {:>12} {:>12} {:>9}   {:13}", offload_mode_name(step.plan->mode),
                        byte_size_text(step.plan->committed_bytes), byte_size_text(step.plan->cold_bytes()),
                        rate ? fmt::format("{:.1f}", *rate) : "", "");
    for (const Lane lane : kLanes) text += fmt::format(" {:>10}", byte_size_text(step.plan->pass_of(lane)));
    text += "\n";
  }
  return text;
}

}  // namespace

int plan(const PlanOptions& options, Output& output, Console& console) {
  SessionOptions session_options;
  session_options.model_path = options.model_path;
  session_options.force_pre_tokenizer = true;  // no text is read
  session_options.placement = options.placement;
  Session session(session_options);
  PlanRequest request;
  const ResidencyPlan result = session.plan_only(request);
  for (const std::string& warning : session.warnings()) console.warn(warning);
  if (options.sweep) {
    const std::vector<SweepStep> steps = sweep_steps(request, *options.sweep);
    output.write(options.json ? sweep_document(steps).dump() + "\n" : sweep_table(steps));
    return 0;
  }
  output.write(options.json ? document(request, result).dump() + "\n" : table(request, result));
  return 0;
}

}  // namespace genai::cli
