// cuda_device.h - opens an NVIDIA GPU as a Device. That there is none (no driver, no GPU, no such ordinal) is an
// answer, not an error: `problem` says why in words that can be shown to a user. Needs no CUDA header to include.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace genai::cuda {

// Which kernels serve products of quantised matrices with many rows, where the device has both: those of
// matmul_tiles.cu, those of matmul_half_tiles.cu, or for each call the faster ones. The first two take calls of any
// number of rows; they are there to compare bits.
enum class WideProducts { by_cost, by_bytes, by_halves };

struct DeviceTraits {
  int ordinal = 0;
  int driver_version = 0;      // as the driver counts: 13000 is 13.0
  int compute_capability = 0;  // 90 is 9.0; that of this build's kernels where it is lower than the device's
  int sm_count = 0;
  int l2_bytes = 0;
  int shared_bytes_per_block = 0;  // after opting in
  int shared_bytes_per_sm = 0;
  bool has_half_tiles = false;  // kernels of matmul_half_tiles.cu
  WideProducts wide_products = WideProducts::by_cost;
};

struct OpenedDevice {
  std::unique_ptr<Device> device;  // null: see problem
  DeviceTraits traits;
  std::string problem;
  std::string hint;  // what would help against it; may be empty
};

// Where host memory that is not page-locked comes from, in granules of this size: its Placement::host.
using PageableMemorySource = std::function<std::unique_ptr<VirtualMemory>(std::size_t granule_bytes)>;

// Throws DeviceError only when a device is there and fails. Objects that the device hands out must not outlive it.
// Without a source the device has no memory of Placement::pageable.
OpenedDevice open_cuda_device(int ordinal, const PageableMemorySource& pageable = {},
                              WideProducts wide_products = WideProducts::by_cost);

// What the device reads from [begin, begin + bytes) of its memory, in 10^9 bytes a second: the median of five passes.
// Take several times the cache (traits.l2_bytes). `stream` is one of the device's; blocks until done.
double measure_read_gbps(Stream& stream, const DeviceTraits& traits, DevicePtr<const std::byte> begin,
                         std::size_t bytes);

}  // namespace genai::cuda
