#include "cli/lane_speed_values.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/flag_values.h"
#include "cli/suggestion.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastRate = 0.001;  // GB/s
constexpr double kMostRate = 1e6;
constexpr double kMostTime = 1e7;  // microseconds

struct Name {
  const char* text;
  double LaneSpeeds::*field;
  double unit;   // bytes per second, or seconds, of 1
  bool is_time;  // which may be 0
};
constexpr Name kNames[] = {{"resident", &LaneSpeeds::resident, 1e9, false},
                           {"ring", &LaneSpeeds::ring, 1e9, false},
                           {"zero_copy", &LaneSpeeds::zero_copy, 1e9, false},
                           {"host", &LaneSpeeds::host, 1e9, false},
                           {"ring_beside_host", &LaneSpeeds::ring_beside_host, 1e9, false},
                           {"host_beside_ring", &LaneSpeeds::host_beside_ring, 1e9, false},
                           {"host_8_rows", &LaneSpeeds::host_8_rows, 1e9, false},
                           {"exchange_us", &LaneSpeeds::exchange_seconds, 1e-6, true},
                           {"exchange_8_rows_us", &LaneSpeeds::exchange_8_rows_seconds, 1e-6, true},
                           {"matrix_us", &LaneSpeeds::matrix_seconds, 1e-6, true},
                           {"pass_us", &LaneSpeeds::pass_seconds, 1e-6, true}};

// Three decimals, so that what is written reads back as what it was.
double rounded(double number) { return std::round(number * 1000.0) / 1000.0; }

void set(LaneSpeeds& speeds, const std::string& name, double number, const std::string& origin) {
  std::vector<std::string> known;
  for (const Name& each : kNames) {
    known.emplace_back(each.text);
    if (name != each.text) continue;
    const bool makes_sense =
        each.is_time ? number >= 0.0 && number <= kMostTime : number >= kLeastRate && number <= kMostRate;
    if (!makes_sense)
      throw UsageError(fmt::format("{}: {}={} is no {}", origin, name, number, each.is_time ? "time" : "rate"),
                       each.is_time ? "give microseconds, such as 3; 0 is allowed"
                                    : "give GB/s, such as 55; leave out what is not known");
    speeds.*each.field = rounded(number) * each.unit;
    return;
  }
  const std::optional<std::string> meant = closest_name(name, known);
  throw UsageError(
      fmt::format("{}: '{}' is the speed of no lane", origin, name),
      meant ? fmt::format("did you mean {}?", *meant) : fmt::format("known are {}", fmt::join(known, ", ")));
}

LaneSpeeds complete(const LaneSpeeds& speeds, const std::string& origin) {
  if (!speeds.are_known())
    throw UsageError(fmt::format("{}: without resident= nothing can be predicted", origin),
                     "give the speed of device memory too: resident=4600,ring=55");
  return speeds;
}

LaneSpeeds parse_list(const RawValue& value) {
  LaneSpeeds speeds;
  std::string_view rest = value.text;
  while (!rest.empty()) {
    const std::string entry(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos)
      throw UsageError(fmt::format("{}: '{}' is no NAME=NUMBER", value.origin, entry), "such as ring=55");
    const RawValue number{entry.substr(equals + 1), value.origin + " " + entry.substr(0, equals), false};
    set(speeds, entry.substr(0, equals), parse_number(number), value.origin);
  }
  return complete(speeds, value.origin);
}

}  // namespace

LaneSpeedSource parse_lane_speeds(const RawValue& value) {
  using Kind = LaneSpeedSource::Kind;
  if (value.text == "auto") return {.kind = Kind::automatic};
  if (value.text == "probe") return {.kind = Kind::probe};
  if (value.text == "none") return {.kind = Kind::none};
  if (value.text.find('=') != std::string::npos) return {.kind = Kind::values, .values = parse_list(value)};
  if (value.text.empty())
    throw UsageError(fmt::format("{}: nothing is given", value.origin), "give auto, probe, none, speeds or a file");
  return {.kind = Kind::file, .path = value.text};
}

Json lane_speeds_json(const LaneSpeeds& speeds) {
  Json json = Json::object();
  for (const Name& name : kNames)
    if (const double number = rounded(speeds.*name.field / name.unit); number > 0.0) json[name.text] = number;
  return json;
}

LaneSpeeds read_lane_speeds(const Json& json, const std::string& origin) {
  if (!json.is_object()) throw UsageError(fmt::format("{}: this is no JSON object of speeds", origin));
  LaneSpeeds speeds;
  for (const auto& [name, number] : json.items()) {
    if (!number.is_number())
      throw UsageError(fmt::format("{}: {} is {}: expected a number", origin, name, number.dump()));
    set(speeds, name, number.get<double>(), origin);
  }
  return complete(speeds, origin);
}

LaneSpeeds read_lane_speeds_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UsageError(fmt::format("--lane-speeds {}: cannot read this file", path),
                     "name one, or give auto, probe, none or NAME=NUMBER,...");
  return read_lane_speeds(Json::parse(file, nullptr, false), "--lane-speeds " + path);
}

}  // namespace genai::cli
