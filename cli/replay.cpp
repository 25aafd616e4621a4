#include "cli/replay.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/lane_speed_values.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostInteger = std::numeric_limits<std::int32_t>::max();
constexpr std::pair<const char*, double SamplerSettings::*> kNumbers[] = {
    {"temperature", &SamplerSettings::temperature},
    {"top_p", &SamplerSettings::top_p},
    {"min_p", &SamplerSettings::min_p},
    {"typical_p", &SamplerSettings::typical_p},
    {"repeat_penalty", &SamplerSettings::repeat_penalty},
    {"presence_penalty", &SamplerSettings::presence_penalty},
    {"frequency_penalty", &SamplerSettings::frequency_penalty}};
constexpr OffloadMode kModes[] = {OffloadMode::automatic, OffloadMode::off,  OffloadMode::stream,
                                  OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split};

constexpr std::string_view kHostName = "cpu";
constexpr std::string_view kCudaPrefix = "cuda:";

std::string device_name(const DeviceRequest& device) {
  return device.backend == Backend::cuda ? fmt::format("{}{}", kCudaPrefix, device.cuda_ordinal)
                                         : std::string(kHostName);
}

std::int32_t integer(const Json& json, const char* name, std::int64_t lowest, std::int64_t highest) {
  const Json& value = json.at(name);
  const std::int64_t number = value.get<std::int64_t>();
  if (!value.is_number_integer() || number < lowest || number > highest)
    throw UsageError(
        fmt::format("{} is {}: expected a whole number from {} to {}", name, value.dump(), lowest, highest));
  return static_cast<std::int32_t>(number);
}

DeviceRequest read_device(const std::string& name) {
  DeviceRequest device;
  device.backend = Backend::host;
  if (name == kHostName) return device;
  if (!name.starts_with(kCudaPrefix)) throw UsageError(fmt::format("'{}' is no device", name));
  device.backend = Backend::cuda;
  device.cuda_ordinal = std::stoi(name.substr(kCudaPrefix.size()));
  return device;
}

OffloadMode read_mode(const std::string& name) {
  for (const OffloadMode mode : kModes)
    if (offload_mode_name(mode) == name) return mode;
  throw UsageError(fmt::format("'{}' is no way to offload weights", name));
}

PlacementOptions read_placement(const Json& report, const Json& replay) {
  PlacementOptions placement;
  placement.context = integer(report, "context_tokens", 1, kMostInteger);
  placement.pass_rows = integer(report, "ubatch_tokens", 1, kMostInteger);
  placement.parallel = integer(report, "batch", 1, PlacementOptions::kMostParallel);
  placement.device = read_device(replay.at("device"));
  placement.device.threads = integer(report.at("host"), "threads", 1, kMostInteger);
  if (report.contains("budget_bytes"))
    placement.budget = {.kind = MemoryLimit::Kind::bytes, .bytes = report.at("budget_bytes").get<std::uint64_t>()};
  placement.offload = read_mode(replay.at("weight_offload"));
  if (replay.value("allocator", "arena") == "plain") placement.allocator = Allocator::plain;
  placement.cold = replay.at("cold").get<std::vector<std::string>>();
  placement.lane_speeds = {.kind = LaneSpeedSource::Kind::none};  // not measured again: the plan is to be the same
  if (replay.contains("lane_speeds"))
    placement.lane_speeds = {.kind = LaneSpeedSource::Kind::values,
                             .values = read_lane_speeds(replay.at("lane_speeds"), "lane_speeds")};
  placement.cache_type = replay.at("cache_type") == "f32" ? CacheType::f32 : CacheType::f16;
  return placement;
}

Replay::Row read_row(const Json& json) {
  Replay::Row row;
  row.prompt = json.at("prompt_ids").get<std::vector<std::int32_t>>();
  row.settings.max_tokens = integer(json, "max_tokens", -1, kMostInteger);
  row.settings.seed = json.at("seed").get<std::uint64_t>();
  row.settings.stops = json.at("stop").get<std::vector<std::string>>();
  for (const auto& [name, setting] : kNumbers) row.settings.sampler.*setting = json.at(name).get<double>();
  row.settings.sampler.top_k = integer(json, "top_k", 0, kMostInteger);
  row.settings.sampler.repeat_last_n = integer(json, "repeat_last_n", -1, kMostInteger);
  row.settings.sampler.validate();
  return row;
}

Json row_json(const Replay::Row& row) {
  Json json = {{"prompt_ids", row.prompt},
               {"max_tokens", row.settings.max_tokens},
               {"seed", row.settings.seed.value()},
               {"stop", row.settings.stops}};
  for (const auto& [name, setting] : kNumbers) json[name] = row.settings.sampler.*setting;
  json["top_k"] = row.settings.sampler.top_k;
  json["repeat_last_n"] = row.settings.sampler.repeat_last_n;
  return json;
}

}  // namespace

Replay make_replay(const RunOptions& options, const Session& session, const std::vector<TextRequest>& requests) {
  Replay replay;
  replay.placement = options.placement;
  replay.placement.device.backend = session.device().backend;
  replay.placement.lane_speeds = {.kind = LaneSpeedSource::Kind::values, .values = session.lane_speeds()};
  replay.graph = options.graph;
  replay.ignore_end = options.ignore_end;
  replay.show_special = options.show_special;
  for (const TextRequest& request : requests)
    replay.rows.push_back({.prompt = request.generation.prompt,
                           .settings = {.max_tokens = request.generation.max_tokens,
                                        .seed = request.generation.sampler.seed,
                                        .sampler = request.generation.sampler,
                                        .stops = request.stops}});
  return replay;
}

Json replay_json(const Replay& replay) {
  Json json = {{"device", device_name(replay.placement.device)},
               {"weight_offload", offload_mode_name(replay.placement.offload)},
               {"allocator", allocator_name(replay.placement.allocator)},
               {"cold", replay.placement.cold},
               {"cache_type", replay.placement.cache_type == CacheType::f32 ? "f32" : "f16"},
               {"graph", replay.graph},
               {"ignore_eos", replay.ignore_end},
               {"special", replay.show_special}};
  const LaneSpeeds& speeds = replay.placement.lane_speeds.values;
  if (speeds.are_known()) json["lane_speeds"] = lane_speeds_json(speeds);
  json["rows"] = Json::array();
  for (const Replay::Row& row : replay.rows) json["rows"].push_back(row_json(row));
  return json;
}

Replay read_replay(const Json& report, const std::string& path) {
  if (!report.is_object() || !report.contains("replay"))
    throw UsageError(fmt::format("{}: it does not say what was asked for", path),
                     "name a file that genai run --report-file has written; the report on stderr is shorter");
  try {
    const Json& json = report.at("replay");
    Replay replay;
    replay.placement = read_placement(report, json);
    replay.graph = json.at("graph").get<bool>();
    replay.ignore_end = json.at("ignore_eos").get<bool>();
    replay.show_special = json.at("special").get<bool>();
    for (const Json& row : json.at("rows")) replay.rows.push_back(read_row(row));
    if (replay.rows.empty()) throw UsageError("there is no text in it");
    return replay;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path, error.what()), "the report has been changed or damaged");
  } catch (const std::exception& error) {  // of the JSON library, or of a number that is none
    throw UsageError(fmt::format("{}: {}", path, error.what()), "the report has been changed or damaged");
  }
}

}  // namespace genai::cli
