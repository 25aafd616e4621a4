// pass_traffic.h - what a pass reads of the weights' matrices, by lane, and what the ring did for it. Exact counts.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/residency/residency_plan.h"

namespace genai {

struct PassTraffic {
  std::array<std::uint64_t, kLaneCount> read_bytes{};
  std::uint64_t copied_bytes = 0;
  std::uint64_t copies = 0;

  PassTraffic& operator+=(const PassTraffic& other) {
    for (std::size_t lane = 0; lane < read_bytes.size(); ++lane) read_bytes[lane] += other.read_bytes[lane];
    copied_bytes += other.copied_bytes;
    copies += other.copies;
    return *this;
  }
};

}  // namespace genai
