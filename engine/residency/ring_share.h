// ring_share.h - which cold rows the copy ring brings in, where host cores compute the others. Rows in the ring are a
// kernel more, rows for host cores an exchange.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/residency/residency_plan.h"

namespace genai {

enum class RingSpread : std::uint8_t {
  even,            // the same part of every matrix
  few_rows_first,  // whole matrices whose calls have few rows: their inputs are long for what host cores do with them
};

struct RingShare {
  double of_cold = 0.0;  // of the cold bytes that a pass reads
  RingSpread spread = RingSpread::even;
};

struct RingSlots {
  std::uint64_t slot_bytes;
  std::int32_t slot_count;
};

// Strips of each matrix that go into the ring. `resident`: those that are not cold.
std::vector<std::int64_t> share_with_ring(const std::vector<MatrixSize>& matrices,
                                          const std::vector<std::int64_t>& resident, const RingShare& share,
                                          const RingSlots& slots);

}  // namespace genai
