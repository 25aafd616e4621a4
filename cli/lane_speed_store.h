// lane_speed_store.h - what probes of lanes found, kept from run to run in one small JSON file: an entry for each
// machine, device and number of threads. It can be deleted at any time. A file that is damaged, or of another version,
// counts as empty and is written anew; one that cannot be written is a warning and no more.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/residency/residency_plan.h"

namespace genai::cli {

// What speeds depend on.
struct LaneSpeedKey {
  std::string device;
  std::string driver;
  std::string cpu;
  std::string instruction_set;
  int threads = 0;
};

class LaneSpeedStore {
 public:
  explicit LaneSpeedStore(std::filesystem::path file) : file_(std::move(file)) {}

  // Nothing where there is no such entry. What is wrong with the file is added to `warnings`.
  std::optional<LaneSpeeds> find(const LaneSpeedKey& key, std::vector<std::string>& warnings) const;
  // Adds or replaces an entry; others stay. The file is replaced as a whole.
  void put(const LaneSpeedKey& key, const LaneSpeeds& speeds, std::vector<std::string>& warnings) const;

 private:
  const std::filesystem::path file_;
};

// $XDG_CACHE_HOME/genai/lane-speeds.json, else ~/.cache/genai/lane-speeds.json; nothing where neither variable is an
// absolute path.
std::optional<std::filesystem::path> lane_speed_file();

}  // namespace genai::cli
