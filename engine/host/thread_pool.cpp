#include "engine/host/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "engine/error.h"
#include "engine/host/host_limits.h"

namespace genai {
namespace {

constexpr std::chrono::microseconds kSpinTimeWithoutYield{5};
constexpr int kPausesPerClockRead = 32;
constexpr int kYieldsBeforeSleep = 4;

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Returns when `value` is no longer `old`, with acquire order.
void wait_for_change(const std::atomic<int>& value, int old, std::chrono::microseconds spin_time) {
  if (spin_time.count() > 0) {
    const auto start = std::chrono::steady_clock::now();
    for (std::chrono::steady_clock::duration elapsed{0}; elapsed < spin_time;
         elapsed = std::chrono::steady_clock::now() - start) {
      // Whoever is waited for may be queued behind this thread, when other programs use the cores too. Measured on two
      // busy cores, regions of 40 us: 4 times slower without the yield than with it.
      if (elapsed >= kSpinTimeWithoutYield) std::this_thread::yield();
      for (int i = 0; i < kPausesPerClockRead; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_core();
      }
    }
  } else {
    for (int i = 0; i < kYieldsBeforeSleep; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      std::this_thread::yield();
    }
  }
  value.wait(old, std::memory_order_acquire);
}

// Frees a thread from Barrier::wait after another one failed; that other failure is the one reported.
class BrokenBarrier : public Error {
 public:
  BrokenBarrier() : Error("another thread of this parallel region failed before the barrier") {}
};

// The pool whose region this thread is inside: waiting for a second region of the same pool would wait for itself.
thread_local const ThreadPool* open_pool = nullptr;

int checked_thread_count(int thread_count) {
  GENAI_EXPECT(thread_count >= 1, "a thread pool has at least one thread, not " + std::to_string(thread_count));
  return thread_count;
}

}  // namespace

void Barrier::wait() {
  const int generation = generation_.load(std::memory_order_acquire);
  // After the load: break_it() sets the flag first and then counts up, so one of the two is always noticed.
  if (broken_.load(std::memory_order_acquire)) throw BrokenBarrier();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == thread_count_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    generation_.notify_all();
    return;
  }
  wait_for_change(generation_, generation, spin_time_);
  if (broken_.load(std::memory_order_acquire)) throw BrokenBarrier();
}

void Barrier::break_it() {
  broken_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  generation_.notify_all();
}

void Barrier::mend() {
  arrived_.store(0, std::memory_order_relaxed);
  broken_.store(false, std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int thread_count, std::chrono::microseconds spin_time)
    : thread_count_(checked_thread_count(thread_count)),
      spin_time_(thread_count <= usable_core_count() ? spin_time : std::chrono::microseconds{0}),
      barrier_(thread_count, spin_time_),
      failures_(static_cast<std::size_t>(thread_count)) {
  try {
    workers_.reserve(static_cast<std::size_t>(thread_count - 1));
    for (int i = 1; i < thread_count; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size() + 1;
    stop();
    throw Error("cannot start " + std::to_string(thread_count) + " threads, only " + std::to_string(started) + ": " +
                    error.what(),
                "ask for fewer threads, or raise the limit on processes (ulimit -u)");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  region_.fetch_add(1, std::memory_order_acq_rel);
  region_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_region(RegionBody body, void* target) {
  GENAI_EXPECT(open_pool != this, "a parallel region opened inside a region of the same pool");
  const std::lock_guard lock(region_mutex_);
  body_ = body;
  target_ = target;
  barrier_.mend();
  if (thread_count_ > 1) {
    unfinished_.store(thread_count_ - 1, std::memory_order_relaxed);
    region_.fetch_add(1, std::memory_order_acq_rel);
    region_.notify_all();
  }
  run_body(0);
  for (int left; (left = unfinished_.load(std::memory_order_acquire)) != 0;)
    wait_for_change(unfinished_, left, spin_time_);

  std::exception_ptr failure;
  for (std::exception_ptr& candidate : failures_) {
    if (failure == nullptr) failure = candidate;
    candidate = nullptr;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ThreadPool::run_body(int thread_index) noexcept {
  const ThreadPool* outer = open_pool;
  open_pool = this;
  try {
    body_(target_, thread_index, thread_count_);
  } catch (const BrokenBarrier&) {
  } catch (...) {
    failures_[static_cast<std::size_t>(thread_index)] = std::current_exception();
    barrier_.break_it();
  }
  open_pool = outer;
}

void ThreadPool::work(int thread_index) {
  for (int seen = 0;;) {
    wait_for_change(region_, seen, spin_time_);
    seen = region_.load(std::memory_order_acquire);
    if (stopping_) return;
    run_body(thread_index);
    // Only the last one wakes the caller, who sleeps on any value that it saw.
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_all();
  }
}

}  // namespace genai
