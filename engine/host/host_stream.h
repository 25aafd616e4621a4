// host_stream.h - Stream, Event and Graph on the host. Without a seed an operation runs at once in the calling thread;
// with one it is queued, and whoever waits runs the queues of all streams in an order drawn from the seed
// (host_schedule.h). One thread per stream; streams of one capture may belong to several threads.
//
// A stream is in one of three states:
//   running    operations run (or are queued)
//   capturing  begin_capture was called: operations become nodes of the capture
//   joined     the stream waited for an event recorded inside a capture: its operations become nodes of that capture
// begin_capture: running -> capturing. wait: running -> joined. end_capture and the end of the capturing stream's life
// take it and all that joined back to running. Invariants:
// S1 An operation of a capture depends on the last node of its stream and on the events that its stream waited for
//    since, and on nothing else.
// S2 While any capture is open, open_captures of the schedule is not 0, and memory calls throw.
// S3 A refused call changes nothing: the capture can go on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device/stream.h"
#include "engine/host/host_memory.h"
#include "engine/host/host_schedule.h"

namespace genai {

class HostStream;

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::shared_ptr<HostSchedule> schedule) : schedule_(std::move(schedule)) {}
  void synchronize() override;
  double seconds_since(Event& earlier) override;

 private:
  friend class HostStream;
  struct Capture;

  const std::shared_ptr<HostSchedule> schedule_;
  // Where the event was last recorded: outside a capture, inside one (then after these nodes), or nowhere.
  std::shared_ptr<SchedulePoint> point_;
  std::shared_ptr<Capture> capture_;
  std::vector<std::uint32_t> nodes_;
};

class HostGraph final : public Graph {
 public:
  std::size_t node_count() const override { return operation_count_; }
  std::optional<std::uint64_t> device_bytes() const override { return 0; }

 private:
  friend class HostStream;
  HostGraph(std::shared_ptr<HostSchedule> schedule, std::shared_ptr<const WorkGraph> work);

  const std::shared_ptr<HostSchedule> schedule_;
  const std::shared_ptr<const WorkGraph> work_;
  std::size_t operation_count_ = 0;
  std::shared_ptr<SchedulePoint> last_launch_;  // launches of one graph run one after the other, whatever their streams
};

class HostStream final : public Stream {
 public:
  // `memory` is asked whether the ranges of transfers are mapped; it must outlive the stream's work.
  HostStream(std::shared_ptr<HostSchedule> schedule, const HostMemory& memory);
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // How kernels and transfers put work: `work` owns copies of its arguments and can run many times (in a graph).
  // Without a seed an exception of the work leaves here; with one, the next synchronize throws it as a DeviceError.
  void enqueue(std::function<void()> work);

  void upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) override;
  void download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) override;
  void copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) override;
  void fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(Graph& graph) override;
  void synchronize() override;

 private:
  using Capture = HostEvent::Capture;

  HostEvent& own_event(Event& event) const;
  std::uint32_t add_node(std::function<void()> work);
  void join(const std::shared_ptr<Capture>& capture, const std::vector<std::uint32_t>& nodes);
  static void close(Capture& capture);

  const std::shared_ptr<HostSchedule> schedule_;
  const HostMemory& memory_;
  std::shared_ptr<HostSchedule::Queue> queue_;  // null without a seed
  std::shared_ptr<Capture> capture_;            // null while running
  std::vector<std::uint32_t> last_nodes_;       // what the next node of this stream depends on; ascending
};

}  // namespace genai
