// residency_arena.h - the only place that takes device memory. Ranges of addresses are reserved by kind and backed with
// granules where asked; every committed byte is on one ledger and inside one budget.
//
// Invariants
//   R1 A weight's address never changes between load and unload: ranges do not move.
//   R2 Committed device bytes never exceed the budget, at any instant: the ledger is charged before a granule is
//      created.
//   R3 A granule is mapped at exactly one slot of one range, or does not exist.
//   R4 Ranges are released only after the caller has passed an event behind their last reader.
// States of a granule's slot: reserved -> (commit) backed -> (destruction of the range) gone.
//
// One thread; callers serialise. The arena outlives its ranges.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/device/virtual_memory.h"

namespace genai {

enum class MemoryKind : std::uint8_t { weights, cold, ring, kv, workspace, staging, exchange };
inline constexpr std::size_t kMemoryKindCount = 7;
std::string_view memory_kind_name(MemoryKind kind);

class ResidencyArena;

// A reserved range and its granules; gives both back when destroyed.
class MemoryRange {
 public:
  MemoryRange() = default;
  MemoryRange(MemoryRange&& other) noexcept;
  MemoryRange& operator=(MemoryRange&& other) noexcept;
  MemoryRange(const MemoryRange&) = delete;
  MemoryRange& operator=(const MemoryRange&) = delete;
  ~MemoryRange();

  DevicePtr<std::byte> base() const { return base_; }
  std::size_t reserved_bytes() const { return reserved_bytes_; }
  std::size_t committed_bytes() const;
  // Backs every granule that touches [offset, offset + bytes); those already backed stay. Returns how many granules
  // were new. Throws BudgetError (over the budget) or DeviceError (the device has no more); granules backed until then
  // stay.
  std::size_t commit(std::size_t offset, std::size_t bytes);

 private:
  friend class ResidencyArena;
  MemoryRange(ResidencyArena& arena, MemoryKind kind, Placement placement, std::size_t bytes);
  void give_back() noexcept;

  ResidencyArena* arena_ = nullptr;
  MemoryKind kind_ = MemoryKind::workspace;
  Placement placement_ = Placement::device;
  DevicePtr<std::byte> base_;
  std::size_t reserved_bytes_ = 0;
  std::vector<std::optional<GranuleId>> granules_;
};

class ResidencyArena {
 public:
  // `budget_bytes`: most device bytes ever committed; nothing: the device's own limit.
  explicit ResidencyArena(VirtualMemory& memory, std::optional<std::uint64_t> budget_bytes = std::nullopt)
      : memory_(memory), budget_bytes_(budget_bytes) {}
  ResidencyArena(const ResidencyArena&) = delete;
  ResidencyArena& operator=(const ResidencyArena&) = delete;

  // Addresses only; nothing is committed. `bytes` is rounded up to whole granules.
  MemoryRange reserve(MemoryKind kind, std::size_t bytes, Placement placement = Placement::device);

  VirtualMemory& memory() const { return memory_; }
  std::optional<std::uint64_t> budget_bytes() const { return budget_bytes_; }
  std::uint64_t committed_bytes(MemoryKind kind) const { return committed_[static_cast<std::size_t>(kind)]; }
  std::uint64_t committed_device_bytes() const { return committed_device_; }
  std::uint64_t committed_host_bytes() const { return committed_host_; }
  std::uint64_t committed_peak_bytes() const { return committed_peak_; }

 private:
  friend class MemoryRange;
  GranuleId charge_and_create(MemoryKind kind, Placement placement);
  void destroy_and_refund(GranuleId granule, MemoryKind kind, Placement placement);

  VirtualMemory& memory_;
  std::optional<std::uint64_t> budget_bytes_;
  std::array<std::uint64_t, kMemoryKindCount> committed_{};
  std::uint64_t committed_device_ = 0;
  std::uint64_t committed_host_ = 0;
  std::uint64_t committed_peak_ = 0;
};

}  // namespace genai
