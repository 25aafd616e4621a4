#include "engine/host/host_device.h"

#include <unistd.h>

#include <algorithm>

#include "engine/host/host_limits.h"
#include "engine/host/host_row_server.h"
#include "engine/host/host_stream.h"

namespace genai {

HostDevice::HostDevice(const HostDeviceOptions& options)
    : schedule_(std::make_shared<HostSchedule>(options.seed)),
      memory_({options.granule_bytes, options.capacity_bytes, options.pinned_capacity_bytes},
              schedule_->open_captures()),
      threads_(options.threads == 0 ? default_thread_count().count : options.threads, options.spin_time),
      kernels_(threads_, options.math == nullptr ? best_host_math() : *options.math) {}

// Queued work uses the memory and the kernels, so it runs while they are here.
HostDevice::~HostDevice() {
  try {
    const HostSchedule::Lock lock = schedule_->lock();
    schedule_->run_all();
  } catch (...) {  // a destructor has nobody to tell
  }
}

std::string HostDevice::name() const {
  const int count = threads_.thread_count();
  return "host (" + std::to_string(count) + (count == 1 ? " thread)" : " threads)");
}

std::unique_ptr<Stream> HostDevice::create_stream() { return std::make_unique<HostStream>(schedule_, memory_); }
std::unique_ptr<Event> HostDevice::create_event() { return std::make_unique<HostEvent>(schedule_); }

std::unique_ptr<RowServer> HostDevice::serve_rows(const ExchangeWord* request, const RowServerLimits& limits) {
  return std::make_unique<HostRowServer>(threads_, kernels_.math(), request, limits);
}

std::uint64_t HostDevice::ahead_bytes() const { return HostRowServer::ahead_bytes(threads_.thread_count()); }

// Of the last cache, which others use too: as measured on 16 cores of one with 300 MiB.
std::uint64_t HostDevice::cache_bytes() const {
  constexpr double kOwnShare = 0.4;
#ifdef _SC_LEVEL3_CACHE_SIZE
  return static_cast<std::uint64_t>(kOwnShare * static_cast<double>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE))));
#else
  return 0;
#endif
}

}  // namespace genai
