// host_memory.h - VirtualMemory on a machine without a device: a reserved range is address space without access, map
// puts anonymous memory there, on huge pages where a granule is one, and unmap moves it elsewhere with its content. So
// one granule can change its address, a slot without backing faults, and a destroyed granule costs nothing.
// Anonymous memory and not a memory file, because most kernels give huge pages to the former only.
// Changes come from one thread at a time. is_mapped and bytes_at may be asked from any thread.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "engine/device/virtual_memory.h"

namespace genai {

struct HostMemoryOptions {
  std::size_t granule_bytes = std::size_t{2} << 20;
  std::optional<std::uint64_t> capacity_bytes{};         // of Placement::device; nothing: what the machine has
  std::optional<std::uint64_t> pinned_capacity_bytes{};  // of Placement::host, likewise
};

// Invariants:
// M1 The bytes of a granule are at one address at any time: its slot, or a parking place of its own while it is mapped
//    nowhere. Before it is mapped for the first time it has none, is promised (room is kept for it), and is all zeros;
//    the system finds pages for it when they are touched.
// M2 Granules mapped for the first time side by side become one kernel mapping, of which a process may have about
//    65,000. A granule that was moved stays a mapping of its own.
// M3 Every slot of a reserved range is either the mapping of exactly one living granule or has no access rights, also
//    while a granule moves: no other mapping of the process can get in between.
// M4 The bytes of Placement::pageable are at other addresses than the slot's, in a second range of the same size, as on
//    a device that cannot read them: kernels fault there, copies and the host are told where to find them (bytes_at).
class HostMemory final : public VirtualMemory {
 public:
  // `open_captures`: while it is not 0, create, destroy, map and unmap throw. It must outlive this object.
  HostMemory(const HostMemoryOptions& options, const std::atomic<int>& open_captures);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::size_t granule_bytes() const override { return granule_bytes_; }
  MemoryInfo info() const override;
  DevicePtr<std::byte> reserve(std::size_t bytes) override;
  // REQUIRES: begin and bytes are those of one reserve.
  void release(DevicePtr<std::byte> begin, std::size_t bytes) override;
  std::optional<GranuleId> create(Placement placement) override;
  void destroy(GranuleId granule) override;
  void map(DevicePtr<std::byte> slot, GranuleId granule) override;
  void unmap(DevicePtr<std::byte> slot) override;
  std::optional<DevicePtr<std::byte>> allocate(Placement placement, std::size_t bytes) override;
  void free(DevicePtr<std::byte> begin) override;
  std::byte* host_view(DevicePtr<std::byte> address) override;

  // The bytes from `address` on, `bytes` at most, as far as they lie together; none where nothing is mapped.
  std::span<std::byte> bytes_at(std::uint64_t address, std::size_t bytes) const;
  bool is_mapped(std::uint64_t address, std::size_t bytes) const;

 private:
  struct Granule {
    Placement placement;
    std::uint64_t address;  // of its bytes; 0: it has none yet
    bool is_mapped;         // the address is its slot's, not a parking place
  };
  struct Reservation {
    std::size_t bytes;
    std::uint64_t pageable;  // where its slots have the bytes of pageable granules; 0: there were none yet
  };
  struct Backing {  // of a slot, or an allocation of its own
    GranuleId granule;
    Placement placement;
    std::uint64_t address;  // of the bytes
    std::size_t bytes;
  };
  struct Found {
    std::uint64_t address = 0;  // of the byte asked for; 0: nothing is there
    std::size_t bytes = 0;      // of the same backing, from there on
  };

  void refuse_during_capture(const char* call) const;
  Granule& require_granule(GranuleId id);
  bool has_room(Placement placement, std::size_t bytes);
  bool machine_has_room(std::size_t bytes);
  std::uint64_t& used_bytes(Placement placement) { return used_bytes_[static_cast<std::size_t>(placement)]; }
  std::uint64_t place_of(std::uint64_t slot, Placement placement);
  MemoryInfo info_of_machine() const;
  std::uint64_t find_addresses(std::size_t bytes) const;
  bool move(std::uint64_t from, std::uint64_t to);
  bool map_memory(std::uint64_t address, std::size_t bytes);
  bool map_nothing(std::uint64_t address);
  // REQUIRES: mapped_mutex_ is held.
  Found find(std::uint64_t address) const;
  static void unmap_allocation(std::uint64_t begin, const Backing& backing);

  const std::size_t granule_bytes_;
  const std::optional<std::uint64_t> capacity_bytes_;
  const std::optional<std::uint64_t> pinned_capacity_bytes_;
  const std::atomic<int>& open_captures_;
  std::uint64_t next_id_ = 1;
  std::array<std::uint64_t, kPlacementCount> used_bytes_{};  // by placement
  std::uint64_t promised_count_ = 0;                         // granules that have no memory yet
  std::uint64_t room_bytes_ = 0;                         // what may still be created before the machine is asked again
  std::unordered_map<std::uint64_t, Granule> granules_;  // by id
  std::map<std::uint64_t, Reservation> reserved_;        // by begin
  mutable std::mutex mapped_mutex_;                      // of the two below
  std::map<std::uint64_t, Backing> mapped_;              // by slot
  std::map<std::uint64_t, Backing> allocated_;           // by begin
};

}  // namespace genai
