// cuda_memory.h - VirtualMemory on the driver's virtual memory calls: device granules, and page-locked host granules
// that the device and the host see at one and the same address. Owns every granule and reservation that is left when it
// is destroyed. One thread at a time, but for placement_run, which any thread may call.
//
// A new granule is cleared when it is first mapped, since only then it has an address: that is where "reads as zeros"
// comes from.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "cuda/cuda_capture.h"
#include "cuda/cuda_driver.h"
#include "engine/device/virtual_memory.h"

namespace genai::cuda {

class CudaMemory final : public VirtualMemory {
 public:
  // `captures` outlives this object.
  CudaMemory(const DriverApi& driver, int ordinal, const ActiveCaptures& captures);
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
  std::byte* host_view(DevicePtr<std::byte> address) override;

  // How many of `bytes` from `address` on lie in one kind of memory: the driver's copies must not cross from device to
  // host granules. All of them for an address outside every reservation.
  std::size_t placement_run(std::uint64_t address, std::size_t bytes) const;

 private:
  struct Granule {
    CUmemGenericAllocationHandle handle;
    Placement placement;
    bool cleared;
    std::uint64_t slot;  // 0: not mapped
  };

  struct Slot {
    std::uint64_t granule;
    Placement placement;
  };

  CUmemAllocationProp properties(Placement placement) const;
  void expect_no_capture(const char* operation) const;
  bool is_reserved(std::uint64_t slot) const;
  Granule& require_granule(GranuleId granule);

  const DriverApi driver_;
  const int ordinal_;
  const ActiveCaptures& captures_;
  int host_node_ = 0;
  std::size_t granule_bytes_ = 0;
  cudaStream_t clear_stream_ = nullptr;
  std::uint64_t next_granule_ = 1;
  std::unordered_map<std::uint64_t, Granule> granules_;
  std::map<std::uint64_t, std::uint64_t> reservations_;  // begin -> end
  mutable std::mutex slots_mutex_;
  std::unordered_map<std::uint64_t, Slot> slots_;  // by address
};

}  // namespace genai::cuda
