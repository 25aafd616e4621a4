// lane_workload.h - what the speeds of lanes are measured with: weights of noise wherever they lie, the product of a
// decode step over them, and a clock. Used by the probe at start-up and by the benchmark, so that both time one thing.
//
// The weights are Q4_0, 4096 wide. The clock is the host's, around work that is enqueued and waited for.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/packed_layout.h"
#include "engine/residency/residency_arena.h"

namespace genai {

inline constexpr DType kWorkloadType = DType::Q4_0;
inline constexpr std::int32_t kWorkloadWidth = 4096;
inline constexpr std::int64_t kWorkloadStripBytes = strip_bytes(kWorkloadType, kWorkloadWidth);

// The input, the output and the scratch memory of the product on one device.
class WorkloadVectors {
 public:
  // `arena`: of that device; it outlives this object. `most_rows`: of activations.
  WorkloadVectors(Device& device, ResidencyArena& arena, std::int64_t most_strips, std::int32_t most_rows = 1);

  // output = weights * input, of the output's rows from 8 * first_strip on.
  MatmulArgs product(DevicePtr<const std::byte> weights, std::int64_t strip_count, std::int64_t first_strip = 0,
                     std::int32_t row_count = 1) const;
  // Enqueues it.
  void multiply(Stream& stream, DevicePtr<const std::byte> weights, std::int64_t strip_count,
                std::int64_t first_strip = 0);
  void clear_output(Stream& stream);
  // Waits for it.
  std::vector<float> read_output(Stream& stream, std::int64_t strip_count) const;

  DevicePtr<std::byte> input() const { return range_.base(); }
  DevicePtr<std::byte> output() const { return output_; }
  static constexpr std::size_t kInputBytes = kWorkloadWidth * sizeof(float);

 private:
  Kernels& kernels_;
  std::size_t output_bytes_;
  MemoryRange range_;
  DevicePtr<std::byte> output_;
  DevicePtr<std::byte> scratch_;
};

// Fills [begin, begin + bytes), which is backed, with weights that are finite numbers, and waits.
void fill_with_noise(Device& device, Stream& stream, DevicePtr<std::byte> begin, std::size_t bytes);

// Where the host device `host` reads [begin, begin + bytes) of `device`; null where it cannot.
DevicePtr<const std::byte> host_address(Device& device, DevicePtr<std::byte> begin, std::size_t bytes);

// The median time of `body` once it has run for the first time: of three runs at least, of more where they are short.
double median_seconds(const std::function<void()>& body);

// The median time of `enqueue`'s work as a captured graph, launched and waited for.
double median_graph_seconds(Stream& stream, const std::function<void()>& enqueue);

// What a run costs on average where some are held up: of a longer series, in which a run counts for twice the median at
// most. REQUIRES: at least one.
double mean_of_runs(std::vector<double> seconds);
// Of `enqueue`'s work as a captured graph.
double mean_graph_seconds(Stream& stream, const std::function<void()>& enqueue);

}  // namespace genai
