// split_matrix.h - a matrix whose rows may live in several memories, as the residency plan has cut it. Rows are in
// order: resident, ring, zero-copy, host. Splitting rows splits no sum, so the lanes cannot change a bit.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/device/kernels.h"
#include "engine/residency/copy_ring.h"
#include "engine/residency/residency_plan.h"

namespace genai {

// Strips of one matrix in one chunk of one of the copy ring's lists.
struct RingPiece {
  std::int32_t chunk = 0;
  std::uint64_t slot_offset_bytes = 0;  // from the start of the chunk
  std::int32_t first_row = 0;           // of the matrix
  std::int32_t rows = 0;
  bool opens_chunk = false;   // nothing before it is in its chunk
  bool closes_chunk = false;  // nothing behind it is
};

struct MatrixPart {
  MatrixView view;  // of these rows alone; for the ring its data is the cold copy, not the slot
  std::int32_t first_row = 0;
};

struct SplitMatrix {
  DType dtype = DType::F32;
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  std::array<MatrixPart, kLaneCount> parts{};  // by Lane; view.rows == 0 where the lane has none
  // In order: of the ring's part for narrow passes, of the parts of ring and host for wide ones.
  std::array<std::vector<RingPiece>, kRingListCount> ring_pieces{};

  const MatrixPart& part(Lane lane) const { return parts[static_cast<std::size_t>(lane)]; }
  const std::vector<RingPiece>& pieces(RingList list) const { return ring_pieces[static_cast<std::size_t>(list)]; }
};

}  // namespace genai
