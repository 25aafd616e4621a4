#include "engine/residency/residency_arena.h"

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/host/host_device.h"
#include "tests/catch.h"
#include "tests/faulty_memory.h"

namespace genai {
namespace {

constexpr std::size_t kGranule = std::size_t{64} << 10;

HostDeviceOptions device_options() {
  HostDeviceOptions options;
  options.granule_bytes = kGranule;
  options.threads = 1;
  return options;
}

}  // namespace

TEST_CASE("committing backs exactly the granules that the bytes touch", "[arena]") {
  HostDevice device(device_options());
  ResidencyArena arena(device.memory());
  MemoryRange range = arena.reserve(MemoryKind::weights, 10 * kGranule);
  CHECK(range.committed_bytes() == 0);
  CHECK(range.commit(0, 1) == 1);
  CHECK(range.commit(0, kGranule) == 0);
  CHECK(range.commit(kGranule - 1, 2) == 1);
  CHECK(range.commit(5 * kGranule, 2 * kGranule) == 2);
  CHECK(range.commit(0, 10 * kGranule) == 6);
  CHECK(range.committed_bytes() == 10 * kGranule);
  CHECK(arena.committed_bytes(MemoryKind::weights) == 10 * kGranule);
  CHECK_THROWS_AS(range.commit(10 * kGranule, 1), Error);
  CHECK_THROWS_AS(range.commit(1, 10 * kGranule), Error);
}

TEST_CASE("committed memory is usable, zero at first, and its address stays while more is committed", "[arena]") {
  HostDevice device(device_options());
  ResidencyArena arena(device.memory());
  MemoryRange range = arena.reserve(MemoryKind::kv, 4 * kGranule);
  range.commit(0, kGranule);
  std::byte* view = device.memory().host_view(range.base());
  REQUIRE(view != nullptr);
  CHECK(view[kGranule - 1] == std::byte{0});
  std::memset(view, 0x5a, kGranule);
  const DevicePtr<std::byte> base = range.base();
  range.commit(kGranule, 3 * kGranule);
  CHECK(range.base() == base);
  CHECK(view[0] == std::byte{0x5a});
  CHECK(view[4 * kGranule - 1] == std::byte{0});
}

TEST_CASE("the ledger follows every kind and placement, and keeps the peak", "[arena]") {
  HostDevice device(device_options());
  ResidencyArena arena(device.memory());
  {
    MemoryRange weights = arena.reserve(MemoryKind::weights, 3 * kGranule);
    MemoryRange staging = arena.reserve(MemoryKind::staging, 2 * kGranule, Placement::host);
    weights.commit(0, 3 * kGranule);
    staging.commit(0, 2 * kGranule);
    CHECK(arena.committed_device_bytes() == 3 * kGranule);
    CHECK(arena.committed_host_bytes() == 2 * kGranule);
    CHECK(arena.committed_bytes(MemoryKind::staging) == 2 * kGranule);
    MemoryRange moved = std::move(weights);
    CHECK(weights.committed_bytes() == 0);
    CHECK(moved.committed_bytes() == 3 * kGranule);
  }
  CHECK(arena.committed_device_bytes() == 0);
  CHECK(arena.committed_host_bytes() == 0);
  CHECK(arena.committed_peak_bytes() == 3 * kGranule);
}

TEST_CASE("the budget is never exceeded, not even by the granule that would cross it", "[arena]") {
  HostDevice device(device_options());
  ResidencyArena arena(device.memory(), 3 * kGranule + kGranule / 2);
  MemoryRange first = arena.reserve(MemoryKind::weights, 8 * kGranule);
  MemoryRange second = arena.reserve(MemoryKind::kv, 8 * kGranule);
  first.commit(0, 2 * kGranule);
  second.commit(0, kGranule);
  try {
    second.commit(0, 3 * kGranule);
    FAIL("more was committed than the budget allows");
  } catch (const BudgetError& error) {
    CHECK(error.asked_bytes() == 4 * kGranule);
    CHECK(error.available_bytes() == 3 * kGranule + kGranule / 2);
    CHECK_FALSE(error.hint().empty());
  }
  CHECK(arena.committed_device_bytes() == 3 * kGranule);
  CHECK(arena.committed_peak_bytes() == 3 * kGranule);
  MemoryRange staging = arena.reserve(MemoryKind::staging, 4 * kGranule, Placement::host);
  CHECK(staging.commit(0, 4 * kGranule) == 4);  // host memory is not the device's
}

TEST_CASE("a device without memory is a device error that says how much was asked", "[arena]") {
  HostDeviceOptions options = device_options();
  options.capacity_bytes = 2 * kGranule;
  HostDevice device(options);
  ResidencyArena arena(device.memory());
  MemoryRange range = arena.reserve(MemoryKind::weights, 4 * kGranule);
  CHECK_THROWS_AS(range.commit(0, 4 * kGranule), DeviceError);
  CHECK(range.committed_bytes() == 2 * kGranule);
}

TEST_CASE("whichever create or map fails, the ledger stays true and nothing leaks", "[arena]") {
  for (const bool fail_map : {false, true}) {
    std::uint64_t failures = 0;
    for (std::uint64_t call = 0;; ++call) {
      HostDevice device(device_options());
      test::FaultyMemory memory(device.memory());
      bool failed = false;
      {
        ResidencyArena arena(memory);
        MemoryRange range = arena.reserve(MemoryKind::weights, 6 * kGranule);
        MemoryRange other = arena.reserve(MemoryKind::kv, 2 * kGranule);
        memory.fail(fail_map ? test::FaultyMemory::Call::map : test::FaultyMemory::Call::create, call);
        try {
          range.commit(0, 2 * kGranule);
          other.commit(0, 2 * kGranule);
          range.commit(0, 6 * kGranule);
        } catch (const DeviceError&) {
          failed = true;
        }
        CHECK(memory.live_granules() == memory.mapped_granules());
        CHECK(static_cast<std::size_t>(memory.live_granules()) * kGranule == arena.committed_device_bytes());
        CHECK(range.committed_bytes() + other.committed_bytes() == arena.committed_device_bytes());
      }
      CHECK(memory.holds_nothing());
      if (!failed) break;
      ++failures;
    }
    CHECK(failures == 8);
  }
}

TEST_CASE("plain allocations are whole at once, on no ledger, and given back", "[arena]") {
  HostDevice device(device_options());
  test::FaultyMemory memory(device.memory());
  {
    ResidencyArena arena(memory, std::nullopt, Allocator::plain);
    MemoryRange range = arena.reserve(MemoryKind::weights, 3 * kGranule + 1);
    MemoryRange cold = arena.reserve(MemoryKind::cold, kGranule, Placement::host);
    CHECK(range.committed_bytes() == 4 * kGranule);
    CHECK(range.commit(0, 3 * kGranule + 1) == 0);
    CHECK_THROWS_AS(range.commit(0, 4 * kGranule + 1), Error);
    std::byte* const view = device.memory().host_view(range.base());
    REQUIRE(view != nullptr);
    std::memset(view, 1, 4 * kGranule);
    CHECK(arena.committed_device_bytes() == 0);
    CHECK(arena.committed_peak_bytes() == 0);
    CHECK(memory.live_allocations() == 2);
    CHECK(memory.live_granules() == 0);
    memory.fail(test::FaultyMemory::Call::allocate, 0);
    CHECK_THROWS_AS(arena.reserve(MemoryKind::kv, kGranule), DeviceError);
    memory.fail(test::FaultyMemory::Call::allocate, 0);
    CHECK_THROWS_AS(arena.reserve(MemoryKind::cold, kGranule, Placement::host), PinnedMemoryError);
  }
  CHECK(memory.holds_nothing());
  CHECK_THROWS_AS(ResidencyArena(memory, kGranule, Allocator::plain), Error);
}

TEST_CASE("random commits and releases keep ledger and memory in step", "[arena]") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    HostDevice device(device_options());
    test::FaultyMemory memory(device.memory());
    ResidencyArena arena(memory, 40 * kGranule);
    std::mt19937 random(seed);
    std::vector<MemoryRange> ranges;
    for (int step = 0; step < 200; ++step) {
      if (ranges.size() < 4) {
        ranges.push_back(
            arena.reserve(static_cast<MemoryKind>(random() % kMemoryKindCount), (1 + random() % 20) * kGranule));
      } else if (random() % 8 == 0) {
        ranges.erase(ranges.begin() + random() % ranges.size());
      } else {
        MemoryRange& range = ranges[random() % ranges.size()];
        const std::size_t offset = random() % range.reserved_bytes();
        try {
          range.commit(offset, random() % (range.reserved_bytes() - offset));
        } catch (const BudgetError&) {
        }
      }
      std::size_t committed = 0;
      for (const MemoryRange& range : ranges) committed += range.committed_bytes();
      REQUIRE(committed == arena.committed_device_bytes());
      REQUIRE(committed <= 40 * kGranule);
      REQUIRE(static_cast<std::size_t>(memory.live_granules()) * kGranule == committed);
    }
  }
}

}  // namespace genai
