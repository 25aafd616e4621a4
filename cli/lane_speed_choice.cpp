#include "cli/lane_speed_choice.h"

#include <nlohmann/json.hpp>

#include "cli/lane_speed_store.h"
#include "cli/machine_facts.h"
#include "engine/residency/lane_probe.h"

namespace genai::cli {
namespace {

LaneSpeedKey key_of(const OpenedDevice& opened) {
  return {.device = opened.device->name(),
          .driver = opened.driver,
          .cpu = cpu_name(),
          .instruction_set = opened.instruction_set,
          .threads = opened.threads};
}

}  // namespace

Device* host_lane_device(OpenedDevice& opened) {
  if (opened.host_device != nullptr) return opened.host_device.get();
  return opened.backend == Backend::host ? opened.device.get() : nullptr;
}

LaneSpeeds choose_lane_speeds(const LaneSpeedSource& source, OpenedDevice& opened,
                              std::optional<std::uint64_t> budget_bytes, std::vector<std::string>& warnings) {
  using Kind = LaneSpeedSource::Kind;
  if (source.kind == Kind::none || source.kind == Kind::values) return source.values;
  if (source.kind == Kind::file) return read_lane_speeds_file(source.path);
  const std::optional<std::filesystem::path> file = lane_speed_file();
  const LaneSpeedKey key = key_of(opened);
  if (file && source.kind == Kind::automatic)
    if (const std::optional<LaneSpeeds> kept = LaneSpeedStore(*file).find(key, warnings)) return *kept;
  const LaneSpeeds measured =
      probe_lanes(*opened.device, host_lane_device(opened),
                  {.budget_bytes = budget_bytes, .host_available_bytes = opened.host_available_bytes});
  if (!measured.are_known() || measured.ring <= 0.0) {
    if (source.kind == Kind::probe)
      warnings.push_back("the speeds of the lanes stay unknown: there is too little memory to measure with");
    return {};
  }
  // As they will be read back, so that the next run plans the same.
  const LaneSpeeds speeds = read_lane_speeds(lane_speeds_json(measured), "the probe of lanes");
  if (file) LaneSpeedStore(*file).put(key, speeds, warnings);
  return speeds;
}

}  // namespace genai::cli
