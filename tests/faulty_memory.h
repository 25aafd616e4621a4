// faulty_memory.h - a VirtualMemory that passes everything on to another one, but for the calls it is told to fail.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/device/virtual_memory.h"
#include "engine/error.h"

namespace genai::test {

class FaultyMemory : public VirtualMemory {
 public:
  explicit FaultyMemory(VirtualMemory& inner) : inner_(inner) {}

  // Counted from now; nothing: never fails.
  void fail_create(std::optional<std::uint64_t> calls_from_now) { create_countdown_ = calls_from_now; }
  void fail_map(std::optional<std::uint64_t> calls_from_now) { map_countdown_ = calls_from_now; }

  std::int64_t live_granules() const { return live_granules_; }
  std::int64_t mapped_granules() const { return mapped_granules_; }
  std::int64_t reserved_ranges() const { return reserved_ranges_; }

  std::size_t granule_bytes() const override { return inner_.granule_bytes(); }
  MemoryInfo info() const override { return inner_.info(); }
  DevicePtr<std::byte> reserve(std::size_t bytes) override {
    ++reserved_ranges_;
    return inner_.reserve(bytes);
  }
  void release(DevicePtr<std::byte> begin, std::size_t bytes) override {
    inner_.release(begin, bytes);
    --reserved_ranges_;
  }
  std::optional<GranuleId> create(Placement placement) override {
    if (fails(create_countdown_)) return std::nullopt;
    const std::optional<GranuleId> granule = inner_.create(placement);
    if (granule) ++live_granules_;
    return granule;
  }
  void destroy(GranuleId granule) override {
    inner_.destroy(granule);
    --live_granules_;
  }
  void map(DevicePtr<std::byte> slot, GranuleId granule) override {
    if (fails(map_countdown_)) throw DeviceError("map failed on request");
    inner_.map(slot, granule);
    ++mapped_granules_;
  }
  void unmap(DevicePtr<std::byte> slot) override {
    inner_.unmap(slot);
    --mapped_granules_;
  }
  std::byte* host_view(DevicePtr<std::byte> address) override { return inner_.host_view(address); }

 private:
  static bool fails(std::optional<std::uint64_t>& countdown) {
    if (!countdown) return false;
    if (*countdown == 0) {
      countdown.reset();
      return true;
    }
    --*countdown;
    return false;
  }

  VirtualMemory& inner_;
  std::optional<std::uint64_t> create_countdown_;
  std::optional<std::uint64_t> map_countdown_;
  std::int64_t live_granules_ = 0;
  std::int64_t mapped_granules_ = 0;
  std::int64_t reserved_ranges_ = 0;
};

}  // namespace genai::test
