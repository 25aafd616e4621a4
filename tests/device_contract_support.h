// device_contract_support.h - what the cases of device_contract.h share: patterns, memory that goes away by itself, and
// the scenarios that need their waits. Those return whether the result was right: with the waits it always is, and a
// backend that can shuffle work proves its shuffling by getting it wrong without them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/error.h"
#include "tests/catch.h"

namespace genai::test {

using DeviceFactory = std::function<std::unique_ptr<Device>()>;
using Bytes = std::vector<std::byte>;
using Address = DevicePtr<std::byte>;

// Bytes that tell their position and their kind apart.
inline Bytes pattern(std::size_t byte_count, unsigned kind) {
  Bytes bytes(byte_count);
  std::uint32_t state = kind * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline void write(Stream& stream, Address to, const Bytes& bytes) {
  stream.upload(to, bytes.data(), bytes.size());
  stream.synchronize();
}

inline Bytes read(Stream& stream, Address from, std::size_t byte_count) {
  Bytes bytes(byte_count);
  stream.download(bytes.data(), from, byte_count);
  stream.synchronize();
  return bytes;
}

inline bool all_zero(const Bytes& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// A reserved range; what is mapped in it through map() goes away with it.
class Region {
 public:
  Region(VirtualMemory& memory, std::size_t slot_count)
      : memory_(memory), begin_(memory.reserve(slot_count * memory.granule_bytes())), slot_count_(slot_count) {}
  Region(Device& device, std::size_t slot_count, Placement placement) : Region(device.memory(), slot_count) {
    for (std::size_t slot = 0; slot < slot_count; ++slot) {
      const std::optional<GranuleId> granule = memory_.create(placement);
      REQUIRE(granule.has_value());
      map(slot, *granule);
    }
  }
  ~Region() {
    try {
      while (!mapped_.empty()) {
        const Mapping last = mapped_.back();
        unmap(last.slot);
        memory_.destroy(last.granule);
      }
      memory_.release(begin_, slot_count_ * memory_.granule_bytes());
    } catch (const Error&) {  // a check has failed already, possibly inside a capture
    }
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Address at(std::size_t byte_offset = 0) const { return begin_.byte_offset(static_cast<std::int64_t>(byte_offset)); }
  Address slot(std::size_t index) const { return at(index * memory_.granule_bytes()); }
  void map(std::size_t index, GranuleId granule) {
    memory_.map(slot(index), granule);
    mapped_.push_back({index, granule});
  }
  GranuleId unmap(std::size_t index) {
    const auto found = std::find_if(mapped_.begin(), mapped_.end(), [&](const Mapping& m) { return m.slot == index; });
    REQUIRE(found != mapped_.end());
    const GranuleId granule = found->granule;
    memory_.unmap(slot(index));
    mapped_.erase(found);
    return granule;
  }

 private:
  struct Mapping {
    std::size_t slot;
    GranuleId granule;
  };
  VirtualMemory& memory_;
  const Address begin_;
  const std::size_t slot_count_;
  std::vector<Mapping> mapped_;
};

// One row of a pass that advance_step moves on: the smallest state that a kernel changes.
class StepCounter {
 public:
  explicit StepCounter(Device& device) : device_(device), region_(device, 1, Placement::device) {
    const std::unique_ptr<Stream> stream = device.create_stream();
    advance(*stream);  // so that a backend that loads kernels on first use has done so before any capture
    stream->synchronize();
    write(*stream, region_.at(), Bytes(512));
  }
  AdvanceArgs args() const { return {region_.at().as<StepRow>(), region_.at(256).as<const std::int32_t>(), 1}; }
  void advance(Stream& stream) { device_.kernels().advance_step(stream, args()); }
  Address tokens() const { return region_.at(256); }
  StepRow row(Stream& stream) const {
    StepRow row;
    stream.download(&row, region_.at(), sizeof row);
    stream.synchronize();
    return row;
  }

 private:
  Device& device_;
  Region region_;
};

// ---- scenarios that need their waits -------------------------------------------------------------------------------

// One stream hands data to a second, which hands it to a third, which lets the first write again.
inline bool data_passes_through_three_streams(Device& device, bool waits) {
  constexpr std::size_t kBytes = 512;
  constexpr unsigned kRounds = 4;
  Region region(device, 1, Placement::device);
  const Address x = region.at();
  const Address y = region.at(kBytes);
  const auto first = device.create_stream();
  const auto second = device.create_stream();
  const auto third = device.create_stream();
  const auto written = device.create_event();
  const auto copied = device.create_event();
  const auto taken = device.create_event();
  std::vector<Bytes> sources;
  std::vector<Bytes> results(kRounds, Bytes(kBytes));
  for (unsigned round = 0; round < kRounds; ++round) sources.push_back(pattern(kBytes, round));
  for (unsigned round = 0; round < kRounds; ++round) {
    if (waits) first->wait(*taken);  // in round 0 not recorded yet
    first->upload(x, sources[round].data(), kBytes);
    first->record(*written);
    if (waits) second->wait(*written);
    second->copy(y, x, kBytes);
    second->record(*copied);
    if (waits) third->wait(*copied);
    third->download(results[round].data(), y, kBytes);
    third->record(*taken);
  }
  for (Stream* const stream : {first.get(), second.get(), third.get()}) stream->synchronize();
  return results == sources;
}

// A copy stream fills ring slots from host memory while a second stream reads them. Without waits only the readers go
// unprotected: a slot is filled again although its last reader may not be done.
inline bool ring_slots_keep_their_data_until_read(Device& device, bool waits) {
  constexpr std::size_t kSegmentBytes = 256;
  constexpr std::size_t kSlots = 2;
  constexpr std::size_t kSegments = 9;
  Region cold(device, 1, Placement::host);
  Region warm(device, 1, Placement::device);
  const auto filler = device.create_stream();
  const auto reader = device.create_stream();
  const Bytes data = pattern(kSegmentBytes * kSegments, 3);
  write(*filler, cold.at(), data);
  std::vector<std::unique_ptr<Event>> filled;
  std::vector<std::unique_ptr<Event>> free;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    filled.push_back(device.create_event());
    free.push_back(device.create_event());
  }
  const auto slot_address = [&](std::size_t slot) { return warm.at(slot * kSegmentBytes); };
  const auto result_address = [&](std::size_t segment) { return warm.at((kSlots + segment) * kSegmentBytes); };
  for (std::size_t segment = 0; segment < kSegments; ++segment) {
    const std::size_t slot = segment % kSlots;
    if (waits) filler->wait(*free[slot]);
    filler->copy(slot_address(slot), cold.at(segment * kSegmentBytes), kSegmentBytes);
    filler->record(*filled[slot]);
    reader->wait(*filled[slot]);
    reader->copy(result_address(segment), slot_address(slot), kSegmentBytes);
    reader->record(*free[slot]);
  }
  filler->synchronize();
  reader->synchronize();
  return read(*reader, result_address(0), data.size()) == data;
}

// A graph reads what another stream writes, and its own result is read by the other stream.
inline bool graph_launch_is_ordered_by_events(Device& device, bool waits) {
  constexpr std::size_t kBytes = 256;
  constexpr std::size_t kSteps = 6;
  Region region(device, 1, Placement::device);
  const auto step_address = [&](std::size_t step) { return region.at(step * kBytes); };
  const auto launching = device.create_stream();
  const auto other = device.create_stream();
  launching->begin_capture();
  for (std::size_t step = 0; step < kSteps; ++step) launching->copy(step_address(step + 1), step_address(step), kBytes);
  const std::unique_ptr<Graph> graph = launching->end_capture();
  const auto written = device.create_event();
  const auto launched = device.create_event();
  const Bytes source = pattern(kBytes, 5);
  Bytes result(kBytes);
  other->upload(step_address(0), source.data(), kBytes);
  other->record(*written);
  if (waits) launching->wait(*written);
  launching->launch(*graph);
  launching->record(*launched);
  if (waits) other->wait(*launched);
  other->download(result.data(), step_address(kSteps), kBytes);
  other->synchronize();
  launching->synchronize();
  return result == source;
}

}  // namespace genai::test
