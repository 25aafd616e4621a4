// The probe and the benchmark of lanes on the host device: numbers are there where lanes are, memory is given back, and
// bits that differ are seen. How fast a lane is, no test says.
#include <cmath>

#include "engine/host/host_device.h"
#include "engine/residency/lane_bench.h"
#include "engine/residency/lane_probe.h"
#include "tests/catch.h"
#include "tests/faulty_device.h"

namespace genai {
namespace {

using test::FaultyDevice;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::size_t kGranule = std::size_t{64} << 10;

HostDeviceOptions small_device() {
  HostDeviceOptions options;
  options.granule_bytes = kGranule;
  options.capacity_bytes = 64 * kMiB;
  options.threads = 1;
  return options;
}

ProbeLimits small_limits() {
  ProbeLimits limits;
  limits.budget_bytes = 32 * kMiB;
  limits.most_bytes = 4 * kMiB;
  limits.most_cold_bytes = 8 * kMiB;
  limits.least_bytes = 2 * kMiB;
  return limits;
}

std::uint64_t free_bytes(Device& device) { return device.memory().info().free_bytes.value(); }

void check_rate(double bytes_per_second) {
  CHECK(bytes_per_second > 1e6);
  CHECK(bytes_per_second < 1e13);
}

}  // namespace

TEST_CASE("the probe measures every lane of the host device and gives all memory back", "[lane_speeds]") {
  HostDevice device(small_device());
  const std::uint64_t before = free_bytes(device);
  const LaneSpeeds speeds = probe_lanes(device, &device, small_limits());
  CHECK(speeds.are_known());
  for (const double rate : {speeds.resident, speeds.ring, speeds.zero_copy, speeds.host, speeds.ring_beside_host,
                            speeds.host_beside_ring, speeds.host_8_rows})
    check_rate(rate);
  for (const double seconds : {speeds.exchange_seconds, speeds.matrix_seconds, speeds.pass_seconds}) {
    CHECK(seconds >= 0.0);
    CHECK(seconds < 1.0);
  }
  CHECK(free_bytes(device) == before);
}

TEST_CASE("the probe hands vectors over where the host is another device", "[lane_speeds]") {
  HostDevice device(small_device());
  HostDevice host(small_device());
  const LaneSpeeds speeds = probe_lanes(device, &host, small_limits());
  check_rate(speeds.host);
  CHECK(speeds.exchange_seconds > 0.0);
  CHECK(speeds.exchange_8_rows_seconds >= speeds.exchange_seconds);
  CHECK(free_bytes(device) == 64 * kMiB);
  CHECK(free_bytes(host) == 64 * kMiB);
}

TEST_CASE("without a host device the probe leaves the host's speeds unknown", "[lane_speeds]") {
  HostDevice device(small_device());
  const LaneSpeeds speeds = probe_lanes(device, nullptr, small_limits());
  for (const double rate : {speeds.resident, speeds.ring, speeds.zero_copy}) check_rate(rate);
  CHECK(speeds.host == 0.0);
  CHECK(speeds.ring_beside_host == 0.0);
  CHECK(speeds.host_beside_ring == 0.0);
  CHECK(speeds.host_8_rows == 0.0);
  CHECK(speeds.exchange_seconds == 0.0);
  CHECK(speeds.exchange_8_rows_seconds == 0.0);
}

TEST_CASE("an exchange costs what a small product takes beside its bytes, or one of a strip", "[lane_speeds]") {
  HostTimes times{.bytes = 900.0, .part_bytes = 100.0, .seconds = 12.0, .part_seconds = 4.0, .strip_seconds = 1.0};
  CHECK(host_cost(times).bytes_per_second == 100.0);
  CHECK(host_cost(times).exchange_seconds == 3.0);  // some core is late at each
  times.seconds = 9.25;
  times.part_seconds = 1.25;
  CHECK(host_cost(times).bytes_per_second == 100.0);
  CHECK(host_cost(times).exchange_seconds == 1.0);
  times.part_seconds = 10.0;  // other programs were running
  CHECK(host_cost(times).bytes_per_second == Approx(800.0 / (9.25 / 8.0)));
}

TEST_CASE("runs that are held up count in a mean, for twice the median at most", "[lane_speeds]") {
  CHECK(mean_of_runs({3.0}) == 3.0);
  CHECK(mean_of_runs({1.0, 1.0, 1.0, 1.5}) == 1.125);
  CHECK(mean_of_runs({1.0, 100.0, 1.0, 1.0}) == 1.25);
}

TEST_CASE("a budget that leaves too little memory is not probed", "[lane_speeds]") {
  HostDevice device(small_device());
  ProbeLimits limits = small_limits();
  limits.budget_bytes = 4 * limits.least_bytes - 1;
  CHECK(probe_lanes(device, &device, limits) == LaneSpeeds{});
  limits = small_limits();
  limits.host_available_bytes = 8 * limits.least_bytes - 1;
  CHECK(probe_lanes(device, &device, limits) == LaneSpeeds{});
}

TEST_CASE("the probe says unknown where memory is refused, and keeps none of it", "[lane_speeds]") {
  int unknown = 0, without_host_memory = 0;
  // The granules of the weights in device memory, of the vectors, and of the weights in host memory.
  for (const std::uint64_t granule : {0u, 10u, 60u, 70u, 100u}) {
    FaultyDevice device(small_device());
    device.memory().fail(test::FaultyMemory::Call::create, granule);
    try {
      const LaneSpeeds speeds = probe_lanes(device, &device, small_limits());
      unknown += speeds == LaneSpeeds{} ? 1 : 0;
      without_host_memory += speeds.are_known() && speeds.ring == 0.0 ? 1 : 0;
    } catch (const DeviceError&) {  // of the vectors
    }
    CHECK(device.memory().live_granules() == 0);
    CHECK(device.memory().reserved_ranges() == 0);
  }
  CHECK(unknown >= 2);
  CHECK(without_host_memory >= 1);
}

TEST_CASE("every lane of the benchmark gives the same bits, until a byte of the cold matrix changes", "[lane_speeds]") {
  HostDevice device(small_device());
  {
    ResidencyArena arena(device.memory());
    LaneBench bench(device, &device, arena, 4 * kMiB);
    const LaneBenchResult result = bench.measure();
    CHECK(result.bits_equal);
    CHECK(result.bytes <= 4 * kMiB);
    CHECK(result.bytes > 4 * kMiB - static_cast<std::uint64_t>(kWorkloadStripBytes));
    for (const auto& rate : result.bytes_per_second) {
      REQUIRE(rate);
      check_rate(*rate);
    }
    std::byte* const byte = device.memory().host_view(bench.cold_matrix().byte_offset(1'000'000));
    REQUIRE(byte != nullptr);
    *byte ^= std::byte{0x55};
    CHECK_FALSE(bench.measure().bits_equal);
    *byte ^= std::byte{0x55};
    CHECK(bench.measure().bits_equal);
  }
  CHECK(free_bytes(device) == 64 * kMiB);
}

TEST_CASE("the benchmark has no host lane without a host device, and refuses a matrix beyond the budget",
          "[lane_speeds]") {
  HostDevice device(small_device());
  ResidencyArena arena(device.memory(), 8 * kMiB);
  const LaneBenchResult result = LaneBench(device, nullptr, arena, 2 * kMiB).measure();
  CHECK_FALSE(result.bytes_per_second[static_cast<std::size_t>(Lane::host)]);
  CHECK(result.bytes_per_second[static_cast<std::size_t>(Lane::ring)]);
  CHECK_THROWS_AS(LaneBench(device, nullptr, arena, 16 * kMiB), BudgetError);
  CHECK(arena.committed_device_bytes() == 0);
  CHECK(arena.committed_host_bytes() == 0);
}

}  // namespace genai
