// host_memory.h - VirtualMemory on a machine without a device: granules are pieces of one memory file per placement, a
// reserved range is address space without access, map puts a granule's piece there. So one granule can change its
// address, a slot without backing faults, and a destroyed granule costs nothing.
// Reserving and the four granule calls: one thread at a time. is_mapped may be asked from any thread.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "engine/device/virtual_memory.h"

namespace genai {

struct HostMemoryOptions {
  std::size_t granule_bytes = std::size_t{2} << 20;
  std::optional<std::uint64_t> capacity_bytes;  // of Placement::device; nothing: what the machine has
};

// Invariants:
// M1 A piece of a file belongs to at most one living granule, and reads as zeros when it belongs to none.
// M2 The lowest free piece is given out first: granules created in a row lie side by side in the file, and mapped side
//    by side they become one kernel mapping, of which a process may have about 65,000.
// M3 Every slot of a reserved range is either the mapping of exactly one living granule or has no access rights.
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
  std::byte* host_view(DevicePtr<std::byte> address) override;

  bool is_mapped(std::uint64_t address, std::size_t bytes) const;

 private:
  // A memory file and its free pieces.
  class Pieces {
   public:
    Pieces(const char* name, std::size_t piece_bytes);
    ~Pieces();
    Pieces(const Pieces&) = delete;
    Pieces& operator=(const Pieces&) = delete;
    int file() const { return file_; }
    // Nothing when the file cannot grow.
    std::optional<std::uint64_t> take();
    void give_back(std::uint64_t index);

   private:
    const std::size_t piece_bytes_;
    int file_ = -1;
    std::uint64_t piece_count_ = 0;
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> free_;
  };

  struct Granule {
    Placement placement;
    std::uint64_t piece;
    std::uint64_t slot;  // address, 0: not mapped
  };

  Pieces& pieces(Placement placement) { return placement == Placement::device ? device_pieces_ : host_pieces_; }
  void refuse_during_capture(const char* call) const;
  Granule& require_granule(GranuleId id);
  bool machine_has_room();
  bool commit(const Granule& granule);
  bool map_piece(std::uint64_t address, const Granule& granule);
  bool map_nothing(std::uint64_t address);

  const std::size_t granule_bytes_;
  const std::optional<std::uint64_t> capacity_bytes_;
  const std::atomic<int>& open_captures_;
  Pieces device_pieces_;
  Pieces host_pieces_;
  std::uint64_t window_ = 0;  // one reserved slot through which new granules get their memory
  std::uint64_t next_id_ = 1;
  std::uint64_t device_granule_count_ = 0;
  std::uint64_t room_bytes_ = 0;                         // what may still be created before the machine is asked again
  std::unordered_map<std::uint64_t, Granule> granules_;  // by id
  std::map<std::uint64_t, std::size_t> reserved_;        // begin -> bytes
  mutable std::mutex mapped_mutex_;                      // guards mapped_
  std::map<std::uint64_t, GranuleId> mapped_;            // slot -> granule
};

}  // namespace genai
