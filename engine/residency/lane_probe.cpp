#include "engine/residency/lane_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>

#include "engine/error.h"
#include "engine/residency/host_lane.h"
#include "engine/residency/lane_workload.h"
#include "engine/residency/residency_arena.h"

namespace genai {
namespace {

constexpr std::int64_t kMatrixCount = 8;
constexpr std::int64_t kCopyBytes = std::int64_t{8} << 20;  // of one copy, as in a large model's ring

// The matrices, all of one size.
struct Workload {
  std::int64_t strips = 0;  // of a matrix; 0: too little memory to measure with
  std::int64_t cold_matrices = 0;

  std::int64_t matrix_bytes() const { return strips * kWorkloadStripBytes; }
  std::int64_t resident_bytes() const { return kMatrixCount * matrix_bytes(); }
  std::int64_t cold_bytes() const { return cold_matrices * matrix_bytes(); }
};

Workload choose_workload(Device& device, const ProbeLimits& limits) {
  std::uint64_t cold_bytes = limits.most_cold_bytes;
  if (limits.host_available_bytes) cold_bytes = std::min(cold_bytes, *limits.host_available_bytes / 8);
  std::uint64_t bytes = std::min(limits.most_bytes, cold_bytes);
  if (limits.budget_bytes) bytes = std::min(bytes, *limits.budget_bytes / 4);
  if (const auto free_bytes = device.memory().info().free_bytes) bytes = std::min(bytes, *free_bytes / 4);
  if (bytes < limits.least_bytes) return {};
  Workload workload{.strips = static_cast<std::int64_t>(bytes) / kMatrixCount / kWorkloadStripBytes};
  if (workload.strips < 2) return {};
  workload.cold_matrices = std::max(kMatrixCount, static_cast<std::int64_t>(cold_bytes) / workload.matrix_bytes());
  return workload;
}

// Nothing where that memory is not to be had.
std::optional<MemoryRange> take(ResidencyArena& arena, MemoryKind kind, std::int64_t bytes, Placement placement) {
  try {
    MemoryRange range = arena.reserve(kind, static_cast<std::size_t>(bytes), placement);
    range.commit(0, static_cast<std::size_t>(bytes));
    return range;
  } catch (const BudgetError&) {
  } catch (const DeviceError&) {
  }
  return std::nullopt;
}

struct ProductCost {
  double bytes_per_second = 0.0;
  double matrix_seconds = 0.0;
  double pass_seconds = 0.0;
};

// `multiply(matrix_count, strips)` enqueues products with the first strips of the first matrices.
template <class Multiply>
ProductCost measure_products(Stream& stream, const Workload& workload, const Multiply& multiply) {
  const auto seconds = [&](std::int64_t matrices, std::int64_t strips) {
    return median_graph_seconds(stream, [&] { multiply(matrices, strips); });
  };
  const double whole = seconds(kMatrixCount, workload.strips);
  const double strips = seconds(kMatrixCount, 1);
  const double one = seconds(1, 1);
  const auto bytes = static_cast<double>(kMatrixCount * (workload.strips - 1) * kWorkloadStripBytes);
  ProductCost cost;
  // Times measured beside other programs may come out in any order: no difference is taken for less than an eighth.
  cost.bytes_per_second = bytes / std::max(whole - strips, whole / 8.0);
  cost.matrix_seconds = std::max(strips / 8.0, strips - one) / static_cast<double>(kMatrixCount - 1);
  cost.pass_seconds = std::max(0.0, one - cost.matrix_seconds);
  return cost;
}

// Likewise of products by host cores.
template <class Multiply>
HostCost measure_host(Stream& stream, const Workload& workload, const Multiply& multiply) {
  constexpr std::int64_t kSmallPart = 8;  // 4 MB with all of the memory: such are exchanges where little is cold
  const std::int64_t part_strips = std::max<std::int64_t>(1, workload.strips / kSmallPart);
  const auto matrix_seconds = [&](std::int64_t strips) {
    return mean_graph_seconds(stream, [&] { multiply(workload.cold_matrices, strips); }) /
           static_cast<double>(workload.cold_matrices);
  };
  return host_cost({.bytes = static_cast<double>(workload.matrix_bytes()),
                    .part_bytes = static_cast<double>(part_strips * kWorkloadStripBytes),
                    .seconds = matrix_seconds(workload.strips),
                    .part_seconds = matrix_seconds(part_strips),
                    .strip_seconds = matrix_seconds(1)});
}

// A device at rest has slow clocks, and takes a while to notice that there is work.
void wake(Stream& stream, const std::function<void()>& enqueue) {
  constexpr std::chrono::milliseconds kLongEnough{300};
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < kLongEnough;) {
    enqueue();
    stream.synchronize();
  }
}

// Enqueues copies of `bytes` from host to device memory.
void copy_pieces(Stream& stream, DevicePtr<std::byte> to, DevicePtr<const std::byte> from, std::int64_t bytes) {
  for (std::int64_t offset = 0; offset < bytes; offset += kCopyBytes)
    stream.copy(to.byte_offset(offset), from.byte_offset(offset),
                static_cast<std::size_t>(std::min(kCopyBytes, bytes - offset)));
}

struct BothRates {
  double first = 0.0;
  double second = 0.0;
};

// Rounds of both in a second, each repeated on a thread of its own until both have gone on for long enough.
BothRates rates_at_once(const std::function<void()>& first, const std::function<void()>& second) {
  constexpr double kSeconds = 0.1;
  constexpr int kLeastRounds = 3;
  using Clock = std::chrono::steady_clock;
  std::atomic<int> rounds[2] = {0, 0};
  std::atomic<bool> has_failed{false};
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto repeat = [&](std::atomic<int>& own, const std::function<void()>& round) {
    try {
      while (!has_failed && (elapsed() < kSeconds || rounds[0] < kLeastRounds || rounds[1] < kLeastRounds)) {
        round();
        ++own;
      }
      return own / elapsed();
    } catch (...) {
      has_failed = true;  // the other must not wait for rounds that never come
      throw;
    }
  };
  auto other = std::async(std::launch::async, [&] { return repeat(rounds[1], second); });
  BothRates rates;
  rates.first = repeat(rounds[0], first);
  rates.second = other.get();
  return rates;
}

// Products of host cores for the device: its own where it is the host, else through a HostLane as in decoding.
class HostProducts {
 public:
  HostProducts(Device& device, Device& host, ResidencyArena& arena, WorkloadVectors& vectors,
               DevicePtr<const std::byte> weights, const Workload& workload)
      : device_(device), vectors_(vectors), weights_(weights), workload_(workload) {
    if (&device == &host) return;
    finished_ = arena.reserve(MemoryKind::workspace, sizeof(std::uint32_t));
    finished_.commit(0, sizeof(std::uint32_t));
    lane_.emplace(device, host, arena, finished_.base().as<std::uint32_t>(),
                  HostLaneLimits{.max_rows = kManySpeedRows,
                                 .input_width = kWorkloadWidth,
                                 .result_width = static_cast<std::int32_t>(workload.strips * kStripRows),
                                 .max_products = static_cast<std::int32_t>(3 * workload.cold_matrices)});
  }

  // Enqueues products with the first strips of the first matrices.
  void multiply(Stream& stream, std::int64_t matrix_count, std::int64_t strips, std::int32_t row_count) {
    for (std::int64_t matrix = 0; matrix < matrix_count; ++matrix) {
      const std::int64_t offset = matrix * workload_.matrix_bytes();
      const MatmulArgs product = vectors_.product(weights_.byte_offset(offset), strips, 0, row_count);
      if (!lane_) {
        device_.kernels().matmul(stream, product);
        continue;
      }
      const auto known = keys_.try_emplace({offset, strips}).first;  // a map's elements stay where they are
      lane_->ask(stream, &known->second, product);
      lane_->take(stream);
    }
    if (lane_) lane_->end_pass(stream);
  }

 private:
  Device& device_;
  WorkloadVectors& vectors_;
  DevicePtr<const std::byte> weights_;
  const Workload workload_;
  std::map<std::pair<std::int64_t, std::int64_t>, char> keys_;
  MemoryRange finished_;
  std::optional<HostLane> lane_;
};

}  // namespace

HostCost host_cost(const HostTimes& times) {
  HostCost cost;
  cost.bytes_per_second =
      (times.bytes - times.part_bytes) / std::max(times.seconds - times.part_seconds, times.seconds / 8.0);
  cost.exchange_seconds = std::max(times.strip_seconds, times.part_seconds - times.part_bytes / cost.bytes_per_second);
  return cost;
}

LaneSpeeds probe_lanes(Device& device, Device* host, const ProbeLimits& limits) {
  LaneSpeeds speeds;
  const Workload workload = choose_workload(device, limits);
  if (workload.strips == 0) return speeds;
  const std::int64_t bytes = workload.resident_bytes();
  const auto multiply_on_device = [&](Stream& stream, WorkloadVectors& vectors, DevicePtr<const std::byte> weights) {
    return measure_products(stream, workload, [&, weights](std::int64_t matrices, std::int64_t strips) {
      for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
        vectors.multiply(stream, weights.byte_offset(matrix * workload.matrix_bytes()), strips);
    });
  };

  ResidencyArena arena(device.memory(), limits.budget_bytes);
  const std::unique_ptr<Stream> stream = device.create_stream();
  const std::optional<MemoryRange> resident = take(arena, MemoryKind::weights, bytes, Placement::device);
  if (!resident) return speeds;
  WorkloadVectors vectors(device, arena, workload.strips, kManySpeedRows);
  fill_with_noise(device, *stream, resident->base(), static_cast<std::size_t>(bytes));
  wake(*stream, [&] { vectors.multiply(*stream, resident->base(), workload.strips); });
  const ProductCost near = multiply_on_device(*stream, vectors, resident->base());
  speeds.resident = near.bytes_per_second;
  speeds.matrix_seconds = near.matrix_seconds;
  speeds.pass_seconds = near.pass_seconds;

  const std::optional<MemoryRange> cold = take(arena, MemoryKind::cold, workload.cold_bytes(), Placement::host);
  if (!cold) return speeds;
  fill_with_noise(device, *stream, cold->base(), static_cast<std::size_t>(workload.cold_bytes()));
  wake(*stream, [&] { vectors.multiply(*stream, resident->base(), workload.strips); });
  speeds.zero_copy = multiply_on_device(*stream, vectors, cold->base()).bytes_per_second;
  const double copy_seconds = median_seconds([&] {
    copy_pieces(*stream, resident->base(), cold->base(), bytes);
    stream->synchronize();
  });
  if (copy_seconds > 0.0) speeds.ring = static_cast<double>(bytes) / copy_seconds;

  if (host == nullptr || !host_address(device, cold->base(), static_cast<std::size_t>(workload.cold_bytes())))
    return speeds;
  HostProducts products(device, *host, arena, vectors, cold->base(), workload);
  const auto multiply_on_host = [&](std::int32_t row_count) {
    return measure_host(*stream, workload, [&](std::int64_t matrices, std::int64_t strips) {
      products.multiply(*stream, matrices, strips, row_count);
    });
  };
  const HostCost one_row = multiply_on_host(1);
  speeds.host = one_row.bytes_per_second;
  speeds.exchange_seconds = one_row.exchange_seconds;
  const HostCost many_rows = multiply_on_host(kManySpeedRows);
  speeds.host_8_rows = many_rows.bytes_per_second;
  speeds.exchange_8_rows_seconds = std::max(many_rows.exchange_seconds, one_row.exchange_seconds);

  const std::unique_ptr<Stream> copies = device.create_stream();
  const BothRates rounds = rates_at_once(  // many matrices in a round, so that waiting for it weighs little
      [&] {
        copy_pieces(*copies, resident->base(), cold->base(), bytes);
        copies->synchronize();
      },
      [&] {
        products.multiply(*stream, workload.cold_matrices, workload.strips, 1);
        stream->synchronize();
      });
  speeds.ring_beside_host = rounds.first * static_cast<double>(bytes);
  speeds.host_beside_ring = rounds.second * static_cast<double>(workload.cold_bytes());
  return speeds;
}

}  // namespace genai
