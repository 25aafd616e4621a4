#include "cli/lane_speed_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/lane_speed_values.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 3;
constexpr const char* kVersionName = "lane_speeds_version";
constexpr const char* kEntries = "entries";

Json key_json(const LaneSpeedKey& key) {
  return {{"device", key.device},
          {"driver", key.driver},
          {"cpu", key.cpu},
          {"isa", key.instruction_set},
          {"threads", key.threads}};
}

// Whoever has written it, in whatever order.
bool has_key(const Json& entry, const LaneSpeedKey& key) {
  return entry.is_object() && entry.contains("key") && nlohmann::json(entry.at("key")) == nlohmann::json(key_json(key));
}

// Null where there is no file, or none that can be used.
Json read_document(const std::filesystem::path& path, std::vector<std::string>* warnings) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  Json json = Json::parse(file, nullptr, false);
  const bool is_ours = json.is_object() && json.contains(kEntries) && json[kEntries].is_array() &&
                       json.value(kVersionName, Json()) == kVersion;
  if (is_ours) return json;
  if (warnings != nullptr)
    warnings->push_back(fmt::format("{} is damaged or of another version: it is written anew", path.string()));
  return {};
}

// Empty, or why not.
std::string write_whole(const std::filesystem::path& path, const std::string& text) {
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  if (failure) return failure.message();
  std::string temporary = path.string() + ".XXXXXX";
  const int descriptor = ::mkstemp(temporary.data());
  if (descriptor < 0) return std::strerror(errno);
  const ssize_t written = ::write(descriptor, text.data(), text.size());
  const std::string reason = written < 0 ? std::strerror(errno) : "the disk is full";
  ::close(descriptor);
  if (written == static_cast<ssize_t>(text.size())) {
    std::filesystem::rename(temporary, path, failure);
    if (!failure) return {};
  }
  ::unlink(temporary.c_str());
  return failure ? failure.message() : reason;
}

}  // namespace

std::optional<LaneSpeeds> LaneSpeedStore::find(const LaneSpeedKey& key, std::vector<std::string>& warnings) const {
  const Json document = read_document(file_, &warnings);
  if (document.is_null()) return std::nullopt;
  for (const Json& entry : document[kEntries]) {
    if (!has_key(entry, key)) continue;
    try {
      return read_lane_speeds(entry.value("speeds", Json()), file_.string());
    } catch (const UsageError& error) {
      warnings.push_back(fmt::format("{}: it is measured anew", error.what()));
      return std::nullopt;
    }
  }
  return std::nullopt;
}

void LaneSpeedStore::put(const LaneSpeedKey& key, const LaneSpeeds& speeds, std::vector<std::string>& warnings) const {
  Json document = read_document(file_, nullptr);
  if (document.is_null()) document = {{kVersionName, kVersion}, {kEntries, Json::array()}};
  Json entries = Json::array();
  for (const Json& entry : document[kEntries])
    if (!has_key(entry, key)) entries.push_back(entry);
  entries.push_back({{"key", key_json(key)}, {"speeds", lane_speeds_json(speeds)}});
  document[kEntries] = std::move(entries);
  // Names of devices are bytes of any kind; JSON is not.
  const std::string text = document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (const std::string reason = write_whole(file_, text); !reason.empty())
    warnings.push_back(fmt::format("the speeds of the lanes cannot be kept in {} ({}): they are measured each time",
                                   file_.string(), reason));
}

std::optional<std::filesystem::path> lane_speed_file() {
  const auto folder = [](const char* variable) -> std::optional<std::filesystem::path> {
    const char* const value = std::getenv(variable);
    if (value == nullptr || !std::filesystem::path(value).is_absolute()) return std::nullopt;
    return value;
  };
  constexpr const char* kFile = "genai/lane-speeds.json";
  if (const auto cache = folder("XDG_CACHE_HOME")) return *cache / kFile;
  if (const auto home = folder("HOME")) return *home / ".cache" / kFile;
  return std::nullopt;
}

}  // namespace genai::cli
