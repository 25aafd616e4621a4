// lane_bench.h - one matrix of noise, twice: in device memory and in host memory. The product of a decode step (M = 1)
// reads it through each lane: how fast is that, and are the results the same bits?
//
// The ring is the one of decoding (copy_ring.h). Every lane runs as a captured graph; no kernel call has more than 512
// MiB of weights, as no matrix has.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/device/device.h"
#include "engine/residency/lane_workload.h"
#include "engine/residency/residency_arena.h"
#include "engine/residency/residency_plan.h"

namespace genai {

struct LaneBenchResult {
  std::uint64_t bytes = 0;                                         // of weights, as read
  std::array<std::optional<double>, kLaneCount> bytes_per_second;  // nothing: no such lane here
  bool bits_equal = true;  // of the results of every lane with those of the resident one
};

class LaneBench {
 public:
  // Takes both matrices, of `bytes` rounded down to whole strips. `host`: as for probe_lanes. The arena is of `device`
  // and outlives this object, as do the devices. Throws BudgetError or DeviceError where the memory is not to be had.
  LaneBench(Device& device, Device* host, ResidencyArena& arena, std::uint64_t bytes);

  LaneBenchResult measure();

  // The matrix in host memory. A test that changes it must see bits that are not equal.
  DevicePtr<std::byte> cold_matrix() const { return cold_.base(); }

 private:
  double ring_seconds(std::vector<float>& output);

  Device& device_;
  Device* host_;
  std::int64_t strips_;
  std::unique_ptr<Stream> stream_;
  MemoryRange resident_;
  MemoryRange cold_;
  WorkloadVectors vectors_;
  std::int64_t slot_strips_;
  MemoryRange slots_;
};

}  // namespace genai
