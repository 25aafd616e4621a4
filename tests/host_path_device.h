// host_path_device.h - a host Device whose instruction set and thread count the test chooses.
#pragma once
#include <memory>
#include <string>

#include "engine/device/device.h"
#include "engine/host/host_kernels.h"
#include "engine/host/host_memory.h"
#include "engine/host/host_schedule.h"
#include "engine/host/host_stream.h"
#include "engine/host/thread_pool.h"

namespace genai::test {

class HostPathDevice final : public Device {
 public:
  HostPathDevice(const HostMath& math, int thread_count)
      : schedule_(std::make_shared<HostSchedule>(std::nullopt)),
        memory_({std::size_t{1} << 20, std::nullopt}, schedule_->open_captures()),
        pool_(thread_count),
        kernels_(pool_, math) {}

  std::string name() const override { return kernels_.math().name; }
  VirtualMemory& memory() override { return memory_; }
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(schedule_, memory_); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<HostEvent>(schedule_); }
  std::uint64_t graph_reserve_bytes(std::size_t, std::size_t) const override { return 0; }

 private:
  std::shared_ptr<HostSchedule> schedule_;
  HostMemory memory_;
  ThreadPool pool_;
  HostKernels kernels_;
};

}  // namespace genai::test
