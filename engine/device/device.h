// device.h - what a backend hands out. The engine talks to hardware through this and nothing else.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/kernels.h"
#include "engine/device/stream.h"
#include "engine/device/virtual_memory.h"

namespace genai {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual VirtualMemory& memory() = 0;
  virtual Kernels& kernels() = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  // Device memory that the backend itself may take for so many graphs, each of at most so many operations: no call of
  // VirtualMemory sees it, so a plan keeps it free. 0: graphs lie in host memory.
  virtual std::uint64_t graph_reserve_bytes(std::size_t graph_count, std::size_t operation_count) const = 0;
};

}  // namespace genai
