// host_limits.h - what this process may use of the machine: cores (affinity mask, cgroup quota) and memory (available,
// cgroup limit). Values are read when asked for. Wherever a `root` is taken, it stands for "/" and lets tests show
// another machine's /proc and /sys.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace genai {

struct ThreadCountChoice {
  int count;
  std::string reason;  // for the report, for example "the cgroup quota is 2.5 cores"
};

// One thread for each core that this process may keep busy: more would wait for each other at every barrier.
ThreadCountChoice default_thread_count(const std::filesystem::path& root = "/");
// The rule by itself: the affinity mask or the quota rounded down, whichever is smaller, and at least 1.
ThreadCountChoice choose_thread_count(int cores_in_mask, int cores_of_machine, std::optional<double> quota_cores);
int usable_core_count();

// The smallest quota of this process's cgroup and of those above it (version 1 or 2), in cores. Nothing: no limit.
std::optional<double> cgroup_quota_cores(const std::filesystem::path& root = "/");

struct HostMemoryLimits {
  std::optional<std::uint64_t> total_bytes;
  std::optional<std::uint64_t> free_bytes;  // without swapping
};

// MemTotal and MemAvailable, lowered by the limits of the cgroups. Nothing where /proc does not say.
HostMemoryLimits host_memory_limits(const std::filesystem::path& root = "/");

}  // namespace genai
