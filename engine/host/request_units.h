// request_units.h - units of numbered requests that threads take in pieces: each from a share of its own, then from
// those of others. Nothing is reset between requests: what is taken of a share counts for the request whose number
// stands beside it, so that a thread which is late takes nothing of a newer one.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/exchange_words.h"
#include "engine/host/matmul_units.h"
#include "engine/host/thread_pool.h"

namespace genai {

class RequestUnits {
 public:
  explicit RequestUnits(int thread_count)
      : thread_count_(thread_count), shares_(std::make_unique<Share[]>(static_cast<std::size_t>(thread_count))) {}

  // Calls visit(begin, end) until no unit of the request is left, or there is a newer request. Requests come in
  // ascending order, each behind the last unit of the one before.
  template <class Visit>
  void take(std::uint32_t request, std::int64_t unit_count, int thread_index, const Visit& visit) {
    for (int i = 0; i < thread_count_; ++i) {
      const int owner = (thread_index + i) % thread_count_;
      const IndexRange range = static_range(unit_count, owner, thread_count_);
      std::atomic<std::uint64_t>& taken = shares_[static_cast<std::size_t>(owner)].taken;
      for (std::uint64_t state = taken.load(std::memory_order_relaxed);;) {
        const auto newer_by = static_cast<std::int32_t>(request_of(state) - request);
        if (newer_by > 0) return;
        const std::int64_t next = newer_by == 0 ? data_of(state) : range.begin;
        if (next >= range.end) break;
        const std::int64_t end = next + units_to_take(range.end - next, thread_count_);
        const std::uint64_t changed = exchange_word(static_cast<std::uint32_t>(end), request);
        if (!taken.compare_exchange_weak(state, changed, std::memory_order_relaxed)) continue;
        visit(next, end);
        state = taken.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<std::uint64_t> taken{0};  // a word: the first unit that is free, and of which request
  };
  const int thread_count_;
  const std::unique_ptr<Share[]> shares_;
};

}  // namespace genai
