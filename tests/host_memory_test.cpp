// What host memory promises beyond the device contract: faults, capacity, and what it costs the system.
#include "engine/host/host_memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/host/host_device.h"
#include "tests/catch.h"
#include "tests/shared_data.h"

using namespace genai;

namespace {

constexpr std::size_t kGranuleBytes = 65536;

struct Fixture {
  explicit Fixture(std::optional<std::uint64_t> capacity_bytes = std::nullopt,
                   std::size_t granule_bytes = kGranuleBytes)
      : memory({granule_bytes, capacity_bytes}, open_captures) {}
  std::atomic<int> open_captures{0};
  HostMemory memory;
};

volatile char* pointer(DevicePtr<std::byte> address) { return reinterpret_cast<volatile char*>(address.address()); }

enum class Access { read, write };

// Whether a child process that touches the address dies of it.
bool faults(DevicePtr<std::byte> address, Access access) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's or the test framework's handler would turn it into an exit
    signal(SIGBUS, SIG_DFL);
    if (access == Access::write) *pointer(address) = 1;
    const char byte = *pointer(address);
    _exit(byte == 1 ? 1 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

// Bytes of anonymous memory that this process has, counted page by page.
std::uint64_t anonymous_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::uint64_t kibibytes = 0;
  for (std::string line; std::getline(rollup, line);)
    if (line.rfind("Anonymous:", 0) == 0) kibibytes = std::stoull(line.substr(10));
  return kibibytes * 1024;
}

// Whether the kernel was asked for huge pages in the mapping at `address`.
bool wants_huge_pages(DevicePtr<std::byte> address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uint64_t first = 0, last = 0;
    char dash = 0;
    if (words >> std::hex >> first >> dash >> last && dash == '-')
      is_here = first <= address.address() && address.address() < last;
    if (is_here && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
  }
  return false;
}

// Kernel mappings that overlap a range.
int mapping_count(DevicePtr<std::byte> begin, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    const std::uint64_t first = std::stoull(line, nullptr, 16);
    const std::uint64_t last = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    if (first < begin.address() + bytes && last > begin.address()) ++count;
  }
  return count;
}

DevicePtr<std::byte> slot_of(DevicePtr<std::byte> begin, std::size_t index) {
  return begin.byte_offset(static_cast<std::int64_t>(index * kGranuleBytes));
}

}  // namespace

TEST_CASE("a reserved slot faults while nothing is mapped there", "[host_memory]") {
  Fixture fixture;
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(3 * kGranuleBytes);
  REQUIRE(faults(slot_of(range, 1), Access::read));
  const GranuleId granule = memory.create(Placement::device).value();
  memory.map(slot_of(range, 1), granule);
  REQUIRE_FALSE(faults(slot_of(range, 1), Access::read));
  REQUIRE_FALSE(faults(slot_of(range, 2).byte_offset(-1), Access::read));
  REQUIRE(faults(slot_of(range, 1).byte_offset(-1), Access::read));
  REQUIRE(faults(slot_of(range, 2), Access::read));
  memory.unmap(slot_of(range, 1));
  REQUIRE(faults(slot_of(range, 1), Access::read));
  REQUIRE(faults(slot_of(range, 1), Access::write));
  memory.destroy(granule);
  memory.release(range, 3 * kGranuleBytes);
}

TEST_CASE("pageable memory faults where kernels would read it, and is where the host looks", "[host_memory]") {
  Fixture fixture;
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(2 * kGranuleBytes);
  const GranuleId granule = memory.create(Placement::pageable).value();
  memory.map(slot_of(range, 1), granule);
  REQUIRE(faults(slot_of(range, 1), Access::read));
  const std::byte* const view = memory.host_view(slot_of(range, 1));
  REQUIRE(view != nullptr);
  REQUIRE_FALSE(faults(DevicePtr<std::byte>(reinterpret_cast<std::uint64_t>(view)), Access::write));
  memory.unmap(slot_of(range, 1));
  REQUIRE(memory.host_view(slot_of(range, 1)) == nullptr);
  memory.destroy(granule);
  memory.release(range, 2 * kGranuleBytes);
  const auto allocation = memory.allocate(Placement::pageable, kGranuleBytes).value();
  REQUIRE(faults(allocation, Access::read));
  REQUIRE(memory.host_view(allocation) != nullptr);
}

TEST_CASE("capacity bounds page-locked memory by itself", "[host_memory]") {
  std::atomic<int> no_captures{0};
  HostMemory memory({.granule_bytes = kGranuleBytes, .pinned_capacity_bytes = 3 * kGranuleBytes}, no_captures);
  const GranuleId granule = memory.create(Placement::host).value();
  REQUIRE_FALSE(memory.allocate(Placement::host, 2 * kGranuleBytes + 1).has_value());
  const auto allocation = memory.allocate(Placement::host, 2 * kGranuleBytes).value();
  REQUIRE_FALSE(memory.create(Placement::host).has_value());
  for (const Placement other : {Placement::device, Placement::pageable}) REQUIRE(memory.create(other).has_value());
  memory.free(allocation);
  memory.destroy(granule);
  REQUIRE(memory.allocate(Placement::host, 3 * kGranuleBytes).has_value());
}

TEST_CASE("capacity bounds device granules and is reported", "[host_memory]") {
  Fixture fixture(3 * kGranuleBytes + 100);
  HostMemory& memory = fixture.memory;
  REQUIRE(memory.info().total_bytes == 3 * kGranuleBytes + 100);
  REQUIRE(memory.info().free_bytes == 3 * kGranuleBytes + 100);
  std::vector<GranuleId> granules;
  for (int i = 0; i < 3; ++i) granules.push_back(memory.create(Placement::device).value());
  REQUIRE(memory.info().free_bytes == 100U);
  REQUIRE_FALSE(memory.create(Placement::device).has_value());
  REQUIRE(memory.create(Placement::host).has_value());
  REQUIRE(memory.info().free_bytes == 100U);
  memory.destroy(granules[1]);
  REQUIRE(memory.info().free_bytes == kGranuleBytes + 100);
  REQUIRE(memory.create(Placement::device).has_value());
  REQUIRE_FALSE(memory.create(Placement::device).has_value());
}

TEST_CASE("without a capacity the machine's memory is reported", "[host_memory]") {
  const Fixture fixture;
  const MemoryInfo info = fixture.memory.info();
  REQUIRE(info.total_bytes.value() > 0);
  REQUIRE(info.free_bytes.value() <= info.total_bytes.value());
}

TEST_CASE("a granule has memory from its first touch to its destruction, mapped or not", "[host_memory]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GENAI_SKIP("a sanitizer needs memory of its own");
#endif
  constexpr std::size_t kCount = 512;
  constexpr std::uint64_t kAllBytes = kCount * kGranuleBytes;  // 32 MiB
  constexpr std::uint64_t kNoiseBytes = std::uint64_t{2} << 20;
  if (anonymous_bytes() == 0) GENAI_SKIP("this kernel has no /proc/self/smaps_rollup");
  Fixture fixture;
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(kAllBytes);
  std::vector<GranuleId> granules(kCount);
  const std::uint64_t before = anonymous_bytes();
  const auto taken = [&] { return anonymous_bytes() - std::min(before, anonymous_bytes()); };
  for (GranuleId& granule : granules) granule = memory.create(Placement::device).value();
  REQUIRE(taken() < kNoiseBytes);
  for (std::size_t slot = 0; slot < kCount; ++slot) memory.map(slot_of(range, slot), granules[slot]);
  REQUIRE(taken() < kNoiseBytes);
  std::memset(memory.host_view(range), 1, kAllBytes);
  REQUIRE(taken() > kAllBytes - kNoiseBytes);
  for (std::size_t slot = 0; slot < kCount; ++slot) memory.unmap(slot_of(range, slot));
  REQUIRE(taken() > kAllBytes - kNoiseBytes);
  REQUIRE(taken() < kAllBytes + kNoiseBytes);
  for (const GranuleId granule : granules) memory.destroy(granule);
  REQUIRE(taken() < kNoiseBytes);
}

TEST_CASE("a granule keeps its bytes through many moves beside others", "[host_memory]") {
  constexpr std::size_t kSlots = 5;
  for (const std::size_t bytes : {kGranuleBytes, std::size_t{2} << 20}) {
    Fixture fixture(std::nullopt, bytes);
    HostMemory& memory = fixture.memory;
    const auto range = memory.reserve(kSlots * bytes);
    const auto at = [&](std::size_t slot) { return range.byte_offset(static_cast<std::int64_t>(slot * bytes)); };
    std::vector<GranuleId> granules;
    for (std::size_t i = 0; i < kSlots; ++i) {
      granules.push_back(memory.create(Placement::device).value());
      memory.map(at(i), granules[i]);
      std::memset(memory.host_view(at(i)), static_cast<int>(i + 1), bytes);
    }
    for (std::size_t round = 1; round <= 3; ++round) {
      for (std::size_t slot = 0; slot < kSlots; ++slot) memory.unmap(at(slot));
      REQUIRE(faults(at(round), Access::read));
      for (std::size_t i = 0; i < kSlots; ++i) memory.map(at((i + round) % kSlots), granules[i]);
      for (std::size_t i = 0; i < kSlots; ++i) {
        const std::byte* view = memory.host_view(at((i + round) % kSlots));
        REQUIRE(std::all_of(view, view + bytes, [&](std::byte byte) { return byte == std::byte(i + 1); }));
      }
    }
  }
}

TEST_CASE("granules that are as large as huge pages ask for them, smaller ones do not", "[host_memory]") {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GENAI_SKIP("this kernel has no huge pages");
  for (const std::size_t bytes : {kGranuleBytes, std::size_t{2} << 20}) {
    Fixture fixture(std::nullopt, bytes);
    HostMemory& memory = fixture.memory;
    const auto range = memory.reserve(2 * bytes);
    const GranuleId granule = memory.create(Placement::device).value();
    const bool is_huge = bytes > kGranuleBytes;
    memory.map(range, granule);
    REQUIRE(wants_huge_pages(range) == is_huge);
    memory.unmap(range);
    memory.map(range.byte_offset(static_cast<std::int64_t>(bytes)), granule);
    REQUIRE(wants_huge_pages(range.byte_offset(static_cast<std::int64_t>(bytes))) == is_huge);
  }
}

TEST_CASE("granules created and mapped in a row are one kernel mapping", "[host_memory]") {
  constexpr std::size_t kSlots = 64;
  Fixture fixture;
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(kSlots * kGranuleBytes);
  std::vector<GranuleId> granules;
  for (std::size_t round = 0; round < 2; ++round) {  // the second time from pieces that were given back
    granules.clear();
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      granules.push_back(memory.create(Placement::device).value());
      memory.map(slot_of(range, slot), granules.back());
    }
    REQUIRE(mapping_count(range, kSlots * kGranuleBytes) == 1);
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      memory.unmap(slot_of(range, slot));
      memory.destroy(granules[slot]);
    }
    REQUIRE(mapping_count(range, kSlots * kGranuleBytes) == 1);
  }
}

TEST_CASE("granules of 2 MiB are one kernel mapping too, and aligned for huge pages", "[host_memory]") {
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  Fixture fixture(std::nullopt, kBytes);
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(4 * kBytes);
  REQUIRE(range.address() % kBytes == 0);
  for (std::size_t slot = 0; slot < 4; ++slot)
    memory.map(range.byte_offset(static_cast<std::int64_t>(slot * kBytes)), memory.create(Placement::device).value());
  REQUIRE(mapping_count(range, 4 * kBytes) == 1);
}

TEST_CASE("an impossible range is a device error", "[host_memory]") {
  Fixture fixture;
  REQUIRE_THROWS_AS(fixture.memory.reserve(std::size_t{1} << 62), DeviceError);
  REQUIRE_THROWS_AS(fixture.memory.reserve(~std::size_t{0} & ~(kGranuleBytes - 1)), DeviceError);
}

TEST_CASE("a granule is a power of two of at least a page", "[host_memory]") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{2048}, std::size_t{3} << 16})
    REQUIRE_THROWS_AS(Fixture(std::nullopt, bytes), Error);
}

TEST_CASE("is_mapped looks at every slot of a range", "[host_memory]") {
  Fixture fixture;
  HostMemory& memory = fixture.memory;
  const auto range = memory.reserve(4 * kGranuleBytes);
  for (const std::size_t slot : {0, 1, 3}) memory.map(slot_of(range, slot), memory.create(Placement::device).value());
  const std::uint64_t begin = range.address();
  REQUIRE(memory.is_mapped(begin, 2 * kGranuleBytes));
  REQUIRE(memory.is_mapped(begin + kGranuleBytes - 1, 2));
  REQUIRE_FALSE(memory.is_mapped(begin, 2 * kGranuleBytes + 1));
  REQUIRE_FALSE(memory.is_mapped(begin + kGranuleBytes, 2 * kGranuleBytes + 1));
  REQUIRE(memory.is_mapped(begin + 4 * kGranuleBytes - 1, 1));
  REQUIRE_FALSE(memory.is_mapped(begin + 4 * kGranuleBytes - 1, 2));
  REQUIRE_FALSE(memory.is_mapped(begin - 1, 2));
  REQUIRE_FALSE(memory.is_mapped(begin, ~std::size_t{0}));
}

TEST_CASE("transfers to and from unmapped addresses are device errors", "[host_memory]") {
  HostDeviceOptions options;
  options.granule_bytes = kGranuleBytes;
  options.threads = 1;
  HostDevice device(options);
  const auto range = device.memory().reserve(2 * kGranuleBytes);
  device.memory().map(range, device.memory().create(Placement::device).value());
  const auto stream = device.create_stream();
  std::vector<char> bytes(16);
  const auto edge = slot_of(range, 1).byte_offset(-8);
  REQUIRE_THROWS_AS(stream->upload(edge, bytes.data(), 16), DeviceError);
  REQUIRE_THROWS_AS(stream->download(bytes.data(), edge, 16), DeviceError);
  REQUIRE_THROWS_AS(stream->copy(edge, range, 16), DeviceError);
  REQUIRE_THROWS_AS(stream->copy(range, edge, 16), DeviceError);
  REQUIRE_THROWS_AS(stream->fill_zero(edge, 16), DeviceError);
  REQUIRE_NOTHROW(stream->fill_zero(edge, 8));
}
