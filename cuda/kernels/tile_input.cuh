// tile_input.cuh - how many rows of activations lie in scratch for the tensor-core tiles of matmul_tiles.cu. Rows are
// cut into panels of 64, columns into tiles of 128; one panel's tile is contiguous, so that a bulk copy fetches it, and
// inside it every lane finds its operands in 16-byte loads:
//   quants [block j][pair of column octets p][column g of an octet][c][octet of the pair][h][4 bytes]
//   scales [block j][half of the panel][c][octet of the half][2 columns], sums the same
// Column m of a panel is octet m / 8 (pair m / 16, half m / 32), g = m % 8 or, for scales, c = m % 8 / 2.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kPanelRows = 64;
inline constexpr int kPanelTileBytes = kPanelRows * kTileWidth;
inline constexpr int kPanelTileScales = kPanelRows * kTileBlocks;

struct TileInput {
  unsigned char* quants;  // [panel][tile][kPanelTileBytes]
  float* scales;          // [panel][tile][kPanelTileScales]
  float* sums;
  int tile_count;
};

// Byte offset in a panel's tile of the 8 bytes for c = 0 of block `block` of column m; c is 16 bytes further each.
__host__ __device__ constexpr int panel_quant_offset(int block, int m) {
  return ((block * 4 + m / 16) * 8 + m % 8) * 64 + m / 8 % 2 * 8;
}

__host__ __device__ constexpr int panel_scale_index(int block, int m) {
  return ((block * 2 + m / 32) * 4 + m % 8 / 2) * 8 + m / 8 % 4 * 2 + m % 2;
}

}  // namespace genai::cuda
