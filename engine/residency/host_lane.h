// host_lane.h - cold rows that host cores compute while a device of another kind works on the rest of the same
// matrices. The device asks for a product by its number and goes on; a thread here waits for requests, runs the product
// on the host's own kernels, which give the same bits, and answers; the device takes the results when it needs them. No
// host call happens in a step: both sides of the exchange are kernels, so a captured step holds them.
//
// Invariants
//   H1 One request is open at a time: the device takes the answer to one before it asks the next. So input and results
//      have one place each.
//   H2 Every request is answered, also where its product failed: the device never waits in vain. The failure is thrown
//      by rethrow_failure(), and results until then are not to be trusted.
//   H3 Products are known before they are asked for, and stay where they are.
// States of the thread: waiting (spins, after a while without requests it naps) -> computing -> waiting.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/device/device.h"
#include "engine/residency/residency_arena.h"

namespace genai {

struct HostLaneLimits {
  std::int32_t max_rows = 1;      // rows of a request
  std::int32_t input_width = 0;   // of the widest product
  std::int32_t result_width = 0;  // outputs of one product together
};

class HostLane {
 public:
  // More rows are better streamed once than computed by cores.
  static constexpr std::int32_t kMaxRows = 16;

  // `host` computes; it must be able to read `device`'s memory of Placement::host where host_view says. `count`: in
  // device memory, zero at first, this lane's alone.
  HostLane(Device& device, Device& host, ResidencyArena& arena, DevicePtr<std::uint64_t> count,
           const HostLaneLimits& limits);
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // A vector of the model (norm or bias) that products refer to by its place on the device. Before any product.
  void keep_copy(DevicePtr<const float> place, std::vector<float> values);

  bool serves(std::int32_t row_count) const { return row_count <= limits_.max_rows; }
  // Asks for the product: `args` as for the device's kernel, its matrices in memory of Placement::host. `key` names the
  // product: the first call with a key makes it known, later ones repeat it with other rows.
  void ask(Stream& stream, const void* key, const MatmulArgs& args);
  // Puts what was asked for last where `args` of ask wanted it.
  void take(Stream& stream);

  void rethrow_failure();
  std::uint64_t answered_requests() const { return answered_count_.load(std::memory_order_relaxed); }

 private:
  struct Product {
    std::int32_t number;
    MatmulArgs host_args;  // as the host computes it, for limits_.max_rows rows
  };

  const Product& product_of(const void* key, const MatmulArgs& args);
  DevicePtr<const float> copy_of(DevicePtr<const float> place) const;
  void serve();
  void compute(std::int32_t number, std::int32_t row_count);
  bool wait_for_request(std::uint64_t number);
  // The same memory, as the host sees it.
  template <class T>
  DevicePtr<T> on_host(DevicePtr<T> place) const;

  Device& device_;
  Device& host_;
  ResidencyArena& arena_;
  const HostLaneLimits limits_;
  MemoryRange shared_;              // host memory: exchange, input, results
  DevicePtr<std::uint64_t> count_;  // requests so far
  DevicePtr<HostExchange> exchange_;
  DevicePtr<float> input_;                              // (max_rows, input_width)
  DevicePtr<float> results_;                            // (result_width) of max_rows each, output after output
  std::map<std::uint64_t, std::vector<float>> copies_;  // by address on the device
  std::vector<std::byte> scratch_;
  std::unique_ptr<Stream> host_stream_;
  MatmulArgs asked_{};  // by the last ask

  std::mutex mutex_;  // of the three below
  std::deque<Product> products_;
  std::map<const void*, std::int32_t> numbers_;
  std::exception_ptr failure_;
  std::atomic<std::uint64_t> answered_count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: everything above is there before it starts
};

}  // namespace genai
