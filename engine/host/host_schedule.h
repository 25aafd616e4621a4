// host_schedule.h - the order in which queued work of all streams of one host device runs, when a seed asks for
// something other than at once. Everything that order and events allow may happen: work of other streams runs early or
// late, nodes of a graph interleave with other work, and a wait by the host leaves unrelated work undone. So code that
// forgot to wait gives a wrong answer for some seed.
// One lock guards the schedule and the state of its streams; work runs under it, so it must not call a stream.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

namespace genai {

// A moment in the work of one stream.
struct SchedulePoint {
  bool reached = false;
  std::chrono::steady_clock::time_point reached_at;

  void reach() {
    reached = true;
    reached_at = std::chrono::steady_clock::now();
  }
};

// Work with an order that is only partly fixed. Nodes depend on earlier nodes, so their order is a valid one to run in.
struct WorkGraph {
  struct Node {
    std::function<void()> work;  // empty: stands for order only
    std::vector<std::uint32_t> dependencies;
  };
  std::vector<Node> nodes;
};

class HostSchedule {
 public:
  // What one stream still has to do, in order.
  class Queue;
  using Lock = std::unique_lock<std::mutex>;

  // Without a seed the schedule is eager: callers run work themselves and only use lock and open_captures.
  explicit HostSchedule(std::optional<std::uint64_t> seed);
  ~HostSchedule();
  HostSchedule(const HostSchedule&) = delete;
  HostSchedule& operator=(const HostSchedule&) = delete;

  bool is_eager() const { return !seeded_; }
  Lock lock() { return Lock(mutex_); }
  std::atomic<int>& open_captures() { return open_captures_; }

  // Everything below REQUIRES: the caller holds the lock.
  std::shared_ptr<Queue> add_queue();
  // Runs what is left in it; a failure waits for the next run_until.
  void remove_queue(const std::shared_ptr<Queue>& queue);

  // Each adds one entry to the end of `queue`. It starts when `after` is reached (null: at once) and all before it in
  // the queue are done; when its nodes have run, `done` (may be null) becomes reached.
  void push(Queue& queue, std::shared_ptr<const WorkGraph> graph, std::shared_ptr<SchedulePoint> after,
            std::shared_ptr<SchedulePoint> done);

  // Runs work until the point is reached, or the queue is empty, and then possibly more. Throws DeviceError if any work
  // has failed since the last one that threw; work that was queued behind a failure is dropped, on all streams.
  void run_until_reached(const SchedulePoint& point);
  void run_until_empty(const Queue& queue);
  void run_all();

 private:
  void run_until(const std::function<bool()>& satisfied);
  void throw_failure();
  bool run_step();
  void run_node(Queue& queue);
  void finish_first(Queue& queue);
  void drop_all(std::exception_ptr failure);
  std::size_t draw(std::size_t count);  // below count
  void draw_manner();

  const bool seeded_;
  std::mutex mutex_;
  std::atomic<int> open_captures_{0};
  std::mt19937_64 random_;
  std::size_t steps_per_change_ = 1;
  std::vector<std::shared_ptr<Queue>> queues_;
  std::exception_ptr failure_;
};

}  // namespace genai
