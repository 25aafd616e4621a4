// tile_input.cuh - how many rows of activations lie in scratch for the tensor-core tiles of matmul_tiles.cu and
// matmul_half_tiles.cu. Rows are cut into panels of 32, two to a record; columns into tiles of 128. The record of two
// panels' tile is contiguous.
//
// ByteRecord, for integer products: inside it every lane finds its operands in 16-byte loads, its scales in 8-byte
// loads (16 bytes would take as long as four loads, whether or not lanes read the same):
//   panel 0, panel 1, each:
//     quants [block j][pair of column octets p][column g of an octet][c][octet of the pair][h][4 bytes]
//     scales [block j][column m of the panel]
//   sums of panel 0, of panel 1: [block j][column m of the panel]
// Column m of a panel is pair m / 16, octet of the pair m / 8 % 2, g = m % 8.
//
// HalfRecord, for products of halves: the int8 of a block are exact in them. Rows are cut into octets:
//   quants [octet][block j][half h of the block][odd][row g of the octet][8 halves]
//   scales [panel][block j][row of the panel]
//   sums   likewise
// Eight rows of 16 bytes are what a product reads at once (half_tile_ptx.cuh). They hold every second activation of 16:
// the even ones, then the odd ones, so that a word of packed weights gives its operands by masks alone.
//
// Behind the records lies what blocks hand to each other (tile_schedule.cuh): sums, and flags that say they are there.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/halves.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kOctetRows = 8;
inline constexpr int kPanelRows = 32;
inline constexpr int kPanelScales = kPanelRows * kTileBlocks * 4;
inline constexpr int kRecordPanels = 2;
inline constexpr int kRecordRows = kRecordPanels * kPanelRows;

inline constexpr int kMaxTileSms = 160;       // multiprocessors that share a product
inline constexpr int kHandedSums = 128 * 64;  // floats that the blocks of one hand over
inline constexpr int kHandedFlags = 8;        // likewise, one for each group of their warps
inline constexpr int kLaunchFlags = kMaxTileSms * kHandedFlags;
inline constexpr int kMaxTileLaunches = 3;   // that share one input
inline constexpr int kMinHandoverRows = 17;  // with fewer there is no scratch for it

struct TileInput {
  unsigned char* records;  // [record][tile]
  float* handed_sums;      // [multiprocessor][kHandedSums]; null: none
  unsigned* handed_flags;  // [launch][kLaunchFlags], zero at first
  int tile_count;
};

// In both records: byte offsets for row m (0 .. 63) and block `block` of the tile, and how the quants are stored that
// lane `lane` of a warp has of a row's tile: those of columns 4 * lane .. + 3.
struct ByteRecord {
  static constexpr int kPanelQuants = kPanelRows * kTileWidth;
  static constexpr int kPanelBytes = kPanelQuants + kPanelScales;
  static constexpr int kSums = kRecordPanels * kPanelBytes;
  static constexpr int kBytes = kSums + kRecordPanels * kPanelScales;

  // Of the 8 bytes for c = 0; c is 16 bytes further each.
  __host__ __device__ static constexpr int quants(int block, int m) {
    return m / kPanelRows * kPanelBytes + ((block * 2 + m % kPanelRows / 16) * 8 + m % 8) * 64 + m / 8 % 2 * 8;
  }
  __host__ __device__ static constexpr int scale(int block, int m) {
    return m / kPanelRows * kPanelBytes + kPanelQuants + (block * kPanelRows + m % kPanelRows) * 4;
  }
  __host__ __device__ static constexpr int sum(int block, int m) {
    return kSums + m / kPanelRows * kPanelScales + (block * kPanelRows + m % kPanelRows) * 4;
  }
  __device__ static __forceinline__ void store(unsigned char* record, int lane, int m, unsigned four) {
    *reinterpret_cast<unsigned*>(record + quants(lane / 8, m) + lane % 4 * 16 + lane / 4 % 2 * 4) = four;
  }
};

struct HalfRecord {
  static constexpr int kCoreBytes = kOctetRows * 16;
  static constexpr int kOctetBytes = kOctetRows * kTileWidth * 2;
  static constexpr int kScales = kRecordRows * kTileWidth * 2;
  static constexpr int kSums = kScales + kRecordPanels * kPanelScales;
  static constexpr int kBytes = kSums + kRecordPanels * kPanelScales;

  // Of the even activations of half h; the odd ones are kCoreBytes on.
  __host__ __device__ static constexpr int quants(int block, int half, int m) {
    return m / kOctetRows * kOctetBytes + (block * 2 + half) * 2 * kCoreBytes + m % kOctetRows * 16;
  }
  __host__ __device__ static constexpr int scale(int block, int m) {
    return kScales + m / kPanelRows * kPanelScales + (block * kPanelRows + m % kPanelRows) * 4;
  }
  __host__ __device__ static constexpr int sum(int block, int m) { return scale(block, m) + kSums - kScales; }
  __device__ static __forceinline__ void store(unsigned char* record, int lane, int m, unsigned four) {
    unsigned char* place = record + quants(lane / 8, lane / 4 % 2, m) + lane % 4 * 4;
    *reinterpret_cast<unsigned*>(place) = widen_bytes<0>(four);
    *reinterpret_cast<unsigned*>(place + kCoreBytes) = widen_bytes<1>(four);
  }
};

}  // namespace genai::cuda
