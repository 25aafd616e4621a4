// host_device.h - the processor as a Device: the whole contract without special hardware. Complete, so that all of the
// engine runs and is tested on it; with a seed it also runs work in every order that streams and events allow.
// Streams and events must not be used after the device is gone.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/device/device.h"
#include "engine/device/host_cores.h"
#include "engine/host/host_kernels.h"
#include "engine/host/host_memory.h"
#include "engine/host/host_schedule.h"
#include "engine/host/thread_pool.h"

namespace genai {

struct HostDeviceOptions {
  std::size_t granule_bytes = std::size_t{2} << 20;
  std::optional<std::uint64_t> capacity_bytes;                  // of Placement::device; nothing: what the machine has
  std::optional<std::uint64_t> pinned_capacity_bytes;           // of Placement::host, likewise
  std::optional<std::uint64_t> seed;                            // nothing: work runs at once
  int threads = 0;                                              // 0: default_thread_count()
  const HostMath* math = nullptr;                               // null: best_host_math()
  std::chrono::microseconds spin_time = ThreadPool::kSpinTime;  // of threads without work, before they sleep
};

class HostDevice final : public Device, public HostCores {
 public:
  explicit HostDevice(const HostDeviceOptions& options);
  ~HostDevice() override;

  std::string name() const override;
  VirtualMemory& memory() override { return memory_; }
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<Event> create_event() override;
  std::uint64_t graph_reserve_bytes(std::size_t, std::size_t) const override { return 0; }
  std::unique_ptr<RowServer> serve_rows(const ExchangeWord* request, const RowServerLimits& limits) override;
  std::uint64_t ahead_bytes() const override;
  std::uint64_t cache_bytes() const override;

 private:
  const std::shared_ptr<HostSchedule> schedule_;
  HostMemory memory_;
  ThreadPool threads_;
  HostKernels kernels_;
};

}  // namespace genai
