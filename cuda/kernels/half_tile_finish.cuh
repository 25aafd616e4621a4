// half_tile_finish.cuh - what the warps of matmul_half_tiles.cu do after a remainder of K, and after the last one. A
// lane has the four partials of a remainder of each of its outputs and adds them, left to right, to the sum so far,
// which waits in shared memory, where only that lane reads it. After the last remainder outputs are stored, or the sum
// is handed to another block (tile_schedule.cuh).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/half_tile_product.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_work.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

// Rare, and long: one copy of it.
static __device__ __noinline__ float unusual_gate(Epilogue epilogue, float soft_cap, float gate, float up) {
  return apply_soft_cap(activate(epilogue, gate) * up, soft_cap);
}

struct HalfTileFinish {
  static constexpr int kWarpSums = HalfTile::kOctets * kWarpLanes;  // float4 each
  static constexpr int kBytes = HalfTile::kWarps * kWarpSums * 16;
  static_assert(HalfTile::kWarps <= kHandedFlags && kBytes <= kHandedSums * 4);

  // After remainder q of `piece`; `last`: of the piece. `sums` are the lane's own.
  static __device__ __forceinline__ void add_remainder(const TilesProduct& product, const TilePiece& piece, int q,
                                                       bool last, int warp, int lane, float4* sums,
                                                       const float (&partials)[kTileBlocks][HalfTile::kLane]) {
    if (q > 0 && q == piece.first_q) {
      const Handed handed(product, static_cast<int>(blockIdx.x) - 1, warp, lane);
      wait_flag(handed.flag);
#pragma unroll 1
      for (int octet = 0; octet < HalfTile::kOctets; ++octet)
        sums[octet * kWarpLanes] = __ldcg(handed.sums + octet * kWarpLanes);
    }
#pragma unroll
    for (int octet = 0; octet < HalfTile::kOctets; ++octet) {
      float y[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) y[k] = partials[0][4 * octet + k];
      if (q > 0) {
        const float4 sum = sums[octet * kWarpLanes];
        y[0] = sum.x + y[0];
        y[1] = sum.y + y[1];
        y[2] = sum.z + y[2];
        y[3] = sum.w + y[3];
      }
#pragma unroll
      for (int block = 1; block < kTileBlocks; ++block)
#pragma unroll
        for (int k = 0; k < 4; ++k) y[k] = y[k] + partials[block][4 * octet + k];
      sums[octet * kWarpLanes] = make_float4(y[0], y[1], y[2], y[3]);
    }
    if (last && piece.end_q < kUnits) {
      const Handed handed(product, static_cast<int>(blockIdx.x), warp, lane);
#pragma unroll 1
      for (int octet = 0; octet < HalfTile::kOctets; ++octet)
        handed.sums[octet * kWarpLanes] = sums[octet * kWarpLanes];
      __threadfence();
      __syncwarp();
      if (lane == 0) raise_flag(handed.flag);
    }
  }

  // After the last remainder of `piece`.
  static __device__ __forceinline__ void finish(const TilesProduct& product, const TilePiece& piece, int warp, int lane,
                                                const float4* sums) {
    if (piece.end_q < kUnits) return;
    const TilePlace place = tile_place<HalfTile::kBlockStrips>(product, piece.item);
    const StreamOutput& output = product.shape.outputs[place.output];
    const int first_row = (place.first_strip + warp * HalfTile::kWarpStrips) * kStripRows + lane / 4;
    const int first_column = place.column_group * HalfTile::kColumns + lane % 4 * 2;
    if (is_gated(product.epilogue))
      store_gated_pairs(product, output, first_row, first_column, lane / 4 % 2, sums);
    else
      store(product, output, first_row, first_column, sums);
  }

 private:
  // Outputs of one octet before the epilogue: two columns of a row of each strip.
  struct Sums {
    float y[HalfTile::kWarpStrips][2];

    __device__ __forceinline__ Sums(const TilesProduct& product, const StreamOutput& output, int first_row,
                                    const float4& sum)
        : y{{sum.x, sum.y}, {sum.z, sum.w}} {
#pragma unroll
      for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip) {
        const int row = first_row + strip * kStripRows;
        const float bias = row < output.rows && output.bias != nullptr ? output.bias[row] : 0.0f;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          // Without a tile for some of the partials: they are zeros, which are added like the others.
          if (product.shape.tile_count < kUnits) y[strip][k] = y[strip][k] + 0.0f;
          if (output.bias != nullptr) y[strip][k] = y[strip][k] + bias;
        }
      }
    }
  };

  static __device__ __forceinline__ void store(const TilesProduct& product, const StreamOutput& output, int first_row,
                                               int first_column, const float4* sums) {
    const auto each = [&](int octet, const auto& visit) {
#pragma unroll
      for (int i = 0; i < 2 * HalfTile::kWarpStrips; ++i) {
        const int row = first_row + i / 2 * kStripRows;
        const int column = first_column + octet * kOctetRows + i % 2;
        if (row < output.rows && column < product.row_count)
          visit(i, output.out + static_cast<std::int64_t>(column) * output.out_stride + row);
      }
    };
    if (product.epilogue == Epilogue::add && product.soft_cap == 0.0f) {
      float before[HalfTile::kOctets][2 * HalfTile::kWarpStrips] = {};  // all on their way at once
#pragma unroll
      for (int octet = 0; octet < HalfTile::kOctets; ++octet)
        each(octet, [&](int i, const float* out) { before[octet][i] = *out; });
#pragma unroll
      for (int octet = 0; octet < HalfTile::kOctets; ++octet) {
        const Sums own(product, output, first_row, sums[octet * kWarpLanes]);
        each(octet, [&](int i, float* out) { *out = before[octet][i] + own.y[i / 2][i % 2]; });
      }
    } else {
#pragma unroll 1
      for (int octet = 0; octet < HalfTile::kOctets; ++octet) {
        const Sums own(product, output, first_row, sums[octet * kWarpLanes]);
        each(octet,
             [&](int i, float* out) { store_output(product.epilogue, product.soft_cap, own.y[i / 2][i % 2], out); });
      }
    }
  }

  // Of a pair of rows, the lane of the even one takes the first column, the other one the second.
  static __device__ __forceinline__ void store_gated_pairs(const TilesProduct& product, const StreamOutput& output,
                                                           int first_row, int first_column, int odd,
                                                           const float4* sums) {
#pragma unroll 2
    for (int octet = 0; octet < HalfTile::kOctets; ++octet) {
      const Sums own(product, output, first_row, sums[octet * kWarpLanes]);
      float gate[HalfTile::kWarpStrips];
      float up[HalfTile::kWarpStrips];
      bool usual = product.epilogue == Epilogue::gated_silu && product.soft_cap == 0.0f;
#pragma unroll
      for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip) {
        const float(&y)[2] = own.y[strip];
        const float other = __shfl_xor_sync(kFullWarp, odd != 0 ? y[0] : y[1], 4);
        gate[strip] = odd != 0 ? other : y[0];
        up[strip] = odd != 0 ? y[1] : other;
        usual = usual && has_short_silu(gate[strip]);
      }
      float out[HalfTile::kWarpStrips];
      if (__all_sync(kFullWarp, usual)) {
#pragma unroll
        for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip) out[strip] = short_silu(gate[strip]) * up[strip];
      } else {
#pragma unroll
        for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip)
          out[strip] = unusual_gate(product.epilogue, product.soft_cap, gate[strip], up[strip]);
      }
#pragma unroll
      for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip) {
        const int row = first_row + strip * kStripRows;
        const int column = first_column + octet * kOctetRows + odd;
        if (row - odd < output.rows && column < product.row_count)
          output.out[static_cast<std::int64_t>(column) * output.out_stride + row / 2] = out[strip];
      }
    }
  }

  // What a warp of a block hands over.
  struct Handed {
    unsigned* flag;
    float4* sums;

    __device__ __forceinline__ Handed(const TilesProduct& product, int block, int warp, int lane) {
      const int place = block * HalfTile::kWarps + warp;
      flag = product.input.handed_flags + place;
      sums = reinterpret_cast<float4*>(product.input.handed_sums) + place * kWarpSums + lane;
    }
  };
};

}  // namespace genai::cuda
