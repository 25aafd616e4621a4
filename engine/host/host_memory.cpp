#include "engine/host/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/error.h"
#include "engine/host/host_limits.h"

namespace genai {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// /proc is read once for so many created bytes.
constexpr std::uint64_t kRoomCheckBytes = std::uint64_t{16} << 20;
#ifndef MREMAP_DONTUNMAP
constexpr int MREMAP_DONTUNMAP = 4;
#endif
constexpr char kMappingHint[] =
    "a process may have sysctl vm.max_map_count mappings, and no more memory than its limits allow (ulimit -v); raise "
    "them, or use larger granules";

std::string reason() { return std::strerror(errno); }
void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

std::size_t checked_granule_bytes(std::size_t bytes) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  GENAI_EXPECT(std::has_single_bit(bytes) && bytes >= page_bytes,
               fmt::format("a granule is a power of two and at least one page ({} bytes), not {}", page_bytes, bytes));
  return bytes;
}

}  // namespace

HostMemory::HostMemory(const HostMemoryOptions& options, const std::atomic<int>& open_captures)
    : granule_bytes_(checked_granule_bytes(options.granule_bytes)),
      capacity_bytes_(options.capacity_bytes),
      pinned_capacity_bytes_(options.pinned_capacity_bytes),
      open_captures_(open_captures) {}

HostMemory::~HostMemory() {
  for (const auto& [begin, range] : reserved_) {
    munmap(pointer(begin), range.bytes);
    if (range.pageable != 0) munmap(pointer(range.pageable), range.bytes);
  }
  for (const auto& [begin, backing] : allocated_) unmap_allocation(begin, backing);
  for (const auto& [id, granule] : granules_)
    if (!granule.is_mapped && granule.address != 0) munmap(pointer(granule.address), granule_bytes_);
}

void HostMemory::refuse_during_capture(const char* call) const {
  if (open_captures_.load(std::memory_order_acquire) != 0)
    throw Error(std::string("memory call during capture: ") + call,
                "create, destroy, map and unmap before begin_capture or after end_capture");
}

MemoryInfo HostMemory::info() const {
  if (capacity_bytes_) {
    const std::uint64_t used = used_bytes_[static_cast<std::size_t>(Placement::device)];
    return {capacity_bytes_, *capacity_bytes_ - std::min(*capacity_bytes_, used)};
  }
  return info_of_machine();
}

// What is promised already is not free, though the system does not know yet.
MemoryInfo HostMemory::info_of_machine() const {
  const HostMemoryLimits limits = host_memory_limits();
  MemoryInfo info{limits.total_bytes, limits.free_bytes};
  if (info.free_bytes) *info.free_bytes -= std::min(*info.free_bytes, promised_count_ * granule_bytes_);
  return info;
}

DevicePtr<std::byte> HostMemory::reserve(std::size_t bytes) {
  GENAI_EXPECT(bytes > 0 && bytes % granule_bytes_ == 0,
               fmt::format("a reserved range is a multiple of {} bytes, not {}", granule_bytes_, bytes));
  const std::uint64_t begin = find_addresses(bytes);
  if (begin == 0)
    throw DeviceError(fmt::format("cannot reserve {} bytes of address space", bytes),
                      "lower the context length or the number of sequences, or lift the limit on address space "
                      "(ulimit -v)");
  reserved_.emplace(begin, Reservation{bytes, 0});
  return DevicePtr<std::byte>(begin);
}

// Aligned addresses without access; 0 where there are none.
std::uint64_t HostMemory::find_addresses(std::size_t bytes) const {
  // One granule more than asked leaves room to align; what stands out on both sides goes back.
  const std::size_t padded_bytes = bytes + granule_bytes_;
  void* const found = padded_bytes < bytes
                          ? MAP_FAILED
                          : mmap(nullptr, padded_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  const auto address = reinterpret_cast<std::uint64_t>(found);
  const std::uint64_t begin = (address + granule_bytes_ - 1) & ~std::uint64_t{granule_bytes_ - 1};
  const std::uint64_t before_bytes = begin - address;
  if (before_bytes > 0) munmap(found, before_bytes);
  if (before_bytes < granule_bytes_) munmap(pointer(begin + bytes), granule_bytes_ - before_bytes);
  return begin;
}

void HostMemory::release(DevicePtr<std::byte> begin, std::size_t bytes) {
  const auto range = reserved_.find(begin.address());
  GENAI_EXPECT(range != reserved_.end() && range->second.bytes == bytes,
               "release of a range that was not reserved like this");
  {
    const std::lock_guard lock(mapped_mutex_);
    const auto first = mapped_.lower_bound(begin.address());
    GENAI_EXPECT(first == mapped_.end() || first->first >= begin.address() + bytes,
                 "release of a range in which granules are mapped");
  }
  munmap(pointer(begin.address()), bytes);
  if (range->second.pageable != 0) munmap(pointer(range->second.pageable), bytes);
  reserved_.erase(range);
}

// The kernel hands out memory that it does not have and kills the process on first touch, so ask before.
bool HostMemory::machine_has_room(std::size_t bytes) {
  if (room_bytes_ < bytes) {
    const std::uint64_t free_bytes = info_of_machine().free_bytes.value_or(UINT64_MAX);
    room_bytes_ = std::min(free_bytes, std::max<std::uint64_t>(kRoomCheckBytes, bytes));
    if (room_bytes_ < bytes) return false;
  }
  room_bytes_ -= bytes;
  return true;
}

bool HostMemory::has_room(Placement placement, std::size_t bytes) {
  const std::optional<std::uint64_t> capacity = placement == Placement::device ? capacity_bytes_
                                                : placement == Placement::host ? pinned_capacity_bytes_
                                                                               : std::nullopt;
  return (!capacity || used_bytes(placement) + bytes <= *capacity) && machine_has_room(bytes);
}

std::optional<GranuleId> HostMemory::create(Placement placement) {
  refuse_during_capture("create");
  if (!has_room(placement, granule_bytes_)) return std::nullopt;
  const std::uint64_t id = next_id_++;
  granules_.emplace(id, Granule{placement, 0, false});
  ++promised_count_;
  used_bytes(placement) += granule_bytes_;
  return GranuleId{id};
}

// Memory at `address`. The system clears a page when it is touched first, so those who fill memory side by side clear
// it side by side; that there is enough was asked before (machine_has_room).
bool HostMemory::map_memory(std::uint64_t address, std::size_t bytes) {
  if (mmap(pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    return false;
  // Advice: refused where the kernel is built without huge pages, and then small ones do.
  if (granule_bytes_ >= kHugePageBytes) madvise(pointer(address), bytes, MADV_HUGEPAGE);
  return true;
}

// Afterwards the bytes are at `to`; `from` is unchanged or reads as zeros.
bool HostMemory::move(std::uint64_t from, std::uint64_t to) {
  // Page tables move, no byte is copied, and `from` stays a mapping, so that nothing else of this process gets there.
  if (mremap(pointer(from), granule_bytes_, granule_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
             pointer(to)) != MAP_FAILED)
    return true;
  if (errno != EINVAL || !map_memory(to, granule_bytes_)) return false;
  std::memcpy(pointer(to), pointer(from), granule_bytes_);  // Linux before 5.7
  return true;
}

bool HostMemory::map_nothing(std::uint64_t address) {
  return mmap(pointer(address), granule_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

HostMemory::Granule& HostMemory::require_granule(GranuleId id) {
  const auto found = granules_.find(static_cast<std::uint64_t>(id));
  GENAI_EXPECT(found != granules_.end(), "no such granule: never created, or destroyed");
  return found->second;
}

void HostMemory::destroy(GranuleId id) {
  refuse_during_capture("destroy");
  const Granule granule = require_granule(id);
  GENAI_EXPECT(!granule.is_mapped, "destroy of a granule that is mapped");
  if (granule.address == 0)
    --promised_count_;
  else
    munmap(pointer(granule.address), granule_bytes_);
  granules_.erase(static_cast<std::uint64_t>(id));
  used_bytes(granule.placement) -= granule_bytes_;
}

// Where a slot's bytes are. REQUIRES: the slot is reserved.
std::uint64_t HostMemory::place_of(std::uint64_t slot, Placement placement) {
  if (placement != Placement::pageable) return slot;
  auto& [begin, range] = *std::prev(reserved_.upper_bound(slot));
  if (range.pageable == 0) range.pageable = find_addresses(range.bytes);
  if (range.pageable == 0) throw DeviceError("cannot reserve address space for pageable memory", kMappingHint);
  return range.pageable + (slot - begin);
}

void HostMemory::map(DevicePtr<std::byte> slot, GranuleId id) {
  refuse_during_capture("map");
  const std::uint64_t address = slot.address();
  Granule& granule = require_granule(id);
  GENAI_EXPECT(!granule.is_mapped, "map of a granule that is mapped already");
  GENAI_EXPECT(address % granule_bytes_ == 0, fmt::format("slot 0x{:x} is not at the start of a granule", address));
  auto range = reserved_.upper_bound(address);
  GENAI_EXPECT(range != reserved_.begin() && address < std::prev(range)->first + std::prev(range)->second.bytes,
               fmt::format("slot 0x{:x} is not reserved", address));
  const std::lock_guard lock(mapped_mutex_);
  GENAI_EXPECT(!mapped_.contains(address), fmt::format("slot 0x{:x} is not empty", address));
  const std::uint64_t place = place_of(address, granule.placement);
  const auto mapping = mapped_.emplace(address, Backing{id, granule.placement, place, granule_bytes_}).first;
  if (!(granule.address == 0 ? map_memory(place, granule_bytes_) : move(granule.address, place))) {
    const std::string why = reason();
    mapped_.erase(mapping);
    map_nothing(place);
    throw DeviceError("cannot map memory: " + why, kMappingHint);
  }
  if (granule.address == 0)
    --promised_count_;
  else
    munmap(pointer(granule.address), granule_bytes_);
  granule.address = place;
  granule.is_mapped = true;
}

void HostMemory::unmap(DevicePtr<std::byte> slot) {
  refuse_during_capture("unmap");
  const std::uint64_t address = slot.address();
  GENAI_EXPECT(address % granule_bytes_ == 0, fmt::format("slot 0x{:x} is not at the start of a granule", address));
  const std::lock_guard lock(mapped_mutex_);
  const auto mapping = mapped_.find(address);
  GENAI_EXPECT(mapping != mapped_.end(), fmt::format("unmap of slot 0x{:x}, which is empty", address));
  const std::uint64_t place = mapping->second.address;
  const std::uint64_t parking = find_addresses(granule_bytes_);
  const bool is_moved = parking != 0 && move(place, parking);
  if (!is_moved || !map_nothing(place)) {
    const std::string why = reason();
    if (is_moved) move(parking, place);
    if (parking != 0) munmap(pointer(parking), granule_bytes_);
    throw DeviceError("cannot unmap memory: " + why, kMappingHint);
  }
  Granule& granule = require_granule(mapping->second.granule);
  granule.address = parking;
  granule.is_mapped = false;
  mapped_.erase(mapping);
}

std::optional<DevicePtr<std::byte>> HostMemory::allocate(Placement placement, std::size_t bytes) {
  refuse_during_capture("allocate");
  GENAI_EXPECT(bytes > 0, "an allocation of nothing");
  bytes = (bytes + granule_bytes_ - 1) / granule_bytes_ * granule_bytes_;
  if (!has_room(placement, bytes)) return std::nullopt;
  const std::uint64_t begin = find_addresses(bytes);
  const std::uint64_t place = placement == Placement::pageable && begin != 0 ? find_addresses(bytes) : begin;
  const Backing backing{{}, placement, place, bytes};
  if (place == 0 || !map_memory(place, bytes)) {
    if (begin != 0) unmap_allocation(begin, backing);
    return std::nullopt;
  }
  used_bytes(placement) += bytes;
  const std::lock_guard lock(mapped_mutex_);
  allocated_.emplace(begin, backing);
  return DevicePtr<std::byte>(begin);
}

void HostMemory::free(DevicePtr<std::byte> begin) {
  refuse_during_capture("free");
  const std::lock_guard lock(mapped_mutex_);
  const auto allocation = allocated_.find(begin.address());
  GENAI_EXPECT(allocation != allocated_.end(), "free of what was not allocated");
  used_bytes(allocation->second.placement) -= allocation->second.bytes;
  unmap_allocation(begin.address(), allocation->second);
  allocated_.erase(allocation);
}

void HostMemory::unmap_allocation(std::uint64_t begin, const Backing& backing) {
  munmap(pointer(begin), backing.bytes);
  if (backing.address != begin && backing.address != 0) munmap(pointer(backing.address), backing.bytes);
}

HostMemory::Found HostMemory::find(std::uint64_t address) const {
  const std::uint64_t slot = address & ~std::uint64_t{granule_bytes_ - 1};
  if (const auto mapping = mapped_.find(slot); mapping != mapped_.end())
    return {mapping->second.address + (address - slot), granule_bytes_ - (address - slot)};
  const auto after = allocated_.upper_bound(address);
  if (after == allocated_.begin()) return {};
  const auto& [begin, backing] = *std::prev(after);
  if (address - begin >= backing.bytes) return {};
  return {backing.address + (address - begin), backing.bytes - (address - begin)};
}

std::span<std::byte> HostMemory::bytes_at(std::uint64_t address, std::size_t bytes) const {
  const std::lock_guard lock(mapped_mutex_);
  const Found first = find(address);
  std::size_t together = first.bytes;
  while (first.address != 0 && together < bytes) {
    const Found next = find(address + together);
    if (next.address != first.address + together) break;
    together += next.bytes;
  }
  return {static_cast<std::byte*>(pointer(first.address)), std::min(together, bytes)};
}

bool HostMemory::is_mapped(std::uint64_t address, std::size_t bytes) const {
  if (address + bytes < address) return false;
  const std::lock_guard lock(mapped_mutex_);
  while (bytes > 0) {
    const Found found = find(address);
    if (found.address == 0) return false;
    if (found.bytes >= bytes) return true;
    address += found.bytes;
    bytes -= found.bytes;
  }
  return true;
}

std::byte* HostMemory::host_view(DevicePtr<std::byte> address) { return bytes_at(address.address(), 1).data(); }

}  // namespace genai
