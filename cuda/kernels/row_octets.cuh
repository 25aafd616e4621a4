// row_octets.cuh - one strip times one row of activations by a group of four warps. Warp w takes the octets o = w (mod
// 4) of blocks, hence the partials 8w .. 8w+7; lane (g, c) those of row g, blocks 2c and 2c+1 of an octet. An integer
// product m16n8k32 has in its rows 0-7 the strip's rows of one block and in rows 8-15 those of the next, in its columns
// the octet's activations; of its 128 results the 16 whose row and column are of one block count: those of product i
// lie in lanes with c = i.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

inline constexpr int kOctetWarps = 4;
inline constexpr int kMaxUnitStrips = 4;   // are added up at once, eight lanes each
inline constexpr int kPartialStride = 36;  // floats from one row's 32 partials to the next: no bank conflicts

// Rows 0-7: block kBlock of a tile, rows 8-15: the next one.
template <DType kType, int kBlock>
__device__ __forceinline__ void multiply_blocks(int (&product)[4], const Fragment<kType>& fragment, uint2 quants) {
  multiply_32<Fragment<kType>::kSigned>(product, fragment.template weights<0, kBlock>(),
                                        fragment.template weights<0, kBlock + 1>(),
                                        fragment.template weights<1, kBlock>(),
                                        fragment.template weights<1, kBlock + 1>(), quants.x, quants.y, kProductStart);
}

// The results of a lane's two blocks among those of one product; all lanes take part.
template <DType kType, int kBlock, int kLane>
__device__ __forceinline__ void take_blocks(const Fragment<kType>& fragment, uint2 quants, int c, int (&even)[2],
                                            int (&odd)[2]) {
  int product[4];
  if constexpr (Fragment<kType>::kHalves) {
    int other[4];
    multiply_16(product, fragment.template weights<0, kBlock>(), fragment.template weights<0, kBlock + 1>(), quants.x,
                kProductStart);
    multiply_16(other, fragment.template weights<1, kBlock>(), fragment.template weights<1, kBlock + 1>(), quants.y,
                kProductStart);
    even[1] = c == kLane ? other[0] : even[1];
    odd[1] = c == kLane ? other[3] : odd[1];
  } else {
    multiply_blocks<kType, kBlock>(product, fragment, quants);
  }
  even[0] = c == kLane ? product[0] : even[0];
  odd[0] = c == kLane ? product[3] : odd[0];
}

// The lane's two partials += the octet of blocks that begins at `tile`; without a second tile its last four are zero.
template <DType kType, bool kSecondTile>
__device__ __forceinline__ void accumulate_octet(int lane, const TileBytes* tile, uint2 quants, float2 scales,
                                                 float2 sums, float (&partials)[2]) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int c = lane % 4;
  int even[2] = {};
  int odd[2] = {};
  PairScales<kType> pair = {};
  if (kSecondTile || c < 2) pair.load(tile + (c < 2 ? 0 : kTileBytes), lane / 4, c % 2);
  Fragment<kType> first = {};
  Fragment<kType> second = {};
  first.load(tile, lane);
  if constexpr (kSecondTile) second.load(tile + kTileBytes, lane);
  take_blocks<kType, 0, 0>(first, quants, c, even, odd);
  take_blocks<kType, 2, 1>(first, quants, c, even, odd);
  if constexpr (kSecondTile) {
    take_blocks<kType, 0, 2>(second, quants, c, even, odd);
    take_blocks<kType, 2, 3>(second, quants, c, even, odd);
  }
  partials[0] = add_block<kType>(partials[0], scaled_dot<kType>(even[0], even[1], pair.sub[0]), pair.scale[0],
                                 pair.minimum[0], scales.x, sums.x);
  partials[1] = add_block<kType>(partials[1], scaled_dot<kType>(odd[0], odd[1], pair.sub[1]), pair.scale[1],
                                 pair.minimum[1], scales.y, sums.y);
}

// Likewise, of the octet's blocks 2 * pair and 2 * pair + 1 alone: the result counts in lanes with c = pair. `tile` is
// that of the pair.
template <DType kType>
__device__ __forceinline__ void accumulate_pair(int lane, const TileBytes* tile, int pair, uint2 quants, float2 scales,
                                                float2 sums, float (&partials)[2]) {
  PairScales<kType> pair_scales = {};
  pair_scales.load(tile, lane / 4, pair % 2);
  Fragment<kType> fragment = {};
  fragment.load(tile, lane);
  if (pair % 2 != 0) fragment.take_second_pair();
  int product[4];
  int other[4] = {};
  if constexpr (Fragment<kType>::kHalves) {
    multiply_16(product, fragment.template weights<0, 0>(), fragment.template weights<0, 1>(), quants.x, kProductStart);
    multiply_16(other, fragment.template weights<1, 0>(), fragment.template weights<1, 1>(), quants.y, kProductStart);
  } else {
    multiply_blocks<kType, 0>(product, fragment, quants);
  }
  partials[0] = add_block<kType>(partials[0], scaled_dot<kType>(product[0], other[0], pair_scales.sub[0]),
                                 pair_scales.scale[0], pair_scales.minimum[0], scales.x, sums.x);
  partials[1] = add_block<kType>(partials[1], scaled_dot<kType>(product[3], other[3], pair_scales.sub[1]),
                                 pair_scales.scale[1], pair_scales.minimum[1], scales.y, sums.y);
}

// What the octets of a warp read: advanced from octet to octet.
struct OctetInput {
  const uint2* quants;
  const float2* scales;
  const float2* sums;

  // Scales and sums of the lane's blocks, or of those of one `pair`.
  __device__ __forceinline__ OctetInput(int lane, const RowVector& row, int octet)
      : OctetInput(lane, row, octet, lane % 4) {}
  __device__ __forceinline__ OctetInput(int lane, const RowVector& row, int octet, int pair) {
    quants = row.quants + octet * kWarpLanes + lane;
    scales = reinterpret_cast<const float2*>(row.scales + octet * kOctetBlocks + 2 * pair);
    sums = reinterpret_cast<const float2*>(row.sums + octet * kOctetBlocks + 2 * pair);
  }
  __device__ __forceinline__ void advance() {
    quants += kOctetWarps * kWarpLanes;
    scales += kOctetWarps * kOctetBlocks / 2;
    sums += kOctetWarps * kOctetBlocks / 2;
  }
};

// The warp's octets from `octet` on, as long as they lie in the piece whose tiles end with `end_tile` of the strip;
// `tile` is that of the next octet.
template <DType kType, int kOctetsAtOnce>
__device__ __forceinline__ void accumulate_octets(int lane, const TileBytes* tile, int end_tile, int& octet,
                                                  OctetInput& input, float (&partials)[2]) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const auto sums = [&] { return has_minimum(kType) ? *input.sums : make_float2(0.0f, 0.0f); };
#pragma unroll kOctetsAtOnce
  for (; 2 * octet + 1 < end_tile; octet += kOctetWarps) {
    accumulate_octet<kType, true>(lane, tile, *input.quants, *input.scales, sums(), partials);
    input.advance();
    tile += 2 * kOctetWarps * kTileBytes;
  }
  if (2 * octet >= end_tile) return;
  accumulate_octet<kType, false>(lane, tile, *input.quants, *input.scales, sums(), partials);
  octet += kOctetWarps;
}

// Likewise, one pair of blocks of each octet.
template <DType kType>
__device__ __forceinline__ void accumulate_pairs(int lane, const TileBytes* tile, int end_tile, int pair, int& octet,
                                                 OctetInput& input, float (&partials)[2]) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const auto sums = [&] { return has_minimum(kType) ? *input.sums : make_float2(0.0f, 0.0f); };
  const int pair_tile = pair / 2;
  tile += pair_tile * kTileBytes;
#pragma unroll 1
  for (; 2 * octet + pair_tile < end_tile; octet += kOctetWarps) {
    accumulate_pair<kType>(lane, tile, pair, *input.quants, *input.scales, sums(), partials);
    input.advance();
    tile += 2 * kOctetWarps * kTileBytes;
  }
  if (2 * octet < end_tile) octet += kOctetWarps;  // its second tile does not exist
}

}  // namespace genai::cuda
