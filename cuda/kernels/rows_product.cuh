// rows_product.cuh - one tile of a pair of strips times up to 16 columns of activations, by one warp. An integer
// product m16n8k32 has in its rows 0-7 the upper strip's rows of one block, in rows 8-15 the lower strip's, in its
// columns eight rows of activations.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kGroupColumns = 8;  // of one integer product

// A lane's partials of a pair of strips: [column group][block of the tile][strip of the pair][column 2c, 2c + 1].
template <int kGroups>
using PairPartials = float[kGroups][kTileBlocks][2][2];

// Where a lane finds the activations of its warp's tile: in every chunk the same places, one for each group of columns.
template <int kGroups>
struct ColumnPlaces {
  int quants[kGroups];
  int scales[kGroups];

  __device__ __forceinline__ ColumnPlaces(const RowsInput& input, int tile, int lane) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int mask = input.columns - 1;  // columns that are not there repeat others
      const int column = (group * kGroupColumns + lane / 4) & mask;
      const int pair = (group * kGroupColumns + lane % 4 * 2) & mask;
      quants[group] = keep(input.quant_offset(tile, 0, column) + lane % 4 * 16);
      scales[group] = keep(input.scales() + input.scale_offset(tile, 0, pair));
    }
  }
};

// Block kBlock of the tiles times one group of columns.
template <DType kType, int kBlock>
__device__ __forceinline__ void accumulate_block(const unsigned (&a)[4], uint2 quants, const PairScales<kType>& upper,
                                                 const PairScales<kType>& lower, const float (&scale)[2],
                                                 const float (&sum)[2], float (&partials)[2][2]) {
  constexpr int kOfPair = kBlock % 2;
  int product[4];
  int other[4] = {};
  if constexpr (Fragment<kType>::kHalves) {
    multiply_16(product, a[0], a[1], quants.x, kProductStart);
    multiply_16(other, a[2], a[3], quants.y, kProductStart);
  } else {
    multiply_32<Fragment<kType>::kSigned>(product, a[0], a[1], a[2], a[3], quants.x, quants.y, kProductStart);
  }
#pragma unroll
  for (int strip = 0; strip < 2; ++strip) {
    const PairScales<kType>& scales = strip == 0 ? upper : lower;
#pragma unroll
    for (int k = 0; k < 2; ++k)
      partials[strip][k] = add_block<kType>(
          partials[strip][k], scaled_dot<kType>(product[2 * strip + k], other[2 * strip + k], scales.sub[kOfPair]),
          scales.scale[kOfPair], scales.minimum[kOfPair], scale[k], sum[k]);
  }
}

// One tile of each strip of a pair.
template <DType kType>
struct TilePair {
  static constexpr int kStripStride = kChunkTiles * tile_layout(kType).tile_bytes;  // from strip to strip in a stage

  Fragment<kType> upper;
  Fragment<kType> lower;
  RowScales<kType> upper_scales;
  RowScales<kType> lower_scales;

  // Of a lone strip the lower neighbour is noise, from this stage or what lies behind it, and is not stored. For
  // racecheck it is the strip itself, which takes 1.5 % more time.
  __device__ __forceinline__ void load(const TileBytes* tile, bool lone, int lane) {
    const TileBytes* second = tile + (kForRacecheck && lone ? 0 : kStripStride);
    upper.load(tile, lane);
    lower.load(second, lane);
    upper_scales.load(tile, lane / 4);
    lower_scales.load(second, lane / 4);
  }
};

// Blocks 2 * kPair and 2 * kPair + 1 of the tiles.
template <DType kType, int kPair, int kGroups>
__device__ __forceinline__ void accumulate_blocks(const TilePair<kType>& tiles, const RowsInput& input,
                                                  const unsigned char* chunk, const ColumnPlaces<kGroups>& places,
                                                  PairPartials<kGroups>& partials) {
  const PairScales<kType> upper = tiles.upper_scales.template pair<kPair>();
  const PairScales<kType> lower = tiles.lower_scales.template pair<kPair>();
  const unsigned even[4] = {tiles.upper.template weights<0, 2 * kPair>(), tiles.lower.template weights<0, 2 * kPair>(),
                            tiles.upper.template weights<1, 2 * kPair>(), tiles.lower.template weights<1, 2 * kPair>()};
  const unsigned odd[4] = {
      tiles.upper.template weights<0, 2 * kPair + 1>(), tiles.lower.template weights<0, 2 * kPair + 1>(),
      tiles.upper.template weights<1, 2 * kPair + 1>(), tiles.lower.template weights<1, 2 * kPair + 1>()};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint4 quants = *reinterpret_cast<const uint4*>(chunk + places.quants[group] + kPair * input.pair_quants());
    const unsigned char* scales = chunk + places.scales[group] + kPair * input.pair_scales();
    const float4 scale = *reinterpret_cast<const float4*>(scales);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (has_minimum(kType)) sum = *reinterpret_cast<const float4*>(scales + (input.sums() - input.scales()));
    accumulate_block<kType, 2 * kPair>(even, make_uint2(quants.x, quants.y), upper, lower, {scale.x, scale.y},
                                       {sum.x, sum.y}, partials[group][2 * kPair]);
    accumulate_block<kType, 2 * kPair + 1>(odd, make_uint2(quants.z, quants.w), upper, lower, {scale.z, scale.w},
                                           {sum.z, sum.w}, partials[group][2 * kPair + 1]);
  }
}

// partials += one tile of each strip of a pair times the same tile of all columns, which lies in `chunk`.
template <DType kType, int kGroups>
__device__ __forceinline__ void accumulate_tiles(const TilePair<kType>& tiles, const RowsInput& input,
                                                 const unsigned char* chunk, const ColumnPlaces<kGroups>& places,
                                                 PairPartials<kGroups>& partials) {
  accumulate_blocks<kType, 0>(tiles, input, chunk, places, partials);
  accumulate_blocks<kType, 1>(tiles, input, chunk, places, partials);
}

}  // namespace genai::cuda
