// thread_pool.h - the cores that compute host kernels, as fork and join. Threads live as long as the pool; the calling
// thread is thread 0 of every region, so a pool of one thread starts none. Which thread gets which range depends on the
// counts only. Between regions the threads spin for a while (a decode step opens about 200 regions), then sleep; where
// there are more threads than cores they sleep at once.
// Any thread may open a region; regions of several callers take turns. A region inside a region throws.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace genai {

// Items [begin, end) of a larger count.
struct IndexRange {
  std::int64_t begin;
  std::int64_t end;
};

// The share of thread `thread_index` when `item_count` items are cut as evenly as possible.
constexpr IndexRange static_range(std::int64_t item_count, int thread_index, int thread_count) {
  const std::int64_t share = item_count / thread_count;
  const std::int64_t larger = item_count % thread_count;  // this many threads get one item more
  const std::int64_t begin = share * thread_index + (thread_index < larger ? thread_index : larger);
  return {begin, begin + share + (thread_index < larger ? 1 : 0)};
}

// Lets `thread_count` threads pass only together, again and again. What a thread wrote before wait() is visible to all
// of them after it.
class Barrier {
 public:
  Barrier(int thread_count, std::chrono::microseconds spin_time) : thread_count_(thread_count), spin_time_(spin_time) {}
  // Throws Error when the barrier is broken, which is what frees the others of a thread that will never arrive.
  void wait();
  void break_it();
  // REQUIRES: no thread is inside wait().
  void mend();

 private:
  const int thread_count_;
  const std::chrono::microseconds spin_time_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  std::atomic<bool> broken_{false};
};

class ThreadPool {
 public:
  static constexpr std::chrono::microseconds kSpinTime{50};

  // `spin_time`: how long a thread without work spins before it sleeps. Throws Error when the system gives fewer
  // threads.
  explicit ThreadPool(int thread_count, std::chrono::microseconds spin_time = kSpinTime);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return thread_count_; }

  // body(thread_index, thread_count) once on every thread; returns when all have. An exception leaves through here
  // after the region ended; of several, that of the lowest thread.
  template <class Body>
  void parallel(Body&& body) {
    run_region(
        [](void* target, int thread_index, int thread_count) {
          (*static_cast<std::remove_reference_t<Body>*>(target))(thread_index, thread_count);
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

  // body(task_index) for every index below `task_count`, each thread a contiguous range in ascending order. After an
  // exception the rest of that thread's range is left out.
  template <class Body>
  void run(std::int64_t task_count, Body&& body) {
    if (task_count <= 1) {
      if (task_count == 1) body(std::int64_t{0});
      return;
    }
    parallel([&](int thread_index, int thread_count) {
      const IndexRange range = static_range(task_count, thread_index, thread_count);
      for (std::int64_t task = range.begin; task < range.end; ++task) body(task);
    });
  }

  // For the threads of the region that is open: all must call wait() equally often.
  Barrier& barrier() { return barrier_; }

 private:
  using RegionBody = void (*)(void* target, int thread_index, int thread_count);

  void run_region(RegionBody body, void* target);
  void run_body(int thread_index) noexcept;
  void work(int thread_index);
  void stop();

  const int thread_count_;
  const std::chrono::microseconds spin_time_;
  Barrier barrier_;
  std::mutex region_mutex_;  // held while a region is open

  RegionBody body_ = nullptr;
  void* target_ = nullptr;
  bool stopping_ = false;
  std::vector<std::exception_ptr> failures_;  // by thread

  alignas(64) std::atomic<int> region_{0};      // counts up when a region opens; publishes the members above
  alignas(64) std::atomic<int> unfinished_{0};  // workers still inside the region
  std::vector<std::thread> workers_;
};

}  // namespace genai
