// lane_speed_choice.h - which speeds of lanes the planner gets: given ones, those that a probe found here before, or
// those of a probe now, which are kept for the next time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/lane_speed_values.h"
#include "engine/open_device.h"

namespace genai::cli {

// The device that computes rows that lie in host memory; null where there is none.
Device* host_lane_device(OpenedDevice& opened);

// `budget_bytes`: of device memory, also for the probe. REQUIRES: nothing is on the device yet. Throws UsageError for a
// file of speeds that makes no sense, DeviceError where the device fails. All are 0 where they stay unknown.
LaneSpeeds choose_lane_speeds(const LaneSpeedSource& source, OpenedDevice& opened,
                              std::optional<std::uint64_t> budget_bytes, std::vector<std::string>& warnings);

}  // namespace genai::cli
