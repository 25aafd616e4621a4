// virtual_memory.h - addresses and backing, apart from each other. A range of addresses is reserved once; physical
// granules are created, mapped into it, unmapped, destroyed. A reserved address without backing faults when touched.
// One thread at a time; the arena serialises.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/device/device_ptr.h"

namespace genai {

enum class Placement {
  device,    // the memory next to the device's compute units
  host,      // page-locked host memory that the device reads over its link, in the same range of addresses
  pageable,  // host memory that is not page-locked: touched by the host and by copies of a stream, never by a kernel
};

inline constexpr int kPlacementCount = 3;

enum class GranuleId : std::uint64_t {};

struct MemoryInfo {
  std::optional<std::uint64_t> total_bytes;  // nothing: the device does not say
  std::optional<std::uint64_t> free_bytes;
};

class VirtualMemory {
 public:
  virtual ~VirtualMemory() = default;

  // A power of two; sizes and addresses of everything below are multiples of it.
  virtual std::size_t granule_bytes() const = 0;
  virtual MemoryInfo info() const = 0;

  // Throws DeviceError when the address space is exhausted.
  virtual DevicePtr<std::byte> reserve(std::size_t bytes) = 0;
  // REQUIRES: nothing is mapped in the range.
  virtual void release(DevicePtr<std::byte> begin, std::size_t bytes) = 0;

  // Nothing when that memory is exhausted. New granules read as zeros.
  virtual std::optional<GranuleId> create(Placement placement) = 0;
  // REQUIRES: not mapped.
  virtual void destroy(GranuleId granule) = 0;

  // REQUIRES: the slot is reserved and empty, the granule is not mapped. Throws Error during capture, as do unmap,
  // create and destroy.
  virtual void map(DevicePtr<std::byte> slot, GranuleId granule) = 0;
  // REQUIRES: every reader of the slot has passed an event (residency invariant R4).
  virtual void unmap(DevicePtr<std::byte> slot) = 0;

  // An ordinary allocation, backed and zero at once, without granules: addresses aligned to 256 bytes. Nothing when
  // that memory is exhausted. Throws Error during capture, as does free.
  virtual std::optional<DevicePtr<std::byte>> allocate(Placement placement, std::size_t bytes) = 0;
  // REQUIRES: allocate gave `begin`; every reader has passed an event.
  virtual void free(DevicePtr<std::byte> begin) = 0;

  // Where the host may read and write the same bytes, or null where it may not. Stays valid until unmap or free.
  virtual std::byte* host_view(DevicePtr<std::byte> address) = 0;
};

}  // namespace genai
