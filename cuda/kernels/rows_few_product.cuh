// rows_few_product.cuh - one tile of a strip times up to four columns of activations, by one warp. An integer product
// m16n8k32 has in its rows 0-7 the strip's rows of one block, in rows 8-15 the same of the next block, in its columns
// four rows of activations of the one block and then of the other: of each lane's four results the two that belong
// together count, those of the first block where c < 2, else of the second.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/rows_program.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

// A lane's partials of a strip: [pair of blocks of the tile][column 2(c % 2), 2(c % 2) + 1], of its block of the pair.
using FewPartials = float[kTileBlocks / 2][2];

// The activations of a warp's tile that a lane multiplies, of one pair of blocks.
struct FewInput {
  uint2 quants;
  float2 scale;
  float2 sum;
};

// Where a lane finds them, in every slice the same places.
struct FewPlaces {
  int quants;
  int scales;

  template <class Slices>
  __device__ __forceinline__ static FewPlaces of(int lane) {
    const int column = lane / 4;
    const int c = lane % 4;
    return {keep(Slices::quant_offset(column / 4, column % 4) + c * 16),
            keep(Slices::scales() + Slices::scale_offset(c / 2, c % 2 * 2))};
  }
};

template <class Slices, bool kSums>
__device__ __forceinline__ FewInput load_few(const unsigned char* slice, const FewPlaces& places, int pair) {
  FewInput input = {};
  input.quants = *reinterpret_cast<const uint2*>(slice + places.quants + pair * Slices::pair_quants());
  const unsigned char* scales = slice + places.scales + pair * Slices::pair_scales();
  input.scale = *reinterpret_cast<const float2*>(scales);
  if constexpr (kSums) input.sum = *reinterpret_cast<const float2*>(scales + (Slices::sums() - Slices::scales()));
  return input;
}

template <DType kType>
struct FewTile {
  Fragment<kType> weights;
  RowScales<kType> scales;

  __device__ __forceinline__ void load(const TileBytes* tile, int lane) {
    weights.load(tile, lane);
    scales.load(tile, lane / 4);
    scales.move_to_first(lane % 4 / 2);
  }
};

// Blocks 2 * kPair and 2 * kPair + 1.
template <DType kType, int kPair>
__device__ __forceinline__ void accumulate_few(const FewTile<kType>& tile, const FewInput& input, bool second,
                                               FewPartials& partials) {
  const PairScales<kType> scales = tile.scales.template moved<kPair>();
  const unsigned a[4] = {
      tile.weights.template weights<0, 2 * kPair>(), tile.weights.template weights<0, 2 * kPair + 1>(),
      tile.weights.template weights<1, 2 * kPair>(), tile.weights.template weights<1, 2 * kPair + 1>()};
  int product[4];
  int other[4] = {};
  if constexpr (Fragment<kType>::kHalves) {
    multiply_16(product, a[0], a[1], input.quants.x, kProductStart);
    multiply_16(other, a[2], a[3], input.quants.y, kProductStart);
  } else {
    multiply_32<Fragment<kType>::kSigned>(product, a[0], a[1], a[2], a[3], input.quants.x, input.quants.y,
                                          kProductStart);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float dot =
        scaled_dot<kType>(second ? product[2 + k] : product[k], second ? other[2 + k] : other[k], scales.sub[0]);
    partials[kPair][k] = add_block<kType>(partials[kPair][k], dot, scales.scale[0], scales.minimum[0],
                                          k == 0 ? input.scale.x : input.scale.y, k == 0 ? input.sum.x : input.sum.y);
  }
}

}  // namespace genai::cuda
