// faulty_memory.h - a VirtualMemory that passes everything on to another one, but for the calls it is told to fail.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "engine/device/virtual_memory.h"
#include "engine/error.h"

namespace genai::test {

class FaultyMemory : public VirtualMemory {
 public:
  // What can be made to fail: each call by itself, creations also by placement.
  enum class Call { create, create_device, create_host, create_pageable, map, reserve, allocate };
  static constexpr int kCallCount = 7;

  explicit FaultyMemory(VirtualMemory& inner) : inner_(inner) {}

  // Counted from now; nothing: never fails.
  void fail(Call call, std::optional<std::uint64_t> calls_from_now) { countdown(call) = calls_from_now; }
  // Whether that is still to come.
  bool will_fail(Call call) { return countdown(call).has_value(); }

  std::int64_t live_granules() const { return static_cast<std::int64_t>(placements_.size()); }
  std::int64_t mapped_granules() const { return static_cast<std::int64_t>(mapped_.size()); }
  std::int64_t reserved_ranges() const { return reserved_ranges_; }
  std::int64_t live_allocations() const { return live_allocations_; }
  bool holds_nothing() const {
    return live_granules() == 0 && mapped_granules() == 0 && reserved_ranges_ == 0 && live_allocations_ == 0;
  }
  // Of the granule that is mapped at the address; nothing: none is.
  std::optional<Placement> placement_at(std::uint64_t address) const {
    const auto slot = mapped_.find(address / granule_bytes() * granule_bytes());
    if (slot == mapped_.end()) return std::nullopt;
    return placements_.at(slot->second);
  }

  std::size_t granule_bytes() const override { return inner_.granule_bytes(); }
  MemoryInfo info() const override { return inner_.info(); }
  DevicePtr<std::byte> reserve(std::size_t bytes) override {
    if (fails(Call::reserve)) throw DeviceError("reserve failed on request");
    const DevicePtr<std::byte> begin = inner_.reserve(bytes);
    ++reserved_ranges_;
    return begin;
  }
  void release(DevicePtr<std::byte> begin, std::size_t bytes) override {
    inner_.release(begin, bytes);
    --reserved_ranges_;
  }
  std::optional<GranuleId> create(Placement placement) override {
    const Call own = placement == Placement::device ? Call::create_device
                     : placement == Placement::host ? Call::create_host
                                                    : Call::create_pageable;
    if (fails(Call::create) || fails(own)) return std::nullopt;
    const std::optional<GranuleId> granule = inner_.create(placement);
    if (granule) placements_[*granule] = placement;
    return granule;
  }
  void destroy(GranuleId granule) override {
    inner_.destroy(granule);
    placements_.erase(granule);
  }
  void map(DevicePtr<std::byte> slot, GranuleId granule) override {
    if (fails(Call::map)) throw DeviceError("map failed on request");
    inner_.map(slot, granule);
    mapped_[slot.address()] = granule;
  }
  void unmap(DevicePtr<std::byte> slot) override {
    inner_.unmap(slot);
    mapped_.erase(slot.address());
  }
  std::optional<DevicePtr<std::byte>> allocate(Placement placement, std::size_t bytes) override {
    if (fails(Call::allocate)) return std::nullopt;
    const std::optional<DevicePtr<std::byte>> begin = inner_.allocate(placement, bytes);
    if (begin) ++live_allocations_;
    return begin;
  }
  void free(DevicePtr<std::byte> begin) override {
    inner_.free(begin);
    --live_allocations_;
  }
  std::byte* host_view(DevicePtr<std::byte> address) override { return inner_.host_view(address); }

 private:
  std::optional<std::uint64_t>& countdown(Call call) { return countdowns_[static_cast<std::size_t>(call)]; }
  bool fails(Call call) {
    std::optional<std::uint64_t>& left = countdown(call);
    if (!left) return false;
    if (*left == 0) {
      left.reset();
      return true;
    }
    --*left;
    return false;
  }

  VirtualMemory& inner_;
  std::array<std::optional<std::uint64_t>, kCallCount> countdowns_;
  std::map<GranuleId, Placement> placements_;  // of living granules
  std::map<std::uint64_t, GranuleId> mapped_;  // by slot
  std::int64_t reserved_ranges_ = 0;
  std::int64_t live_allocations_ = 0;
};

}  // namespace genai::test
