// The thread pool: every index once, failures come out, barriers hold. Meant to run under the thread sanitizer too.
#include "engine/host/thread_pool.h"

#include <atomic>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "tests/catch.h"

using namespace genai;

namespace {

// Plain integers on purpose: the sanitizer sees whether the pool orders them.
std::vector<int> visits(ThreadPool& pool, std::int64_t task_count) {
  std::vector<int> counts(static_cast<std::size_t>(task_count), 0);
  pool.run(task_count, [&](std::int64_t task) { ++counts[static_cast<std::size_t>(task)]; });
  return counts;
}

std::string message_of_run(ThreadPool& pool, std::int64_t task_count, const std::set<std::int64_t>& failing) {
  try {
    pool.run(task_count, [&](std::int64_t task) {
      if (failing.contains(task)) throw std::runtime_error("task " + std::to_string(task));
    });
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no exception";
}

}  // namespace

TEST_CASE("static ranges cover every index once and differ by one at most", "[thread_pool]") {
  for (const std::int64_t item_count : {0, 1, 2, 7, 64, 1000}) {
    for (const int thread_count : {1, 2, 3, 7, 64}) {
      std::int64_t next = 0;
      for (int thread = 0; thread < thread_count; ++thread) {
        const IndexRange range = static_range(item_count, thread, thread_count);
        REQUIRE(range.begin == next);
        REQUIRE(range.end - range.begin >= item_count / thread_count);
        REQUIRE(range.end - range.begin <= item_count / thread_count + 1);
        next = range.end;
      }
      REQUIRE(next == item_count);
    }
  }
}

TEST_CASE("run visits every task once", "[thread_pool]") {
  for (const int thread_count : {1, 2, 3, 8}) {
    ThreadPool pool(thread_count);
    for (const std::int64_t task_count : {0, 1, 2, 3, 100, 1001})
      REQUIRE(visits(pool, task_count) == std::vector<int>(static_cast<std::size_t>(task_count), 1));
  }
}

TEST_CASE("parallel runs once on every thread, the caller is thread 0", "[thread_pool]") {
  for (const int thread_count : {1, 2, 5}) {
    ThreadPool pool(thread_count);
    std::vector<std::thread::id> ids(static_cast<std::size_t>(thread_count));
    pool.parallel([&](int thread_index, int count) {
      if (count == thread_count) ids[static_cast<std::size_t>(thread_index)] = std::this_thread::get_id();
    });
    REQUIRE(ids[0] == std::this_thread::get_id());
    REQUIRE(std::set<std::thread::id>(ids.begin(), ids.end()).size() == ids.size());
  }
}

TEST_CASE("a region sees what the region before it wrote", "[thread_pool]") {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(97, 0);
  for (int round = 0; round < 2000; ++round) {
    // Another thread than the one that wrote it reads it in the next round.
    std::vector<std::int64_t> next(values.size());
    pool.run(static_cast<std::int64_t>(values.size()), [&](std::int64_t i) {
      next[static_cast<std::size_t>(i)] = values[(static_cast<std::size_t>(i) + 41) % values.size()] + 1;
    });
    values.swap(next);
  }
  REQUIRE(values == std::vector<std::int64_t>(97, 2000));
}

TEST_CASE("regions work after the threads went to sleep", "[thread_pool]") {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(visits(pool, 10) == std::vector<int>(10, 1));
  }
}

TEST_CASE("far more threads than cores still finish", "[thread_pool]") {
  ThreadPool pool(32);
  for (int round = 0; round < 50; ++round) REQUIRE(visits(pool, 64) == std::vector<int>(64, 1));
}

TEST_CASE("barrier separates the phases of a region", "[thread_pool]") {
  for (const int thread_count : {1, 2, 3, 8}) {
    ThreadPool pool(thread_count);
    std::vector<int> partial(static_cast<std::size_t>(thread_count));
    std::vector<int> totals(static_cast<std::size_t>(thread_count));
    for (int round = 0; round < 100; ++round) {
      pool.parallel([&](int thread_index, int) {
        const auto self = static_cast<std::size_t>(thread_index);
        partial[self] = thread_index + round;
        pool.barrier().wait();
        totals[self] = std::accumulate(partial.begin(), partial.end(), 0);
        pool.barrier().wait();
        partial[self] = -1;
      });
      REQUIRE(totals == std::vector<int>(static_cast<std::size_t>(thread_count),
                                         thread_count * (thread_count - 1) / 2 + round * thread_count));
    }
  }
}

TEST_CASE("an exception leaves run, that of the lowest task among several threads", "[thread_pool]") {
  for (const int thread_count : {1, 2, 4}) {
    ThreadPool pool(thread_count);
    REQUIRE(message_of_run(pool, 100, {3}) == "task 3");
    REQUIRE(message_of_run(pool, 100, {99}) == "task 99");
    REQUIRE(message_of_run(pool, 100, {0, 30, 60, 99}) == "task 0");
    REQUIRE(message_of_run(pool, 1, {0}) == "task 0");
    REQUIRE(visits(pool, 100) == std::vector<int>(100, 1));  // and the pool goes on
  }
}

TEST_CASE("an exception before a barrier frees those who wait at it", "[thread_pool]") {
  ThreadPool pool(3);
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<int> passed{0};
    REQUIRE_THROWS_WITH(pool.parallel([&](int thread_index, int) {
      pool.barrier().wait();
      if (thread_index == failing) throw std::runtime_error("failed between barriers");
      pool.barrier().wait();
      ++passed;
    }),
                        "failed between barriers");
    REQUIRE(passed == 0);
    pool.parallel([&](int, int) { pool.barrier().wait(); });
  }
}

TEST_CASE("callers from several threads take turns", "[thread_pool]") {
  ThreadPool pool(2);
  std::int64_t shared = 0;  // only one region at a time may touch it
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        pool.parallel([&](int thread_index, int) {
          if (thread_index == 0) ++shared;
        });
    });
  }
  for (std::thread& caller : callers) caller.join();
  REQUIRE(shared == 600);
}

TEST_CASE("a region inside a region is refused", "[thread_pool]") {
  for (const int thread_count : {1, 3}) {
    ThreadPool pool(thread_count);
    ThreadPool other(2);
    REQUIRE_THROWS_AS(pool.run(3, [&](std::int64_t) { pool.run(2, [](std::int64_t) {}); }), Error);
    REQUIRE_NOTHROW(pool.run(3, [&](std::int64_t) { other.run(2, [](std::int64_t) {}); }));
  }
}

TEST_CASE("a pool needs a thread", "[thread_pool]") {
  REQUIRE_THROWS_AS(ThreadPool(0), Error);
  REQUIRE_THROWS_AS(ThreadPool(-3), Error);
}
