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
  unsigned columns;  // of the step, in units of 16 bytes of shared memory
  Fragment<kType> raw[kWarpStrips];
  RowScales<kType> scales[kWarpStrips];
  Lane dots[2];  // of two blocks in turn
  Lane partials[kTileBlocks];

  __device__ __forceinline__ WarpTile(int own_warp, int own_lane)
      : lane(keep(own_lane)), warp(own_warp), columns(0), dots{} {}

  // What a step begins with.
  __device__ __forceinline__ void load(const unsigned char* stage) {
#pragma unroll
    for (int strip = 0; strip < kWarpStrips; ++strip) {
      const TileBytes* tile = stage + (warp * kWarpStrips + strip) * Layout::kTileBytes;
      raw[strip].load(tile, lane);
      scales[strip].load(tile, lane / 4);
    }
  }

  // One step, which has been loaded. `peek()` looks whether the next step is there, `turn(seen)` waits for it and gives
  // its stage; `done()` says that this one is no longer needed. kFresh: partials start from zero.
  template <bool kFresh, class Peek, class Turn, class Done>
  __device__ __forceinline__ void step(const unsigned char* stage, const Peek& peek, const Turn& turn,
                                       const Done& done) {
    columns = __shfl_sync(kFullWarp, (shared_address(stage) + Layout::kInput) / 16, 0);  // in a register of the warp
    multiply<0>();
    multiply<1>();
    accumulate<0, kFresh, 1>(stage, row_factors<kType, 0>(scales[0]), row_factors<kType, 0>(scales[1]));
    multiply<2>();
    accumulate<1, kFresh, 1>(stage, row_factors<kType, 1>(scales[0]), row_factors<kType, 1>(scales[1]));
    multiply<3>();
    const bool seen = peek();
    accumulate<2, kFresh, 1>(stage, row_factors<kType, 2>(scales[0]), row_factors<kType, 2>(scales[1]));
    const RowFactors upper = row_factors<kType, 3>(scales[0]);
    const RowFactors lower = row_factors<kType, 3>(scales[1]);
    load(turn(seen));
    accumulate<3, kFresh, 0>(stage, upper, lower);
    done();
  }

 private:
  static constexpr int kOctetPairs = Shape::kOctets / 2;
  static constexpr int kAhead = has_minimum(kType) ? 1 : 2;  // pairs of octets whose scales are on their way while a product is waited for

  template <int kBlock>
  __device__ __forceinline__ void multiply() {
    BlockOperands<kType> operands;
    operands.template take<kBlock, 0>(raw[0], scales[0]);
    operands.template take<kBlock, 1>(raw[1], scales[1]);
    Lane& dot = dots[kBlock % 2];
    begin_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t b =
          columns_at<kCoreBytes, kOctetBytes>(columns + (kBlock * 2 + half) * 2 * kCoreBytes / 16);
      if (half == 0)
        multiply_async<false>(dot, operands.half[half][0], b);
      else
        multiply_async<true>(dot, operands.half[half][0], b);
      if constexpr (kProductsOfHalf<kType> == 2) multiply_async<true>(dot, operands.half[half][1], b);
    }
    end_products();
  }

  // Waits until no more than kLeft blocks are with the tensor cores, of which this one is none.
  template <int kBlock, bool kFresh, int kLeft>
  __device__ __forceinline__ void accumulate(const unsigned char* stage, const RowFactors& upper,
                                             const RowFactors& lower) {
    const unsigned char* own = stage + Layout::kScales + lane % 4 * 16;
    float4 scale[kOctetPairs];
    float4 sum[kOctetPairs];
#pragma unroll
    for (int pair = 0; pair < kAhead; ++pair) load_columns<kBlock>(own, pair, scale[pair], sum[pair]);
    wait_for_products<kLeft>(dots[kBlock % 2]);
#pragma unroll
    for (int pair = 0; pair < kOctetPairs; ++pair) {
      if (pair >= kAhead) load_columns<kBlock>(own, pair, scale[pair], sum[pair]);
      const float scale_of[4] = {scale[pair].x, scale[pair].y, scale[pair].z, scale[pair].w};
      const float sum_of[4] = {sum[pair].x, sum[pair].y, sum[pair].z, sum[pair].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const RowFactors& row = i % 4 < 2 ? upper : lower;
        const int column = i / 4 * 2 + i % 2;
        float& partial = partials[kBlock][8 * pair + i];
        partial = add_block<kType>(kFresh ? 0.0f : partial, dots[kBlock % 2][8 * pair + i], row.scale, row.minimum,
                                   scale_of[column], sum_of[column]);
      }
    }
  }

  template <int kBlock>
  static __device__ __forceinline__ void load_columns(const unsigned char* own, int pair, float4& scale, float4& sum) {
    const unsigned char* place = own + scale_offset(kBlock, pair * 2 * kOctetRows);
    scale = *reinterpret_cast<const float4*>(place);
    if constexpr (has_minimum(kType)) sum = *reinterpret_cast<const float4*>(place + Layout::kSums - Layout::kScales);
  }
};

}  // namespace genai::cuda
