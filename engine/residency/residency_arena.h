// residency_arena.h - the only place that takes device memory. Ranges of addresses are reserved by kind and backed with
// granules where asked; every committed byte is on one ledger and inside one budget, and so is what a backend takes
// beside it. For comparison there is an arena of plain allocations: a range is one of them, backed whole at once, on no
// ledger and inside no budget.
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

enum class MemoryKind : std::uint8_t { weights, cold, ring, kv, workspace, staging, exchange, graphs };
inline constexpr std::size_t kMemoryKindCount = 8;
std::string_view memory_kind_name(MemoryKind kind);

enum class Allocator : std::uint8_t { arena, plain };
std::string_view allocator_name(Allocator allocator);

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
  // were new. Throws BudgetError (over the budget), PinnedMemoryError or DeviceError (there is no more of that memory);
  // granules backed until then stay. Of a plain allocation everything is backed.
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
  // REQUIRES: no budget with plain allocations.
  explicit ResidencyArena(VirtualMemory& memory, std::optional<std::uint64_t> budget_bytes = std::nullopt,
                          Allocator allocator = Allocator::arena);
  ResidencyArena(const ResidencyArena&) = delete;
  ResidencyArena& operator=(const ResidencyArena&) = delete;

  // Addresses only; nothing is committed. `bytes` is rounded up to whole granules. A plain allocation is made here, and
  // fails as commit does.
  MemoryRange reserve(MemoryKind kind, std::size_t bytes, Placement placement = Placement::device);

  // Device memory that the backend takes by itself, or may take: on the ledger and inside the budget until the arena is
  // gone. Throws BudgetError where it does not fit.
  void keep_free(MemoryKind kind, std::uint64_t bytes);

  VirtualMemory& memory() const { return memory_; }
  Allocator allocator() const { return allocator_; }
  std::optional<std::uint64_t> budget_bytes() const { return budget_bytes_; }
  std::uint64_t committed_bytes(MemoryKind kind) const { return committed_[static_cast<std::size_t>(kind)]; }
  std::uint64_t committed_device_bytes() const { return committed_in(Placement::device); }
  std::uint64_t committed_host_bytes() const { return committed_in(Placement::host); }  // page-locked
  std::uint64_t committed_pageable_bytes() const { return committed_in(Placement::pageable); }
  std::uint64_t committed_peak_bytes() const { return committed_peak_; }

 private:
  friend class MemoryRange;
  void expect_in_budget(MemoryKind kind, std::uint64_t bytes) const;
  void charge(MemoryKind kind, Placement placement, std::uint64_t bytes);
  GranuleId charge_and_create(MemoryKind kind, Placement placement);
  void destroy_and_refund(GranuleId granule, MemoryKind kind, Placement placement);
  [[noreturn]] void throw_exhausted(MemoryKind kind, Placement placement, std::size_t bytes) const;
  std::uint64_t committed_in(Placement placement) const { return placed_[static_cast<std::size_t>(placement)]; }

  VirtualMemory& memory_;
  std::optional<std::uint64_t> budget_bytes_;
  Allocator allocator_;
  std::array<std::uint64_t, kMemoryKindCount> committed_{};
  std::array<std::uint64_t, kPlacementCount> placed_{};
  std::uint64_t committed_peak_ = 0;
};

}  // namespace genai
