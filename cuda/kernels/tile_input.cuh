// tile_input.cuh - how many rows of activations lie in scratch for the tensor-core tiles of matmul_tiles.cu. Rows are
// cut into panels of 32, two to a record; columns into tiles of 128. The record of two panels' tile is contiguous, so
// that one bulk copy fetches it, and inside it every lane finds its operands in 16-byte loads, its scales in 8-byte
// loads (16 bytes would take as long as four loads, whether or not lanes read the same):
//   panel 0, panel 1, each:
//     quants [block j][pair of column octets p][column g of an octet][c][octet of the pair][h][4 bytes]
//     scales [block j][column m of the panel]
//   sums of panel 0, of panel 1: [block j][column m of the panel]
// Column m of a panel is pair m / 16, octet of the pair m / 8 % 2, g = m % 8.
//
// Behind the records lies what blocks hand to each other (tile_schedule.cuh): sums, and flags that say they are there.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kPanelRows = 32;
inline constexpr int kPanelQuants = kPanelRows * kTileWidth;
inline constexpr int kPanelScales = kPanelRows * kTileBlocks * 4;
inline constexpr int kPanelBytes = kPanelQuants + kPanelScales;
inline constexpr int kRecordPanels = 2;
inline constexpr int kRecordRows = kRecordPanels * kPanelRows;
inline constexpr int kRecordSums = kRecordPanels * kPanelBytes;
inline constexpr int kRecordBytes = kRecordSums + kRecordPanels * kPanelScales;

inline constexpr int kMaxTileSms = 160;       // multiprocessors that share a product
inline constexpr int kHandedSums = 128 * 64;  // floats that the blocks of one hand over
inline constexpr int kMaxTileBlocks = 2 * kMaxTileSms;
inline constexpr int kHandedFlags = 4;       // of a block, one for each group of its warps
inline constexpr int kMaxTileLaunches = 3;   // that share one input
inline constexpr int kMinHandoverRows = 17;  // with fewer there is no scratch for it

struct TileInput {
  unsigned char* records;  // [panel pair][tile][kRecordBytes]
  float* handed_sums;      // [multiprocessor][kHandedSums]; null: none
  unsigned* handed_flags;  // [launch][block][kHandedFlags], zero at first
  int tile_count;
};

// Byte offsets in a record, for row m (0 .. 63) and block `block` of the tile: of the 8 bytes for c = 0 (c is 16 bytes
// further each), and of the scale.
__host__ __device__ constexpr int quant_offset(int block, int m) {
  return m / kPanelRows * kPanelBytes + ((block * 2 + m % kPanelRows / 16) * 8 + m % 8) * 64 + m / 8 % 2 * 8;
}

__host__ __device__ constexpr int scale_offset(int block, int m) {
  return m / kPanelRows * kPanelBytes + kPanelQuants + (block * kPanelRows + m % kPanelRows) * 4;
}

__host__ __device__ constexpr int sum_offset(int block, int m) {
  return kRecordSums + m / kPanelRows * kPanelScales + (block * kPanelRows + m % kPanelRows) * 4;
}

}  // namespace genai::cuda
