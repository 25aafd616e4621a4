// host_lane.h - cold rows that host cores compute while a device of another kind works on the rest of the same
// matrices. The device asks for a product by its number and goes on; the host's threads compute it with kernels that
// give the same bits (host/host_row_server.h); the device takes the results when it needs them. No host call happens in
// a step: the device's side of the exchange are kernels or parts of one, so a captured step holds them.
//
// Invariants
//   H1 One request is open at a time: the device takes the answer to one before it asks the next. So input and results
//      have one place each.
//   H2 Every request is answered, also where its product failed: the device never waits in vain. The failure is thrown
//      by rethrow_failure(), and results until then are not to be trusted.
//   H3 Products are known before they are asked for, and stay where they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/host_cores.h"
#include "engine/residency/residency_arena.h"

namespace genai {

struct HostLaneLimits {
  std::int32_t max_rows = 1;      // rows of a request
  std::int32_t input_width = 0;   // of the widest product
  std::int32_t result_width = 0;  // outputs of one product together
  std::int32_t max_products = 1;  // that will ever be asked for
  bool float_input = false;       // some product has a matrix of a float type
};

class HostLane {
 public:
  // More rows are better streamed once than computed by cores.
  static constexpr std::int32_t kMaxRows = 16;

  // `host`, a host device, computes; it must be able to read `device`'s memory of Placement::host where host_view says.
  // `finished`: in device memory, this lane's alone.
  HostLane(Device& device, Device& host, ResidencyArena& arena, DevicePtr<std::uint32_t> finished,
           const HostLaneLimits& limits);
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // A bias of the model that products refer to by its place on the device. Before any product.
  void keep_copy(DevicePtr<const float> place, std::vector<float> values);

  bool serves(std::int32_t row_count) const { return row_count <= limits_.max_rows; }
  // Asks for the product: `args` as for the device's kernel, its matrices in memory of Placement::host. `key` names the
  // product: the first call with a key makes it known, later ones repeat it with other rows.
  void ask(Stream& stream, const void* key, const MatmulArgs& args);
  // Puts what was asked for last where `args` of ask wanted it.
  void take(Stream& stream);
  // Behind all requests of a pass: requests are numbered within passes, so that a captured one can be repeated.
  void end_pass(Stream& stream);

  void rethrow_failure() { server_->rethrow_failure(); }
  // So far, modulo 2^32. Once the device has done all that was enqueued, they are answered.
  std::uint32_t request_count() const { return server_->last_request(); }

 private:
  std::int32_t number_of(const void* key, const MatmulArgs& args);
  DevicePtr<const float> copy_of(DevicePtr<const float> place) const;
  // The same memory, as the host sees it.
  template <class T>
  T* on_host(DevicePtr<T> place) const;

  Device& device_;
  ResidencyArena& arena_;
  const HostLaneLimits limits_;
  MemoryRange shared_;  // host memory: request, results
  DevicePtr<std::uint32_t> finished_;
  DevicePtr<ExchangeWord> request_;                     // header, max_rows rows
  DevicePtr<ExchangeWord> results_;                     // (result_width) of max_rows each, output after output
  std::map<std::uint64_t, std::vector<float>> copies_;  // by address on the device
  std::map<const void*, std::int32_t> numbers_;         // of products
  MatmulArgs asked_{};                                  // by the last ask
  std::uint32_t pass_requests_ = 0;                     // since the last end_pass
  std::unique_ptr<RowServer> server_;                   // last: its threads use the memory above
};

}  // namespace genai
