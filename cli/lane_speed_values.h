// lane_speed_values.h - speeds of lanes as people and files write them: rates in GB/s (10^9 bytes), times in
// microseconds, by name. What each means: engine/residency/lane_probe.h, NOTE [Lane speeds].
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/command_line.h"
#include "engine/residency/residency_plan.h"

namespace genai::cli {

// Where speeds come from.
struct LaneSpeedSource {
  enum class Kind {
    automatic,  // what was measured here before, else a probe; only where something depends on them
    probe,      // measured now
    none,       // unknown
    values,     // given
    file,       // given, in a file of what lane_speeds_json writes
  };
  Kind kind = Kind::automatic;
  LaneSpeeds values{};
  std::string path{};
};

// --lane-speeds: auto, probe, none, NAME=NUMBER,..., or a file. Throws UsageError.
LaneSpeedSource parse_lane_speeds(const RawValue& value);

// An object with the numbers that are known, to three decimals.
nlohmann::ordered_json lane_speeds_json(const LaneSpeeds& speeds);
// The same back. Throws UsageError, which begins with `origin`, for a name or a number without sense.
LaneSpeeds read_lane_speeds(const nlohmann::ordered_json& json, const std::string& origin);
LaneSpeeds read_lane_speeds_file(const std::string& path);

}  // namespace genai::cli
