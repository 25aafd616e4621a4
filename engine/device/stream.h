// stream.h - order of work on a device. Calls enqueue and return; work of one stream runs in order, work of two streams
// in any order that events allow. One thread per stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/device/device_ptr.h"

namespace genai {

// A point in a stream. Recording again moves it.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the host until the recorded point has been passed; returns at once if never recorded.
  virtual void synchronize() = 0;
  // Seconds from the point where `earlier` was last recorded to this event's, by the device's clock. Blocks until both
  // have been passed. Throws Error where one of them was never recorded, or was inside a capture.
  virtual double seconds_since(Event& earlier) = 0;
};

// A recorded sequence of operations with their arguments frozen by value.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual std::size_t node_count() const = 0;
  // Device memory that went when it was made, beside granules. Nothing where the device cannot tell.
  virtual std::optional<std::uint64_t> device_bytes() const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Host memory must stay valid and unchanged until the stream has passed the copy.
  virtual void upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) = 0;
  virtual void download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) = 0;
  virtual void copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) = 0;
  virtual void fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) = 0;

  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;

  // Until end_capture, operations on this stream are recorded, not run; so are those of a stream that waits for an
  // event recorded inside the capture (it must be joined back by an event before end_capture, else end_capture throws).
  // synchronize, Event::synchronize on such an event, and memory calls throw Error meanwhile.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual void launch(Graph& graph) = 0;

  // Blocks the host until all enqueued work is done. Throws DeviceError if any of it failed.
  virtual void synchronize() = 0;
};

}  // namespace genai
