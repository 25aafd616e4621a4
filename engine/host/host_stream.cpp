#include "engine/host/host_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "engine/error.h"

namespace genai {

// A capture that is open, or was: events recorded in it keep it.
struct HostEvent::Capture {
  HostStream* origin;                // null once closed
  std::vector<HostStream*> streams;  // the origin and those that joined
  WorkGraph graph;
};

namespace {

using Nodes = std::vector<std::uint32_t>;

// Calls visit(piece, offset of the piece) for the bytes from `address` on, wherever they lie.
template <class Visit>
void for_each_piece(const HostMemory& memory, const char* call, std::uint64_t address, std::size_t bytes,
                    const Visit& visit) {
  if (!memory.is_mapped(address, bytes))
    throw DeviceError(fmt::format("{} touches {} bytes at 0x{:x}, where not all is mapped", call, bytes, address),
                      "this is a bug in genai: memory was unmapped too early, or never mapped");
  for (std::size_t offset = 0; offset < bytes;) {
    const std::span<std::byte> piece = memory.bytes_at(address + offset, bytes - offset);
    visit(piece, offset);
    offset += piece.size();
  }
}

Nodes united(const Nodes& left, const Nodes& right) {
  Nodes both;
  std::set_union(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(both));
  return both;
}

// Whether following dependencies back from `ends` meets every node.
bool reaches_all(const WorkGraph& graph, const Nodes& ends) {
  std::vector<bool> met(graph.nodes.size(), false);
  for (const std::uint32_t end : ends) met[end] = true;
  for (std::size_t node = graph.nodes.size(); node-- > 0;) {
    if (!met[node]) return false;
    for (const std::uint32_t dependency : graph.nodes[node].dependencies) met[dependency] = true;
  }
  return true;
}

constexpr const char* kCaptureHint = "end the capture first";

}  // namespace

void HostEvent::synchronize() {
  const HostSchedule::Lock lock = schedule_->lock();
  if (capture_ != nullptr)
    throw Error("Event::synchronize of an event recorded inside a capture: nothing has run that it could wait for",
                "record it again after the graph was launched");
  if (point_ != nullptr && !schedule_->is_eager()) schedule_->run_until_reached(*point_);
}

double HostEvent::seconds_since(Event& earlier) {
  auto* const begin = dynamic_cast<HostEvent*>(&earlier);
  GENAI_EXPECT(begin != nullptr && begin->schedule_ == schedule_, "an event of another device");
  begin->synchronize();
  synchronize();
  const HostSchedule::Lock lock = schedule_->lock();
  if (point_ == nullptr || begin->point_ == nullptr)
    throw Error("the time to or from an event that no stream has recorded", "record both events first");
  return std::chrono::duration<double>(point_->reached_at - begin->point_->reached_at).count();
}

HostGraph::HostGraph(std::shared_ptr<HostSchedule> schedule, std::shared_ptr<const WorkGraph> work)
    : schedule_(std::move(schedule)), work_(std::move(work)) {
  for (const WorkGraph::Node& node : work_->nodes) operation_count_ += node.work ? 1 : 0;
}

HostStream::HostStream(std::shared_ptr<HostSchedule> schedule, const HostMemory& memory)
    : schedule_(std::move(schedule)), memory_(memory) {
  const HostSchedule::Lock lock = schedule_->lock();
  if (!schedule_->is_eager()) queue_ = schedule_->add_queue();
}

HostStream::~HostStream() {
  try {
    const HostSchedule::Lock lock = schedule_->lock();
    if (capture_ != nullptr && capture_->origin == this) close(*capture_);
    if (capture_ != nullptr) std::erase(capture_->streams, this);
    if (queue_ != nullptr) schedule_->remove_queue(queue_);
  } catch (...) {  // a destructor has nobody to tell
  }
}

std::uint32_t HostStream::add_node(std::function<void()> work) {
  const auto node = static_cast<std::uint32_t>(capture_->graph.nodes.size());
  Nodes own{node};
  capture_->graph.nodes.push_back({std::move(work), last_nodes_});
  last_nodes_ = std::move(own);
  return node;
}

void HostStream::enqueue(std::function<void()> work) {
  {
    const HostSchedule::Lock lock = schedule_->lock();
    if (capture_ != nullptr) {
      add_node(std::move(work));
      return;
    }
    if (queue_ != nullptr) {
      auto single = std::make_shared<WorkGraph>();
      single->nodes.push_back({std::move(work), {}});
      schedule_->push(*queue_, std::move(single), nullptr, nullptr);
      return;
    }
  }
  work();
}

void HostStream::upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([&memory = memory_, destination, source, bytes] {
    for_each_piece(memory, "upload", destination.address(), bytes, [&](std::span<std::byte> to, std::size_t offset) {
      std::memcpy(to.data(), static_cast<const std::byte*>(source) + offset, to.size());
    });
  });
}

void HostStream::download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([&memory = memory_, destination, source, bytes] {
    for_each_piece(memory, "download", source.address(), bytes, [&](std::span<std::byte> from, std::size_t offset) {
      std::memcpy(static_cast<std::byte*>(destination) + offset, from.data(), from.size());
    });
  });
}

void HostStream::copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([&memory = memory_, destination, source, bytes] {
    for_each_piece(memory, "copy", destination.address(), bytes, [&](std::span<std::byte> to, std::size_t begin) {
      for_each_piece(
          memory, "copy", source.address() + begin, to.size(),
          [&](std::span<std::byte> from, std::size_t offset) { std::memcpy(&to[offset], from.data(), from.size()); });
    });
  });
}

void HostStream::fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([&memory = memory_, destination, bytes] {
    for_each_piece(memory, "fill_zero", destination.address(), bytes,
                   [](std::span<std::byte> to, std::size_t) { std::memset(to.data(), 0, to.size()); });
  });
}

HostEvent& HostStream::own_event(Event& event) const {
  auto* const own = dynamic_cast<HostEvent*>(&event);
  GENAI_EXPECT(own != nullptr && own->schedule_ == schedule_, "an event of another device");
  return *own;
}

void HostStream::record(Event& event) {
  HostEvent& own = own_event(event);
  const HostSchedule::Lock lock = schedule_->lock();
  own.capture_ = capture_;
  own.nodes_ = last_nodes_;
  own.point_ = nullptr;
  if (capture_ != nullptr) return;
  own.point_ = std::make_shared<SchedulePoint>();
  if (queue_ != nullptr) {
    schedule_->push(*queue_, nullptr, nullptr, own.point_);
  } else {
    own.point_->reach();
  }
}

void HostStream::wait(Event& event) {
  HostEvent& own = own_event(event);
  const HostSchedule::Lock lock = schedule_->lock();
  if (own.capture_ != nullptr) {
    if (own.capture_->origin == nullptr)
      throw Error("wait for an event recorded inside a capture that has ended", "record it again after the launch");
    if (capture_ == nullptr) {
      join(own.capture_, own.nodes_);
    } else if (capture_ == own.capture_) {
      last_nodes_ = united(last_nodes_, own.nodes_);
    } else {
      throw Error("a capture waits for an event of another capture", kCaptureHint);
    }
  } else if (own.point_ != nullptr) {
    if (capture_ != nullptr)
      throw Error("a capture waits for an event recorded outside of it",
                  "wait before begin_capture, or record the event inside the capture");
    if (queue_ != nullptr) schedule_->push(*queue_, nullptr, own.point_, nullptr);
  }
}

// The stream's first node does nothing, but must be met when looking back from the end of the capture: so a stream that
// is not joined back is noticed even if it did no work.
void HostStream::join(const std::shared_ptr<Capture>& capture, const std::vector<std::uint32_t>& nodes) {
  capture_ = capture;
  last_nodes_ = nodes;
  capture_->streams.push_back(this);
  add_node({});
}

void HostStream::begin_capture() {
  const HostSchedule::Lock lock = schedule_->lock();
  if (capture_ != nullptr) throw Error("begin_capture on a stream that is being captured", kCaptureHint);
  capture_ = std::make_shared<Capture>(Capture{this, {this}, {}});
  last_nodes_.clear();
  ++schedule_->open_captures();
}

void HostStream::close(Capture& capture) {
  --capture.origin->schedule_->open_captures();
  capture.origin = nullptr;
  // Each stream gives up its share of the capture, the last one possibly all of it.
  for (HostStream* const stream : std::exchange(capture.streams, {})) {
    stream->last_nodes_.clear();
    stream->capture_ = nullptr;
  }
}

std::unique_ptr<Graph> HostStream::end_capture() {
  const HostSchedule::Lock lock = schedule_->lock();
  if (capture_ == nullptr) throw Error("end_capture without begin_capture", "call begin_capture on this stream first");
  if (capture_->origin != this)
    throw Error("end_capture on a stream that joined the capture of another one",
                "end the capture on the stream that began it");
  const std::shared_ptr<Capture> capture = capture_;
  const std::vector<std::uint32_t> ends = std::move(last_nodes_);
  close(*capture);
  if (!reaches_all(capture->graph, ends))
    throw Error("a stream joined the capture and was not joined back",
                "record an event on it after its last operation and let the capturing stream wait for that event");
  return std::unique_ptr<Graph>(new HostGraph(schedule_, std::make_shared<const WorkGraph>(std::move(capture->graph))));
}

void HostStream::launch(Graph& graph) {
  auto* const own = dynamic_cast<HostGraph*>(&graph);
  GENAI_EXPECT(own != nullptr && own->schedule_ == schedule_, "a graph of another device");
  {
    const HostSchedule::Lock lock = schedule_->lock();
    if (capture_ != nullptr) throw Error("launch of a graph inside a capture", kCaptureHint);
    if (queue_ != nullptr) {
      auto done = std::make_shared<SchedulePoint>();
      schedule_->push(*queue_, own->work_, std::exchange(own->last_launch_, done), done);
      return;
    }
  }
  for (const WorkGraph::Node& node : own->work_->nodes)
    if (node.work) node.work();
}

void HostStream::synchronize() {
  const HostSchedule::Lock lock = schedule_->lock();
  if (capture_ != nullptr)
    throw Error("synchronize of a stream that is being captured: nothing has run that it could wait for", kCaptureHint);
  if (queue_ != nullptr) schedule_->run_until_empty(*queue_);
}

}  // namespace genai
