#include "engine/host/host_schedule.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "engine/error.h"

namespace genai {
namespace {

struct Entry {
  std::shared_ptr<const WorkGraph> graph;  // null: nothing to run
  std::shared_ptr<SchedulePoint> after;
  std::shared_ptr<SchedulePoint> done;
  // Of the nodes that have not run: how many dependencies each still has. Filled when the first node is about to run.
  bool started = false;
  std::vector<std::uint32_t> missing;
  std::vector<std::vector<std::uint32_t>> dependents;
  std::vector<std::uint32_t> ready;

  bool may_start() const { return after == nullptr || after->reached; }
  bool is_finished() const { return graph == nullptr || (started && ready.empty()); }

  void start() {
    started = true;
    const std::size_t node_count = graph == nullptr ? 0 : graph->nodes.size();
    missing.resize(node_count);
    dependents.resize(node_count);
    for (std::uint32_t node = 0; node < node_count; ++node) {
      missing[node] = static_cast<std::uint32_t>(graph->nodes[node].dependencies.size());
      for (const std::uint32_t dependency : graph->nodes[node].dependencies) dependents[dependency].push_back(node);
      if (missing[node] == 0) ready.push_back(node);
    }
  }
};

}  // namespace

class HostSchedule::Queue {
 public:
  std::deque<Entry> entries;
  std::size_t priority = 0;
};

HostSchedule::HostSchedule(std::optional<std::uint64_t> seed) : seeded_(seed.has_value()), random_(seed.value_or(0)) {}
HostSchedule::~HostSchedule() = default;

std::shared_ptr<HostSchedule::Queue> HostSchedule::add_queue() {
  queues_.push_back(std::make_shared<Queue>());
  return queues_.back();
}

void HostSchedule::remove_queue(const std::shared_ptr<Queue>& queue) {
  run_until([&] { return queue->entries.empty(); });
  queues_.erase(std::remove(queues_.begin(), queues_.end(), queue), queues_.end());
}

void HostSchedule::push(Queue& queue, std::shared_ptr<const WorkGraph> graph, std::shared_ptr<SchedulePoint> after,
                        std::shared_ptr<SchedulePoint> done) {
  Entry entry;
  entry.graph = std::move(graph);
  entry.after = std::move(after);
  entry.done = std::move(done);
  queue.entries.push_back(std::move(entry));
}

void HostSchedule::run_until_reached(const SchedulePoint& point) {
  run_until([&] { return point.reached; });
  throw_failure();
}

void HostSchedule::run_until_empty(const Queue& queue) {
  run_until([&] { return queue.entries.empty(); });
  throw_failure();
}

void HostSchedule::run_all() {
  run_until(
      [&] { return std::all_of(queues_.begin(), queues_.end(), [](const auto& q) { return q->entries.empty(); }); });
  throw_failure();
}

void HostSchedule::throw_failure() {
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void HostSchedule::run_until(const std::function<bool()>& satisfied) {
  draw_manner();
  while (!satisfied()) GENAI_EXPECT(run_step(), "queued work waits for something that no stream will do");
  // The host knows nothing about the rest: it may be done, undone or half done.
  const std::size_t manner = draw(3);
  if (manner == 0) return;
  for (std::size_t left = manner == 1 ? draw(16) : std::numeric_limits<std::size_t>::max(); left > 0 && run_step();)
    --left;
}

// Two extremes and what lies between: a choice anew for each step mixes the streams finely, rare changes let one stream
// run far ahead of the others.
void HostSchedule::draw_manner() {
  constexpr std::size_t kStepsPerChange[] = {1, 1, 4, 16, 256};
  steps_per_change_ = kStepsPerChange[draw(std::size(kStepsPerChange))];
  for (const auto& queue : queues_) queue->priority = random_();
}

bool HostSchedule::run_step() {
  if (draw(steps_per_change_) == 0)
    for (const auto& queue : queues_) queue->priority = random_();
  Queue* chosen = nullptr;
  for (const auto& queue : queues_) {
    if (queue->entries.empty() || !queue->entries.front().may_start()) continue;
    if (chosen == nullptr || queue->priority > chosen->priority) chosen = queue.get();
  }
  if (chosen == nullptr) return false;
  Entry& entry = chosen->entries.front();
  if (!entry.started) entry.start();
  if (!entry.is_finished()) run_node(*chosen);
  // A failure has emptied the queue.
  if (!chosen->entries.empty() && chosen->entries.front().is_finished()) finish_first(*chosen);
  return true;
}

void HostSchedule::run_node(Queue& queue) {
  Entry& entry = queue.entries.front();
  std::swap(entry.ready[draw(entry.ready.size())], entry.ready.back());
  const std::uint32_t node = entry.ready.back();
  entry.ready.pop_back();
  for (const std::uint32_t dependent : entry.dependents[node])
    if (--entry.missing[dependent] == 0) entry.ready.push_back(dependent);
  const auto& work = entry.graph->nodes[node].work;
  if (!work) return;
  try {
    work();
  } catch (const DeviceError&) {
    drop_all(std::current_exception());
  } catch (const Error& error) {
    drop_all(
        std::make_exception_ptr(DeviceError(std::string("work on the host failed: ") + error.what(), error.hint())));
  } catch (const std::exception& error) {
    drop_all(std::make_exception_ptr(DeviceError(std::string("work on the host failed: ") + error.what())));
  } catch (...) {
    drop_all(std::make_exception_ptr(DeviceError("work on the host failed with an unknown exception")));
  }
}

void HostSchedule::finish_first(Queue& queue) {
  if (queue.entries.front().done != nullptr) queue.entries.front().done->reach();
  queue.entries.pop_front();
}

void HostSchedule::drop_all(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
  for (const auto& queue : queues_)
    while (!queue->entries.empty()) finish_first(*queue);
}

std::size_t HostSchedule::draw(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

}  // namespace genai
