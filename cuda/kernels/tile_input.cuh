// tile_input.cuh - how many rows of activations lie in scratch for the tensor-core tiles of matmul_tiles.cu: as halves,
// since the int8 of a block are exact in them. Rows are cut into octets, eight octets to a record; columns into tiles
// of 128. The record of a tile is contiguous:
//   quants [octet][block j][half h of the block][odd][row g of the octet][8 halves]
//   scales [panel of four octets][block j][row of the panel]
//   sums   likewise
// Eight rows of 16 bytes are what a product reads at once (tile_ptx.cuh). They hold every second activation of 16: the
// even ones, then the odd ones, so that a word of packed weights gives its operands by masks alone.
//
// Behind the records lies what blocks hand to each other (tile_schedule.cuh): sums, and flags that say they are there.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kOctetRows = 8;
inline constexpr int kCoreBytes = kOctetRows * 16;
inline constexpr int kOctetBytes = kOctetRows * kTileWidth * 2;
inline constexpr int kPanelRows = 32;
inline constexpr int kPanelQuants = kPanelRows * kTileWidth * 2;
inline constexpr int kPanelScales = kPanelRows * kTileBlocks * 4;
inline constexpr int kRecordPanels = 2;
inline constexpr int kRecordRows = kRecordPanels * kPanelRows;
inline constexpr int kRecordScales = kRecordPanels * kPanelQuants;
inline constexpr int kRecordSums = kRecordScales + kRecordPanels * kPanelScales;
inline constexpr int kRecordBytes = kRecordSums + kRecordPanels * kPanelScales;

inline constexpr int kMaxTileBlocks = 160;    // that share a product
inline constexpr int kHandedSums = 128 * 64;  // floats that one of them hands over
inline constexpr int kHandedFlags = 8;        // of a block, one for each warp
inline constexpr int kMaxTileLaunches = 3;    // that share one input
inline constexpr int kMinHandoverRows = 17;   // with fewer there is no scratch for it

struct TileInput {
  unsigned char* records;  // [record][tile][kRecordBytes]
  float* handed_sums;      // [block][kHandedSums]; null: none
  unsigned* handed_flags;  // [launch][block][kHandedFlags], zero at first
  int tile_count;
};

// Byte offsets in a record, for row m (0 .. 63) and block `block` of the tile: of its even activations of half h, the
// odd ones being kCoreBytes on, and of its scale; its sum lies as far behind kRecordSums.
__host__ __device__ constexpr int quant_offset(int block, int half, int m) {
  return m / kOctetRows * kOctetBytes + (block * 2 + half) * 2 * kCoreBytes + m % kOctetRows * 16;
}

__host__ __device__ constexpr int scale_offset(int block, int m) {
  return m / kPanelRows * kPanelScales + (block * kPanelRows + m % kPanelRows) * 4;
}

}  // namespace genai::cuda
