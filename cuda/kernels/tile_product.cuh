// tile_product.cuh - what four warps of matmul_tiles.cu do with a tile of K: 64 rows of weights, 16 of them with each
// warp, times the columns of the item, block after block of the tile. Weights become operands in registers
// (tile_operand.cuh), activations are read where they lie, and a block's product is float(idot) itself, exactly. While
// tensor cores work on a block, the product of the one before is scaled and added to its partial: four partials of
// each output are in registers.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_operand.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kWarpStrips = 2;
inline constexpr int kGroupWarps = 4;  // of a product
inline constexpr int kTileGroups = 2;  // of a block
inline constexpr int kTileWarps = kTileGroups * kGroupWarps;
inline constexpr int kBlockStrips = kTileWarps * kWarpStrips;

template <int kColumnCount>
struct TileShape {
  static constexpr int kColumns = kColumnCount;
  static constexpr int kOctets = kColumns / kOctetRows;
  static constexpr int kPanels = kColumns / kPanelRows;
  static constexpr int kLane = 4 * kOctets;  // outputs of a lane, as multiply_async has them
};

// One step in shared memory: a tile of every strip, then the activations.
template <DType kType, class Shape>
struct Stage {
  static constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  static constexpr int kInput = kBlockStrips * kTileBytes;
  static constexpr int kScales = kInput + Shape::kPanels * kPanelQuants;
  static constexpr int kScaleBytes = Shape::kPanels * kPanelScales;
  static constexpr int kSums = kScales + kScaleBytes;
  static constexpr int kBytes = kSums + (has_minimum(kType) ? kScaleBytes : 0);
  static_assert(kBytes % 128 == 0 && kInput % 128 == 0);
};

template <DType kType, class Shape>
struct WarpTile {
  using Layout = Stage<kType, Shape>;
  using Lane = float[Shape::kLane];

  int lane;
  int warp;  // of the block
  Fragment<kType> raw[kWarpStrips];
  RowScales<kType> scales[kWarpStrips];
  Lane dots[2];  // of two blocks in turn
  Lane partials[kTileBlocks];

  __device__ __forceinline__ WarpTile(int own_warp, int own_lane) : lane(own_lane), warp(own_warp), dots{} {}

  __device__ __forceinline__ void load_weights(const unsigned char* stage) {
#pragma unroll
    for (int strip = 0; strip < kWarpStrips; ++strip) {
      const TileBytes* tile = stage + (warp * kWarpStrips + strip) * Layout::kTileBytes;
      raw[strip].load(tile, lane);
      scales[strip].load(tile, lane / 4);
    }
  }

  // One step, whose weights have been loaded. `turn()` waits for the next step and gives its stage; `done()` says that
  // this one is no longer needed. kFresh: partials start from zero.
  template <bool kFresh, class Turn, class Done>
  __device__ __forceinline__ const unsigned char* step(const unsigned char* stage, const Turn& turn, const Done& done) {
    multiply<0>(stage);
    multiply<1>(stage);
    wait_for_products<1>(dots[0]);
    accumulate<0, kFresh>(stage, row_factors<kType, 0>(scales[0]), row_factors<kType, 0>(scales[1]));
    multiply<2>(stage);
    wait_for_products<1>(dots[1]);
    accumulate<1, kFresh>(stage, row_factors<kType, 1>(scales[0]), row_factors<kType, 1>(scales[1]));
    multiply<3>(stage);
    wait_for_products<1>(dots[0]);
    accumulate<2, kFresh>(stage, row_factors<kType, 2>(scales[0]), row_factors<kType, 2>(scales[1]));
    const RowFactors upper = row_factors<kType, 3>(scales[0]);
    const RowFactors lower = row_factors<kType, 3>(scales[1]);
    const unsigned char* next = turn();
    load_weights(next);
    wait_for_products<0>(dots[1]);
    accumulate<3, kFresh>(stage, upper, lower);
    done();
    return next;
  }

 private:
  template <int kBlock>
  __device__ __forceinline__ void multiply(const unsigned char* stage) {
    BlockOperands<kType> operands;
    operands.template take<kBlock, 0>(raw[0], scales[0]);
    operands.template take<kBlock, 1>(raw[1], scales[1]);
    Lane& dot = dots[kBlock % 2];
    begin_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t columns =
          columns_at(shared_address(stage) + Layout::kInput + (kBlock * 2 + half) * 2 * kCoreBytes, kCoreBytes,
                     kOctetBytes);
      if (half == 0)
        multiply_async<false>(dot, operands.half[half][0], columns);
      else
        multiply_async<true>(dot, operands.half[half][0], columns);
      if constexpr (kProductsOfHalf<kType> == 2) multiply_async<true>(dot, operands.half[half][1], columns);
    }
    end_products();
  }

  template <int kBlock, bool kFresh>
  __device__ __forceinline__ void accumulate(const unsigned char* stage, const RowFactors& upper,
                                             const RowFactors& lower) {
#pragma unroll
    for (int octet = 0; octet < Shape::kOctets; ++octet) {
      const int place = scale_offset(kBlock, octet * kOctetRows) + lane % 4 * 8;
      const float2 scale = *reinterpret_cast<const float2*>(stage + Layout::kScales + place);
      float2 sum = {};
      if constexpr (has_minimum(kType)) sum = *reinterpret_cast<const float2*>(stage + Layout::kSums + place);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const RowFactors& row = k < 2 ? upper : lower;
        float& own = partials[kBlock][4 * octet + k];
        own = add_block<kType>(kFresh ? 0.0f : own, dots[kBlock % 2][4 * octet + k], row.scale, row.minimum,
                               k % 2 == 0 ? scale.x : scale.y, k % 2 == 0 ? sum.x : sum.y);
      }
    }
  }
};

}  // namespace genai::cuda
