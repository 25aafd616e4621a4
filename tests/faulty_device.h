// faulty_device.h - a device, the host or another one, that hands out its memory through a FaultyMemory, and may say
// that graphs take some.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "engine/host/host_device.h"
#include "tests/faulty_memory.h"

namespace genai::test {

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::unique_ptr<Device> device, std::uint64_t bytes_of_a_graph = 0)
      : device_(std::move(device)), memory_(device_->memory()), bytes_of_a_graph_(bytes_of_a_graph) {}
  explicit FaultyDevice(const HostDeviceOptions& options, std::uint64_t bytes_of_a_graph = 0)
      : FaultyDevice(std::make_unique<HostDevice>(options), bytes_of_a_graph) {}
  std::string name() const override { return device_->name(); }
  FaultyMemory& memory() override { return memory_; }
  Kernels& kernels() override { return device_->kernels(); }
  std::unique_ptr<Stream> create_stream() override { return device_->create_stream(); }
  std::unique_ptr<Event> create_event() override { return device_->create_event(); }
  std::uint64_t graph_reserve_bytes(std::size_t graph_count, std::size_t operation_count) const override {
    operation_count_ = operation_count;
    return device_->graph_reserve_bytes(graph_count, operation_count) + graph_count * bytes_of_a_graph_;
  }
  // What was said last of the operations of a graph.
  std::size_t expected_operations() const { return operation_count_; }

 private:
  std::unique_ptr<Device> device_;
  FaultyMemory memory_;
  const std::uint64_t bytes_of_a_graph_;
  mutable std::size_t operation_count_ = 0;
};

}  // namespace genai::test
