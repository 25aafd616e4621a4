// What the process may use, read from made-up copies of /proc and /sys.
#include "engine/host/host_limits.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/catch.h"

using namespace genai;

namespace {

// A folder that plays "/" and goes away again.
class FakeRoot {
 public:
  FakeRoot() {
    char name[] = "/tmp/genai_host_limits_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

}  // namespace

TEST_CASE("no cgroup files mean no quota", "[host_limits]") {
  const FakeRoot root;
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
  root.file("proc/self/cgroup", "garbage\n0::/\n::\n:");
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
}

TEST_CASE("cgroup version 2 quota is read", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/self/cgroup", "0::/user.slice/run.scope\n");
  root.file("sys/fs/cgroup/user.slice/run.scope/cpu.max", "200000 100000\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 2.0);
  root.file("sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
  root.file("sys/fs/cgroup/user.slice/run.scope/cpu.max", "nonsense\n");
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
  root.file("sys/fs/cgroup/user.slice/run.scope/cpu.max", "100000 0\n");
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
}

TEST_CASE("the tightest quota on the way to the root counts", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/self/cgroup", "0::/a/b/c\n");
  root.file("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  root.file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root.file("sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  root.file("sys/fs/cgroup/other/cpu.max", "10000 100000\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 1.5);
}

TEST_CASE("a quota at the root of a container's mount counts", "[host_limits]") {
  const FakeRoot root;
  root.file("sys/fs/cgroup/cpu.max", "250000 100000\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 2.5);
  root.file("proc/self/cgroup", "0::/../../outside\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 2.5);
}

TEST_CASE("cgroup version 1 quota is read", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n");
  root.file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "50000\n");
  root.file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 0.5);
  root.file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  REQUIRE_FALSE(cgroup_quota_cores(root.path()).has_value());
  // The path of the host, seen from inside a container: only the mount's root has the files.
  root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  root.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  REQUIRE(cgroup_quota_cores(root.path()) == 3.0);
}

TEST_CASE("thread count is the smaller of mask and quota, and says which", "[host_limits]") {
  REQUIRE(choose_thread_count(8, 8, std::nullopt).count == 8);
  REQUIRE(choose_thread_count(8, 8, std::nullopt).reason == "all cores of this machine");
  REQUIRE(choose_thread_count(2, 8, std::nullopt).count == 2);
  REQUIRE(choose_thread_count(2, 8, std::nullopt).reason == "the affinity mask allows 2 of 8 cores");
  REQUIRE(choose_thread_count(8, 8, 2.5).count == 2);
  REQUIRE(choose_thread_count(8, 8, 2.5).reason == "the cgroup quota is 2.5 cores");
  REQUIRE(choose_thread_count(2, 8, 4.0).count == 2);
  REQUIRE(choose_thread_count(2, 8, 4.0).reason == "the affinity mask allows 2 of 8 cores");
  REQUIRE(choose_thread_count(8, 8, 0.5).count == 1);
  REQUIRE(choose_thread_count(8, 8, 0.5).reason == "the cgroup quota is 0.5 cores");
  REQUIRE(choose_thread_count(8, 8, 1e30).count == 8);
  REQUIRE(choose_thread_count(0, 8, std::nullopt).count == 1);
}

TEST_CASE("default thread count follows the affinity mask", "[host_limits]") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  REQUIRE(default_thread_count().count >= 1);
  REQUIRE(default_thread_count().count <= CPU_COUNT(&before));
  REQUIRE_FALSE(default_thread_count().reason.empty());
  int lowest = 0;
  while (!CPU_ISSET(lowest, &before)) ++lowest;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(lowest, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const int restricted = default_thread_count().count;
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  REQUIRE(restricted == 1);
}

TEST_CASE("default thread count keeps to the quota of the cgroup, and says so", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/self/cgroup", "0::/box\n");
  root.file("sys/fs/cgroup/box/cpu.max", "50000 100000\n");  // below any mask
  REQUIRE(default_thread_count(root.path()).count == 1);
  REQUIRE(default_thread_count(root.path()).reason == "the cgroup quota is 0.5 cores");
  root.file("sys/fs/cgroup/box/cpu.max", "200000 100000\n");
  REQUIRE(default_thread_count(root.path()).count <= 2);
  root.file("sys/fs/cgroup/box/cpu.max", "max 100000\n");
  REQUIRE(default_thread_count(root.path()).count == default_thread_count().count);
}

TEST_CASE("host memory is what /proc says", "[host_limits]") {
  const FakeRoot root;
  REQUIRE_FALSE(host_memory_limits(root.path()).total_bytes.has_value());
  REQUIRE_FALSE(host_memory_limits(root.path()).free_bytes.has_value());
  root.file("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1024 kB\nMemAvailable:    8388608 kB\n");
  REQUIRE(host_memory_limits(root.path()).total_bytes == 16 * kGiB);
  REQUIRE(host_memory_limits(root.path()).free_bytes == 8 * kGiB);
}

TEST_CASE("a cgroup memory limit lowers what is there", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
  root.file("proc/self/cgroup", "0::/box\n");
  root.file("sys/fs/cgroup/box/memory.max", "max\n");
  REQUIRE(host_memory_limits(root.path()).total_bytes == 16 * kGiB);
  root.file("sys/fs/cgroup/box/memory.max", std::to_string(4 * kGiB));
  root.file("sys/fs/cgroup/box/memory.current", std::to_string(3 * kGiB));
  root.file("sys/fs/cgroup/box/memory.stat", "anon 5\ninactive_file " + std::to_string(kGiB) + "\n");
  REQUIRE(host_memory_limits(root.path()).total_bytes == 4 * kGiB);
  REQUIRE(host_memory_limits(root.path()).free_bytes == 2 * kGiB);
  root.file("sys/fs/cgroup/box/memory.current", std::to_string(6 * kGiB));
  REQUIRE(host_memory_limits(root.path()).free_bytes == 0U);
}

TEST_CASE("an unlimited cgroup of version 1 changes nothing", "[host_limits]") {
  const FakeRoot root;
  root.file("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
  root.file("proc/self/cgroup", "5:memory:/box\n");
  root.file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  root.file("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000000\n");
  REQUIRE(host_memory_limits(root.path()).total_bytes == 16 * kGiB);
  REQUIRE(host_memory_limits(root.path()).free_bytes == 8 * kGiB);
  root.file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(kGiB));
  root.file("sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(kGiB / 2));
  REQUIRE(host_memory_limits(root.path()).total_bytes == kGiB);
  REQUIRE(host_memory_limits(root.path()).free_bytes == kGiB / 2);
}
