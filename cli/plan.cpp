#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/byte_size.h"
#include "cli/session.h"
#include "cli/version.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Lane kLanes[] = {Lane::resident, Lane::ring, Lane::zero_copy, Lane::host};

Json document(const PlanRequest& request, const ResidencyPlan& plan) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["mode"] = offload_mode_name(plan.mode);
  if (request.budget_bytes) json["budget_bytes"] = *request.budget_bytes;
  json["committed_bytes"] = plan.committed_bytes;
  json["smallest_budget_bytes"] = smallest_budget(request);
  json["kv_bytes"] = request.fixed.kv;
  json["workspace_bytes"] = request.fixed.workspace;
  json["vector_bytes"] = request.fixed.vectors;
  json["ring_slots"] = plan.ring_slots;
  json["ring_slot_bytes"] = plan.ring_slot_bytes;
  json["cold_bytes"] = plan.cold_bytes();
  for (const Lane lane : kLanes) {
    json["lane_bytes"][std::string(lane_name(lane))] = plan.of(lane);
    json["step_bytes"][std::string(lane_name(lane))] = plan.pass_bytes[static_cast<int>(lane)];
  }
  json["matrices"] = Json::array();
  for (std::size_t index = 0; index < request.matrices.size(); ++index) {
    Json matrix = {{"name", request.matrices[index].name}, {"strip_bytes", request.matrices[index].strip_bytes}};
    for (const Lane lane : kLanes) matrix[std::string(lane_name(lane)) + "_strips"] = plan.matrices[index].of(lane);
    json["matrices"].push_back(matrix);
  }
  return json;
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
  text += fmt::format("mode {}; device memory {}: {} resident weights, {} kv cache, {} workspace, {} ring\n",
                      offload_mode_name(plan.mode), byte_size_text(plan.committed_bytes),
                      byte_size_text(plan.of(Lane::resident) + request.fixed.vectors), byte_size_text(request.fixed.kv),
                      byte_size_text(request.fixed.workspace),
                      byte_size_text(plan.ring_slot_bytes * static_cast<std::uint64_t>(plan.ring_slots)));
  if (request.budget_bytes) text += fmt::format("budget {}; ", byte_size_text(*request.budget_bytes));
  text += fmt::format("smallest budget of this mode {} bytes\n", smallest_budget(request));
  text += fmt::format("a step moves {} through the ring, reads {} over the link, computes {} on host cores\n",
                      byte_size_text(plan.pass_bytes[static_cast<int>(Lane::ring)]),
                      byte_size_text(plan.pass_bytes[static_cast<int>(Lane::zero_copy)]),
                      byte_size_text(plan.pass_bytes[static_cast<int>(Lane::host)]));
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
  output.write(options.json ? document(request, result).dump() + "\n" : table(request, result));
  return 0;
}

}  // namespace genai::cli
