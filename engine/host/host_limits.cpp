#include "engine/host/host_limits.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

namespace genai {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path& file) {
  std::ifstream stream(file);
  if (!stream) return std::nullopt;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The number at the start of `text`; nothing for "max", a negative one or nonsense.
std::optional<std::uint64_t> leading_number(const std::string& text) {
  std::istringstream words(text);
  std::int64_t value = -1;
  if (!(words >> value) || value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

std::optional<std::uint64_t> number_in(const fs::path& file) {
  const std::optional<std::string> text = read_text(file);
  return text ? leading_number(*text) : std::nullopt;
}

// The value after `key` in lines of the form "key 123" or "key:  123 kB" (then in bytes).
std::optional<std::uint64_t> value_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string unit;
    std::uint64_t value = 0;
    if (!(words >> name >> value) || name != key) continue;
    words >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

bool lists(const std::string& comma_separated, const std::string& word) {
  std::istringstream words(comma_separated);
  for (std::string candidate; std::getline(words, candidate, ',');)
    if (candidate == word) return true;
  return false;
}

// Every directory that may hold a limit of `controller` for this process: its own cgroup and all above, in version 2
// and in version 1. Inside a container the path in /proc may be that of the host, while the container's own limit is
// at the root of the mount; so the way up matters, and a directory that does not exist is no error.
std::vector<fs::path> cgroup_directories(const fs::path& root, const std::string& controller) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::vector<fs::path> found{mount, mount / controller, mount / "unified"};
  std::istringstream lines(read_text(root / "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::vector<fs::path> bases;
    if (controllers.empty()) {
      bases = {mount, mount / "unified"};
    } else if (lists(controllers, controller)) {
      bases = {mount / controllers, mount / controller};
    }
    for (const fs::path& base : bases) {
      fs::path directory = base;
      found.push_back(directory);
      for (const fs::path& part : fs::path(line.substr(second + 1)).relative_path()) {
        if (part == "..") break;  // a cgroup outside of what is mounted here
        directory /= part;
        found.push_back(directory);
      }
    }
  }
  return found;
}

// Version 2: "quota period" in microseconds, the quota possibly "max".
std::optional<double> quota_version_2(const fs::path& directory) {
  std::istringstream words(read_text(directory / "cpu.max").value_or(""));
  double quota_us = 0;
  double period_us = 0;
  if (!(words >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

std::optional<double> quota_version_1(const fs::path& directory) {
  const auto quota_us = number_in(directory / "cpu.cfs_quota_us");
  const auto period_us = number_in(directory / "cpu.cfs_period_us");
  if (!quota_us || !period_us || *quota_us == 0 || *period_us == 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

void lower(HostMemoryLimits& limits, std::uint64_t limit_bytes, std::optional<std::uint64_t> used_bytes,
           std::uint64_t reclaimable_bytes) {
  limits.total_bytes = std::min(limits.total_bytes.value_or(limit_bytes), limit_bytes);
  if (!used_bytes) return;
  const std::uint64_t taken_bytes = *used_bytes - std::min(*used_bytes, reclaimable_bytes);
  const std::uint64_t left_bytes = limit_bytes - std::min(limit_bytes, taken_bytes);
  limits.free_bytes = std::min(limits.free_bytes.value_or(left_bytes), left_bytes);
}

int cores_in_affinity_mask() {
  // The kernel refuses a mask smaller than its own, so grow until it fits.
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<std::size_t>(capacity));
    if (mask == nullptr) break;
    const std::size_t mask_bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    const bool known = sched_getaffinity(0, mask_bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(mask_bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::optional<double> cgroup_quota_cores(const fs::path& root) {
  std::optional<double> smallest;
  for (const fs::path& directory : cgroup_directories(root, "cpu"))
    for (const std::optional<double> quota : {quota_version_2(directory), quota_version_1(directory)})
      if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  return smallest;
}

HostMemoryLimits host_memory_limits(const fs::path& root) {
  HostMemoryLimits limits;
  const std::string machine = read_text(root / "proc/meminfo").value_or("");
  limits.total_bytes = value_of(machine, "MemTotal:");
  limits.free_bytes = value_of(machine, "MemAvailable:");
  for (const fs::path& directory : cgroup_directories(root, "memory")) {
    // File pages that nobody used lately count as used in a cgroup, but give way at once.
    const std::string statistics = read_text(directory / "memory.stat").value_or("");
    if (const auto limit = number_in(directory / "memory.max"))
      lower(limits, *limit, number_in(directory / "memory.current"), value_of(statistics, "inactive_file").value_or(0));
    if (const auto limit = number_in(directory / "memory.limit_in_bytes"))
      lower(limits, *limit, number_in(directory / "memory.usage_in_bytes"),
            value_of(statistics, "total_inactive_file").value_or(0));
  }
  return limits;
}

ThreadCountChoice choose_thread_count(int cores_in_mask, int cores_of_machine, std::optional<double> quota_cores) {
  ThreadCountChoice choice{std::max(1, cores_in_mask), {}};
  choice.reason = cores_in_mask < cores_of_machine
                      ? fmt::format("the affinity mask allows {} of {} cores", choice.count, cores_of_machine)
                      : "all cores of this machine";
  if (!quota_cores) return choice;
  // A quota may be larger than any machine; the comparison is made before the conversion.
  if (*quota_cores < choice.count) {
    choice.count = std::max(1, static_cast<int>(std::floor(*quota_cores)));
    choice.reason = fmt::format("the cgroup quota is {:.3g} cores", *quota_cores);
  }
  return choice;
}

ThreadCountChoice default_thread_count(const fs::path& root) {
  return choose_thread_count(cores_in_affinity_mask(), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
                             cgroup_quota_cores(root));
}

int usable_core_count() { return default_thread_count().count; }

}  // namespace genai
