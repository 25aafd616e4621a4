#include "engine/residency/residency_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/error.h"

namespace genai {

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::weights:
      return "weights";
    case MemoryKind::cold:
      return "cold weights";
    case MemoryKind::ring:
      return "ring";
    case MemoryKind::kv:
      return "kv";
    case MemoryKind::workspace:
      return "workspace";
    case MemoryKind::staging:
      return "staging";
    case MemoryKind::exchange:
      return "exchange";
    case MemoryKind::graphs:
      return "graphs";
  }
  return "unknown";
}

std::string_view allocator_name(Allocator allocator) { return allocator == Allocator::plain ? "plain" : "arena"; }

MemoryRange::MemoryRange(ResidencyArena& arena, MemoryKind kind, Placement placement, std::size_t bytes)
    : arena_(&arena), kind_(kind), placement_(placement) {
  const std::size_t granule_bytes = arena.memory().granule_bytes();
  reserved_bytes_ = std::max<std::size_t>(1, (bytes + granule_bytes - 1) / granule_bytes) * granule_bytes;
  if (arena.allocator() == Allocator::plain) {
    const std::optional<DevicePtr<std::byte>> begin = arena.memory().allocate(placement, reserved_bytes_);
    if (!begin) arena.throw_exhausted(kind, placement, reserved_bytes_);
    base_ = *begin;
    return;
  }
  granules_.resize(reserved_bytes_ / granule_bytes);
  base_ = arena.memory().reserve(reserved_bytes_);
}

MemoryRange::MemoryRange(MemoryRange&& other) noexcept { *this = std::move(other); }

MemoryRange& MemoryRange::operator=(MemoryRange&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  arena_ = std::exchange(other.arena_, nullptr);
  kind_ = other.kind_;
  placement_ = other.placement_;
  base_ = std::exchange(other.base_, {});
  reserved_bytes_ = std::exchange(other.reserved_bytes_, 0);
  granules_ = std::move(other.granules_);
  other.granules_.clear();
  return *this;
}

MemoryRange::~MemoryRange() { give_back(); }

void MemoryRange::give_back() noexcept {
  ResidencyArena* const arena = std::exchange(arena_, nullptr);
  if (arena == nullptr) return;
  // A device that is shutting down may refuse; its memory goes with it.
  try {
    VirtualMemory& memory = arena->memory();
    if (arena->allocator() == Allocator::plain) return memory.free(base_);
    const std::size_t granule_bytes = memory.granule_bytes();
    for (std::size_t slot = 0; slot < granules_.size(); ++slot) {
      if (!granules_[slot]) continue;
      memory.unmap(base_.byte_offset(static_cast<std::int64_t>(slot * granule_bytes)));
      arena->destroy_and_refund(*granules_[slot], kind_, placement_);
      granules_[slot].reset();
    }
    memory.release(base_, reserved_bytes_);
  } catch (const std::exception&) {
  }
}

std::size_t MemoryRange::committed_bytes() const {
  if (arena_ != nullptr && arena_->allocator() == Allocator::plain) return reserved_bytes_;
  const auto backed =
      std::count_if(granules_.begin(), granules_.end(), [](const auto& slot) { return slot.has_value(); });
  return arena_ == nullptr ? 0 : static_cast<std::size_t>(backed) * arena_->memory().granule_bytes();
}

std::size_t MemoryRange::commit(std::size_t offset, std::size_t bytes) {
  GENAI_EXPECT(arena_ != nullptr, "commit on an empty range");
  GENAI_EXPECT(offset <= reserved_bytes_ && bytes <= reserved_bytes_ - offset, "commit beyond the reserved range");
  if (bytes == 0 || arena_->allocator() == Allocator::plain) return 0;
  VirtualMemory& memory = arena_->memory();
  const std::size_t granule_bytes = memory.granule_bytes();
  const std::size_t first = offset / granule_bytes;
  const std::size_t last = (offset + bytes - 1) / granule_bytes;
  std::size_t created = 0;
  for (std::size_t slot = first; slot <= last; ++slot) {
    if (granules_[slot]) continue;
    const GranuleId granule = arena_->charge_and_create(kind_, placement_);
    try {
      memory.map(base_.byte_offset(static_cast<std::int64_t>(slot * granule_bytes)), granule);
    } catch (...) {
      arena_->destroy_and_refund(granule, kind_, placement_);
      throw;
    }
    granules_[slot] = granule;
    ++created;
  }
  return created;
}

ResidencyArena::ResidencyArena(VirtualMemory& memory, std::optional<std::uint64_t> budget_bytes, Allocator allocator)
    : memory_(memory), budget_bytes_(budget_bytes), allocator_(allocator) {
  GENAI_EXPECT(allocator == Allocator::arena || !budget_bytes, "a budget holds for the arena's granules only");
}

MemoryRange ResidencyArena::reserve(MemoryKind kind, std::size_t bytes, Placement placement) {
  return MemoryRange(*this, kind, placement, bytes);
}

void ResidencyArena::keep_free(MemoryKind kind, std::uint64_t bytes) {
  if (allocator_ == Allocator::plain) return;
  expect_in_budget(kind, bytes);
  charge(kind, Placement::device, bytes);
}

void ResidencyArena::expect_in_budget(MemoryKind kind, std::uint64_t bytes) const {
  if (!budget_bytes_ || committed_device_bytes() + bytes <= *budget_bytes_) return;
  throw BudgetError(fmt::format("the memory budget of {} bytes is used up: {} more bytes for {} do not fit",
                                *budget_bytes_, bytes, memory_kind_name(kind)),
                    committed_device_bytes() + bytes, *budget_bytes_,
                    "raise the budget, or ask for a smaller context (-c)");
}

void ResidencyArena::charge(MemoryKind kind, Placement placement, std::uint64_t bytes) {
  committed_[static_cast<std::size_t>(kind)] += bytes;
  placed_[static_cast<std::size_t>(placement)] += bytes;
  committed_peak_ = std::max(committed_peak_, committed_device_bytes());
}

GranuleId ResidencyArena::charge_and_create(MemoryKind kind, Placement placement) {
  const std::uint64_t granule_bytes = memory_.granule_bytes();
  if (placement == Placement::device) expect_in_budget(kind, granule_bytes);
  const std::optional<GranuleId> granule = memory_.create(placement);
  if (!granule) throw_exhausted(kind, placement, granule_bytes);
  charge(kind, placement, granule_bytes);
  return *granule;
}

void ResidencyArena::throw_exhausted(MemoryKind kind, Placement placement, std::size_t bytes) const {
  const std::string hint = "close other programs that use this memory, or ask for a smaller context (-c)";
  if (placement == Placement::host)
    throw PinnedMemoryError(
        fmt::format("page-locked host memory was refused: {} bytes for {}, behind {} bytes that were given", bytes,
                    memory_kind_name(kind), committed_in(placement)),
        "raise the limits on locked memory (ulimit -l, the container's memory), or " + hint);
  const MemoryInfo info = memory_.info();
  const bool on_device = placement == Placement::device;
  throw DeviceError(fmt::format("the {} has no {} bytes left for {} ({} bytes committed so far{})",
                                on_device ? "device" : "host", bytes, memory_kind_name(kind), committed_in(placement),
                                on_device && info.free_bytes ? fmt::format(", {} free", *info.free_bytes) : ""),
                    hint);
}

void ResidencyArena::destroy_and_refund(GranuleId granule, MemoryKind kind, Placement placement) {
  memory_.destroy(granule);
  const std::uint64_t granule_bytes = memory_.granule_bytes();
  committed_[static_cast<std::size_t>(kind)] -= granule_bytes;
  placed_[static_cast<std::size_t>(placement)] -= granule_bytes;
}

}  // namespace genai
