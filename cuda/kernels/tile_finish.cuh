// tile_finish.cuh - what the warps of matmul_tiles.cu do after a remainder of K, and after the last one. A lane has the
// four partials of a remainder of each of its outputs and adds them, left to right, to the sum so far, which waits in
// shared memory, where only that lane reads it. After the last remainder outputs are stored, or the sum is handed to
// another block (tile_schedule.cuh).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/tile_copy.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_schedule.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

template <class Shape>
struct TileFinish {
  static constexpr int kWarpSums = Shape::kOctets * kWarpLanes;  // float4 each
  static constexpr int kBytes = kTileWarps * kWarpSums * 16;
  static_assert(kTileWarps == kHandedFlags && kBytes <= kHandedSums * 4);

  // After remainder q of `piece`; `last`: of the piece. `sums` are the lane's own.
  static __device__ __forceinline__ void add_remainder(const TilesProduct& product, const TilePiece& piece, int q,
                                                       bool last, int warp, int lane, float4* sums,
                                                       const float (&partials)[kTileBlocks][Shape::kLane]) {
    const float4* before = sums;
    float4* after = sums;
    const int block = static_cast<int>(blockIdx.x);
    if (q > 0 && q == piece.first_q) {
      const int place = (block - 1) * kHandedFlags + warp;
      wait_flag(product.input.handed_flags + place);
      before = reinterpret_cast<const float4*>(product.input.handed_sums) + place * kWarpSums + lane;
    }
    const bool hands_over = last && piece.end_q < kUnits;
    const int place = block * kHandedFlags + warp;
    if (hands_over) after = reinterpret_cast<float4*>(product.input.handed_sums) + place * kWarpSums + lane;
#pragma unroll
    for (int octet = 0; octet < Shape::kOctets; ++octet) {
      float y[4];
      if (q > 0) {
        const float4 sum = before[octet * kWarpLanes];
        y[0] = sum.x + partials[0][4 * octet];
        y[1] = sum.y + partials[0][4 * octet + 1];
        y[2] = sum.z + partials[0][4 * octet + 2];
        y[3] = sum.w + partials[0][4 * octet + 3];
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) y[k] = partials[0][4 * octet + k];
      }
#pragma unroll
      for (int block_of_tile = 1; block_of_tile < kTileBlocks; ++block_of_tile)
#pragma unroll
        for (int k = 0; k < 4; ++k) y[k] = y[k] + partials[block_of_tile][4 * octet + k];
      after[octet * kWarpLanes] = make_float4(y[0], y[1], y[2], y[3]);
    }
    if (hands_over) {
      __threadfence();
      __syncwarp();
      if (lane == 0) raise_flag(product.input.handed_flags + place);
    }
  }

  // After the last remainder of `piece`.
  static __device__ __forceinline__ void finish(const TilesProduct& product, const TilePiece& piece, int warp, int lane,
                                                const float4* sums) {
    if (piece.end_q < kUnits) return;
    const TilePlace place = tile_place(product, piece.item);
    const StreamOutput& output = product.shape.outputs[place.output];
    const bool gated = is_gated(product.epilogue);
    const int odd = lane / 4 % 2;
    const int first_row = (place.first_strip + warp * kWarpStrips) * kStripRows + lane / 4;
#pragma unroll 2
    for (int octet = 0; octet < Shape::kOctets; ++octet) {
      const float4 sum = sums[octet * kWarpLanes];
      const int m = place.column_group * Shape::kColumns + octet * kOctetRows + lane % 4 * 2;
#pragma unroll
      for (int strip = 0; strip < kWarpStrips; ++strip) {
        const int row = first_row + strip * kStripRows;
        float y[2] = {strip == 0 ? sum.x : sum.z, strip == 0 ? sum.y : sum.w};
        const float bias = row < output.rows && output.bias != nullptr ? output.bias[row] : 0.0f;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          // Without a tile for some of the partials: they are zeros, which are added like the others.
          if (product.shape.tile_count < kUnits) y[k] = y[k] + 0.0f;
          if (output.bias != nullptr) y[k] = y[k] + bias;
        }
        if (gated) {  // of a pair of rows, the lane of the even one takes column m, the other one column m + 1
          const float other = __shfl_xor_sync(kFullWarp, odd != 0 ? y[0] : y[1], 4);
          const int column = m + odd;
          if (row - odd < output.rows && column < product.row_count)
            store_gated(product.epilogue, product.soft_cap, odd != 0 ? other : y[0], odd != 0 ? y[1] : other,
                        output.out + static_cast<std::int64_t>(column) * output.out_stride + row / 2);
        } else {
#pragma unroll
          for (int k = 0; k < 2; ++k)
            if (row < output.rows && m + k < product.row_count)
              store_output(product.epilogue, product.soft_cap, y[k],
                           output.out + static_cast<std::int64_t>(m + k) * output.out_stride + row);
        }
      }
    }
  }
};

}  // namespace genai::cuda
