// cuda_capture.h - which captures are in progress on a device: what memory, streams and events must know to refuse
// calls that would break one. Captures are known by the runtime's ids, which are never used again. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

namespace genai::cuda {

using CaptureId = unsigned long long;  // 0: none

class ActiveCaptures {
 public:
  bool any() const { return count_.load() > 0; }
  bool contains(CaptureId id) const {
    const std::lock_guard lock(mutex_);
    return ids_.count(id) > 0;
  }
  void insert(CaptureId id) {
    const std::lock_guard lock(mutex_);
    ids_.insert(id);
    count_.store(static_cast<int>(ids_.size()));
  }
  void erase(CaptureId id) {
    const std::lock_guard lock(mutex_);
    ids_.erase(id);
    count_.store(static_cast<int>(ids_.size()));
  }

 private:
  mutable std::mutex mutex_;
  std::set<CaptureId> ids_;
  std::atomic<int> count_{0};
};

}  // namespace genai::cuda
