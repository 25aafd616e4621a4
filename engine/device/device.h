// device.h - what a backend hands out. The engine talks to hardware through this and nothing else.
#pragma once
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
};

}  // namespace genai
