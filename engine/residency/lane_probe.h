// lane_probe.h - how fast this machine's lanes are, measured in a few seconds with the work of decoding itself,
// through the seam only. Takes memory of its own arena and has given all of it back when it returns.
//
// NOTE [Lane speeds]: what each number is and how it is got. The weights are eight matrices of noise in device memory
// and as large ones in host memory, as many as are far larger than caches; 256 MB were not, and host cores seemed twice
// as fast. Times are of the host's clock, once the device has been at work long enough for its clocks to rise: medians,
// but means of what waits for host cores, for a step pays for each that is held up.
//   resident          a captured graph of eight products (M = 1) with whole matrices, less one with a strip of each:
//                     the bytes over the difference, so that what a call costs by itself does not count as reading
//   zero_copy         the same over eight in host memory
//   ring              copies of eight matrices from host to device memory in pieces as large as a ring's slots
//   host              the same over all in host memory, by host cores: the device's own where it is the host, else
//                     through a HostLane
//   host_8_rows       the same with eight rows of activations (M = 8)
//   ring_beside_host, host_beside_ring
//                     both at once, each on a thread of its own, for a tenth of a second
//   matrix_seconds    the graph of eight strips less that of one, over seven: what one more product costs by itself
//   pass_seconds      the graph of one strip, less that: launching a pass and waiting for it
//   exchange_seconds, exchange_8_rows_seconds
//                     products of host cores with an eighth of each matrix, less what their bytes take by themselves,
//                     or with one strip of each, whichever is more: of each (M = 1, M = 8)
// A number that could not be measured is 0, unknown.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/device/device.h"
#include "engine/residency/residency_plan.h"

namespace genai {

struct ProbeLimits {
  std::optional<std::uint64_t> budget_bytes;            // of device memory; a quarter of it is taken at most
  std::optional<std::uint64_t> host_available_bytes;    // an eighth of it is taken at most
  std::uint64_t most_bytes = std::uint64_t{256} << 20;  // of weights in device memory
  std::uint64_t most_cold_bytes = std::uint64_t{1} << 30;
  std::uint64_t least_bytes = std::uint64_t{64} << 20;  // with less, caches would be measured: all stays unknown
};

// Seconds of products of host cores one after the other, each with its exchange: with a whole matrix, with a small part
// of it and with one strip.
struct HostTimes {
  double bytes = 0.0;
  double part_bytes = 0.0;
  double seconds = 0.0;
  double part_seconds = 0.0;
  double strip_seconds = 0.0;
};
struct HostCost {
  double bytes_per_second = 0.0;
  double exchange_seconds = 0.0;
};
// All cores take part in all but a strip, and a device waits for the slowest. Cores read ahead while they wait, so that
// an exchange may seem to cost nothing beside bytes: that with a strip is the least.
HostCost host_cost(const HostTimes& times);

// `host`: computes rows in host memory, may be `device` itself; null: there is no such lane. REQUIRES: no other work on
// the devices. Throws DeviceError where a device fails; memory that it does not give is no failure.
LaneSpeeds probe_lanes(Device& device, Device* host, const ProbeLimits& limits);

}  // namespace genai
