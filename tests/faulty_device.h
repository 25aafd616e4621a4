// faulty_device.h - a host device that hands out memory through a FaultyMemory.
#pragma once
#include <memory>
#include <string>

#include "engine/host/host_device.h"
#include "tests/faulty_memory.h"

namespace genai::test {

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(const HostDeviceOptions& options) : device_(options), memory_(device_.memory()) {}
  std::string name() const override { return device_.name(); }
  FaultyMemory& memory() override { return memory_; }
  Kernels& kernels() override { return device_.kernels(); }
  std::unique_ptr<Stream> create_stream() override { return device_.create_stream(); }
  std::unique_ptr<Event> create_event() override { return device_.create_event(); }

 private:
  HostDevice device_;
  FaultyMemory memory_;
};

}  // namespace genai::test
