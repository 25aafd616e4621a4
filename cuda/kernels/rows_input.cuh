// rows_input.cuh - how 2 to 16 rows of activations lie in scratch for matmul_rows.cu: normalised, quantised, and in the
// order in which lanes of the integer matrix product read them. Rows are the columns of that product; their number is
// rounded up to a power of two, and what lies in columns behind the last row is never looked at. K is cut into chunks
// of eight tiles, each contiguous, so that one bulk copy fetches it, with or without its sums:
//   quants [tile][pair of blocks][column][c][block of the pair][h][4 bytes]: one 16-byte load a lane (packed_layout.h)
//   scales [tile][pair of blocks][pair of columns][block of the pair][column of the pair]: likewise
//   sums   the same as scales
#pragma once
#include <cuda_runtime.h>

#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kMaxRows = 16;
inline constexpr int kChunkTiles = 8;  // one for each four of the 32 partials

__host__ __device__ constexpr int chunk_count(int tile_count) { return (tile_count + kChunkTiles - 1) / kChunkTiles; }

struct RowsInput {
  unsigned char* chunks;
  int columns;  // a power of two, 2 to kMaxRows

  __host__ __device__ constexpr int tile_scales() const { return kTileBlocks * 4 * columns; }
  __host__ __device__ constexpr int scales() const { return kChunkTiles * kTileWidth * columns; }
  __host__ __device__ constexpr int sums() const { return scales() + kChunkTiles * tile_scales(); }
  __host__ __device__ constexpr int chunk_bytes() const { return sums() + kChunkTiles * tile_scales(); }
  // Offsets in a chunk, for block `block` of its tile `tile` and column m: of the 8 bytes for c = 0 (c is 16 bytes
  // further each); of the scale behind scales() and the sum behind sums().
  __host__ __device__ constexpr int quant_offset(int tile, int block, int m) const {
    return (2 * tile + block / 2) * pair_quants() + m * 64 + block % 2 * 8;
  }
  __host__ __device__ constexpr int scale_offset(int tile, int block, int m) const {
    return (2 * tile + block / 2) * pair_scales() + (m / 2 * 4 + block % 2 * 2 + m % 2) * 4;
  }
  // From one pair of blocks to the next.
  __host__ __device__ constexpr int pair_quants() const { return 64 * columns; }
  __host__ __device__ constexpr int pair_scales() const { return 8 * columns; }
};

constexpr int rows_columns(int row_count) {
  int columns = 2;
  while (columns < row_count) columns *= 2;
  return columns;
}

}  // namespace genai::cuda
