// cuda_memory.h - VirtualMemory on the driver's virtual memory calls: device granules, and page-locked host granules
// that the device and the host see at one and the same address. Owns every granule, reservation and allocation that is
// left when it is destroyed. One thread at a time, but for placement_run and transfer_address, which any thread may
// call.
//
// Pageable granules are another VirtualMemory's. The device sees nothing at their slots; the host and the driver's
// copies go to the bytes themselves, which lie together as the slots do.
//
// A new granule is cleared when it is first mapped, since only then it has an address: that is where "reads as zeros"
// comes from.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/cuda_capture.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "engine/device/virtual_memory.h"

namespace genai::cuda {

class CudaMemory final : public VirtualMemory {
 public:
  // `captures` outlives this object.
  CudaMemory(const DriverApi& driver, int ordinal, const ActiveCaptures& captures,
             const PageableMemorySource& pageable);
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::size_t granule_bytes() const override { return granule_bytes_; }
  MemoryInfo info() const override;
  DevicePtr<std::byte> reserve(std::size_t bytes) override;
  void release(DevicePtr<std::byte> begin, std::size_t bytes) override;
  std::optional<GranuleId> create(Placement placement) override;
  void destroy(GranuleId granule) override;
  void map(DevicePtr<std::byte> slot, GranuleId granule) override;
  void unmap(DevicePtr<std::byte> slot) override;
  std::optional<DevicePtr<std::byte>> allocate(Placement placement, std::size_t bytes) override;
  void free(DevicePtr<std::byte> begin) override;
  std::byte* host_view(DevicePtr<std::byte> address) override;

  // How many of `bytes` from `address` on lie in one kind of memory: the driver's copies must not cross from device to
  // host granules. All of them for an address outside every reservation.
  std::size_t placement_run(std::uint64_t address, std::size_t bytes) const;
  // Where a copy finds the bytes of `address`: there, but for pageable granules.
  std::uint64_t transfer_address(std::uint64_t address) const;

 private:
  struct Granule {
    CUmemGenericAllocationHandle handle;
    GranuleId pageable;  // of the other memory, instead of a handle
    Placement placement;
    bool cleared;
    std::uint64_t slot;  // 0: not mapped
  };

  struct Slot {
    std::uint64_t granule;
    Placement placement;
    std::uint64_t bytes_at;  // for the host and copies
  };

  struct Reservation {
    std::uint64_t end;
    DevicePtr<std::byte> pageable;  // in the other memory, as large; null: not needed yet
  };

  struct Allocation {
    std::size_t bytes;
    Placement placement;
  };

  CUmemAllocationProp properties(Placement placement) const;
  std::optional<GranuleId> create_pageable();
  DevicePtr<std::byte> pageable_slot(std::uint64_t slot);
  void clear(std::uint64_t begin, std::size_t bytes);
  void expect_no_capture(const char* operation) const;
  bool is_reserved(std::uint64_t slot) const;
  Granule& require_granule(GranuleId granule);

  const DriverApi driver_;
  const int ordinal_;
  const ActiveCaptures& captures_;
  std::unique_ptr<VirtualMemory> pageable_;  // null: there is none
  int host_node_ = 0;
  std::size_t granule_bytes_ = 0;
  cudaStream_t clear_stream_ = nullptr;
  std::uint64_t next_granule_ = 1;
  std::unordered_map<std::uint64_t, Granule> granules_;
  std::map<std::uint64_t, Reservation> reservations_;  // by begin
  std::map<std::uint64_t, Allocation> allocations_;    // by begin
  mutable std::mutex slots_mutex_;
  std::unordered_map<std::uint64_t, Slot> slots_;  // by address
};

}  // namespace genai::cuda
