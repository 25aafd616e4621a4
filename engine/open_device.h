// open_device.h - from a device's name to a Device. The only part of the engine that knows which backends were built
// in. What was chosen for the caller (a fallback, a number of threads) is said in words, for the report.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/device/device.h"

namespace genai {

enum class Backend {
  automatic,  // CUDA where there is a device, else the host
  host,
  cuda,
};

struct DeviceRequest {
  Backend backend = Backend::automatic;
  int cuda_ordinal = 0;
  int threads = 0;              // of the host; 0: as many as this process may keep busy
  std::string instruction_set;  // of the host: "scalar", "avx2", "avx512", "amx"; empty: the fastest that runs here
};

// What a device reads from `bytes` of its memory from `begin` on, in 10^9 bytes a second; takes a few milliseconds and
// no memory. Nothing where that is too little memory to tell from what the device's cache holds.
using ReadProbe =
    std::function<std::optional<double>(Stream& stream, DevicePtr<const std::byte> begin, std::uint64_t bytes)>;

struct OpenedDevice {
  std::unique_ptr<Device> device;
  // Computes rows that stay in host memory; null where `device` is the host itself.
  std::unique_ptr<Device> host_device;
  Backend backend = Backend::host;  // never automatic
  int threads = 0;                  // of the host
  std::string threads_reason;
  std::string instruction_set;                        // of the kernels that run on host cores
  std::optional<int> sm_count;                        // of a GPU
  std::string driver;                                 // of a GPU: the CUDA version it supports, like "13.0"
  ReadProbe measure_read_gbps;                        // of a GPU
  std::optional<std::uint64_t> host_available_bytes;  // for weights that stay in host memory
  std::string fallback_reason;  // why automatic ended on the host; empty where no GPU could be had by design
};

// Throws DeviceError where the device asked for cannot be had, UsageError for an instruction set that is not known or
// not available here.
OpenedDevice open_device(const DeviceRequest& request);

}  // namespace genai
