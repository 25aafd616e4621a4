// fragment.cuh - a lane's part of a packed tile as operands of the integer matrix product, and its scales. Lane 4*g + c
// holds row g, weights 4c .. 4c+3 and 16 on, of all four blocks of the tile: one 16-byte load a plane
// (packed_layout.h).
//
// Weights are placed in the high bits of their bytes, so that the sign needs no more than flipping the top bit: a
// product is kFactor times the dot of the specification. It starts at the bits of 1.5 * 2^23, so that, read as a float
// and scaled by one fma, it is float(idot) exactly (|kFactor * idot| < 2^22).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile.cuh"
#include "engine/exact_math.h"
#include "engine/packed_layout.h"

namespace genai::cuda {

// Lanes read the 16-byte planes of a tile in any shared or global memory.
template <DType kType>
struct Fragment {
  static constexpr TileLayout kLayout = tile_layout(kType);
  static constexpr bool kFiveBits = kType == DType::Q5_0 || kType == DType::Q5_1 || kType == DType::Q5_K;
  static constexpr bool kSixBits = kType == DType::Q6_K;
  static constexpr bool kEightBits = kType == DType::Q8_0;
  static constexpr bool kSigned = kLayout.zero_point != 0 || kEightBits;
  static constexpr bool kHalves = kSixBits;  // a sub-scale for each half of a block
  static constexpr bool kSubScales = kLayout.sub_scale >= 0;
  static constexpr int kFactor = kEightBits ? 1 : kSixBits ? 4 : kFiveBits ? 8 : 16;

  uint4 low;   // nibbles of blocks 0..3; eight bits: bytes of h = 0
  uint4 high;  // five bits: x only, the one-bit plane; six bits: x, y, the two-bit planes; eight bits: bytes of h = 1

  __device__ __forceinline__ void load(const TileBytes* tile, int lane) {
    low = *reinterpret_cast<const uint4*>(tile + 16 * lane);
    if constexpr (kFiveBits) high.x = *reinterpret_cast<const unsigned*>(tile + kLayout.high_bits + 4 * lane);
    if constexpr (kSixBits) {
      const uint2 bits = *reinterpret_cast<const uint2*>(tile + kLayout.high_bits + 8 * lane);
      high.x = bits.x;
      high.y = bits.y;
    }
    if constexpr (kEightBits) high = *reinterpret_cast<const uint4*>(tile + 512 + 16 * lane);
  }

  // With blocks 2 and 3 in the places of 0 and 1.
  __device__ __forceinline__ void take_second_pair() {
    low.x = low.z;
    low.y = low.w;
    if constexpr (kFiveBits) high.x >>= 2;
    if constexpr (kSixBits) {
      high.x >>= 4;
      high.y >>= 4;
    }
    if constexpr (kEightBits) {
      high.x = high.z;
      high.y = high.w;
    }
  }

  // Weights of half h of block j, four bytes of kFactor * (n - zero point).
  template <int kHalf, int kBlock>
  __device__ __forceinline__ unsigned weights() const {
    constexpr unsigned kFlip = kSigned ? 0x80808080u : 0u;
    const unsigned word = kBlock == 0 ? low.x : kBlock == 1 ? low.y : kBlock == 2 ? low.z : low.w;
    if constexpr (kEightBits) {
      const unsigned second = kBlock == 0 ? high.x : kBlock == 1 ? high.y : kBlock == 2 ? high.z : high.w;
      return kHalf == 0 ? word : second;
    } else if constexpr (kFiveBits) {
      constexpr int kBit = 4 * kHalf + kBlock;
      const unsigned nibbles = kHalf == 0 ? word << 3 : word >> 1;
      return and_or(nibbles, 0x78787878u, and_xor(high.x << (7 - kBit), 0x80808080u, kFlip));
    } else if constexpr (kSixBits) {
      const unsigned nibbles = kHalf == 0 ? word << 2 : word >> 2;
      const unsigned bits = kHalf == 0 ? high.x : high.y;
      const unsigned placed = kBlock == 3 ? bits : bits << (6 - 2 * kBlock);
      return and_or(nibbles, 0x3c3c3c3cu, and_xor(placed, 0xc0c0c0c0u, kFlip));
    } else {
      return and_xor(kHalf == 0 ? word << 4 : word, 0xf0f0f0f0u, kFlip);
    }
  }
};

inline constexpr int kProductStart = static_cast<int>(kRoundMagicBits);

template <DType kType>
__device__ __forceinline__ float product_to_float(int product) {
  constexpr float kInverse = 1.0f / static_cast<float>(Fragment<kType>::kFactor);
  const float bits = bits_float(static_cast<unsigned>(product));
  if constexpr (Fragment<kType>::kFactor == 1) return bits - kRoundMagic;
  return exact_fma(bits, kInverse, -kRoundMagic * kInverse);
}

// Scales of two neighbouring blocks, 2 * pair and 2 * pair + 1, of one row of a tile.
template <DType kType>
struct PairScales {
  float scale[2];
  float minimum[2];
  float sub[2][2];  // [block][half], where there are sub-scales; half 0 only unless there are halves

  __device__ __forceinline__ void load(const TileBytes* tile, int row, int pair) {
    constexpr TileLayout kLayout = tile_layout(kType);
    if constexpr (Fragment<kType>::kSubScales) {
      scale[0] = scale[1] = widen_half(*reinterpret_cast<const std::uint16_t*>(tile + kLayout.scale + 2 * row));
      if constexpr (kType == DType::Q6_K) {
        const char4 bytes = *reinterpret_cast<const char4*>(tile + kLayout.sub_scale + 8 * row + 4 * pair);
        sub[0][0] = static_cast<float>(bytes.x);
        sub[0][1] = static_cast<float>(bytes.y);
        sub[1][0] = static_cast<float>(bytes.z);
        sub[1][1] = static_cast<float>(bytes.w);
      } else {
        const uchar2 scales = *reinterpret_cast<const uchar2*>(tile + kLayout.sub_scale + 4 * row + 2 * pair);
        const uchar2 minima = *reinterpret_cast<const uchar2*>(tile + kLayout.sub_min + 4 * row + 2 * pair);
        const float unit = widen_half(*reinterpret_cast<const std::uint16_t*>(tile + kLayout.minimum + 2 * row));
        sub[0][0] = static_cast<float>(scales.x);
        sub[1][0] = static_cast<float>(scales.y);
        minimum[0] = -(unit * static_cast<float>(minima.x));
        minimum[1] = -(unit * static_cast<float>(minima.y));
      }
    } else {
      const ushort2 scales = *reinterpret_cast<const ushort2*>(tile + kLayout.scale + 8 * row + 4 * pair);
      scale[0] = widen_half(scales.x);
      scale[1] = widen_half(scales.y);
      if constexpr (has_minimum(kType)) {
        const ushort2 minima = *reinterpret_cast<const ushort2*>(tile + kLayout.minimum + 8 * row + 4 * pair);
        minimum[0] = widen_half(minima.x);
        minimum[1] = widen_half(minima.y);
      }
    }
  }
};

// Scales of the four blocks of one row of a tile, as they lie there.
template <DType kType>
struct RowScales {
  static constexpr TileLayout kLayout = tile_layout(kType);

  uint2 scale;    // four halves, or one where there are sub-scales
  uint2 minimum;  // likewise
  uint2 sub;      // Q6_K: eight signed bytes; else x only, four bytes
  unsigned sub_minimum;

  __device__ __forceinline__ void load(const TileBytes* tile, int row) {
    if constexpr (Fragment<kType>::kSubScales) {
      scale.x = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.scale + 2 * row);
      if constexpr (kType == DType::Q6_K) {
        sub = *reinterpret_cast<const uint2*>(tile + kLayout.sub_scale + 8 * row);
      } else {
        sub.x = *reinterpret_cast<const unsigned*>(tile + kLayout.sub_scale + 4 * row);
        minimum.x = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.minimum + 2 * row);
        sub_minimum = *reinterpret_cast<const unsigned*>(tile + kLayout.sub_min + 4 * row);
      }
    } else {
      scale = *reinterpret_cast<const uint2*>(tile + kLayout.scale + 8 * row);
      if constexpr (has_minimum(kType)) minimum = *reinterpret_cast<const uint2*>(tile + kLayout.minimum + 8 * row);
    }
  }

  // Puts those of block `block` (0 or 1) of each pair in the place of the first.
  __device__ __forceinline__ void move_to_first(int block) {
    if constexpr (kType == DType::Q6_K) {
      sub.x >>= 16 * block;
      sub.y >>= 16 * block;
    } else if constexpr (Fragment<kType>::kSubScales) {
      sub.x >>= 8 * block;
      sub_minimum >>= 8 * block;
    } else {
      const unsigned halves = block == 0 ? 0x5410u : 0x7632u;  // pairs beside each other
      scale.x = __byte_perm(scale.x, scale.y, halves);
      if constexpr (has_minimum(kType)) minimum.x = __byte_perm(minimum.x, minimum.y, halves);
    }
  }

  // Of that block of pair kPair, in the place of the first.
  template <int kPair>
  __device__ __forceinline__ PairScales<kType> moved() const {
    if constexpr (Fragment<kType>::kSubScales) return pair<kPair>();
    PairScales<kType> result = {};
    result.scale[0] = widen_half(static_cast<std::uint16_t>(scale.x >> (16 * kPair)));
    if constexpr (has_minimum(kType))
      result.minimum[0] = widen_half(static_cast<std::uint16_t>(minimum.x >> (16 * kPair)));
    return result;
  }

  // Of blocks 2 * kPair and 2 * kPair + 1.
  template <int kPair>
  __device__ __forceinline__ PairScales<kType> pair() const {
    PairScales<kType> result = {};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int shift = 16 * kPair + 8 * block;
      if constexpr (kType == DType::Q6_K) {
        const unsigned word = kPair == 0 ? sub.x : sub.y;
        result.scale[block] = widen_half(static_cast<std::uint16_t>(scale.x));
        result.sub[block][0] = static_cast<float>(static_cast<signed char>(word >> (16 * block)));
        result.sub[block][1] = static_cast<float>(static_cast<signed char>(word >> (16 * block + 8)));
      } else if constexpr (Fragment<kType>::kSubScales) {
        result.scale[block] = widen_half(static_cast<std::uint16_t>(scale.x));
        result.sub[block][0] = static_cast<float>(sub.x >> shift & 0xffu);
        result.minimum[block] =
            -(widen_half(static_cast<std::uint16_t>(minimum.x)) * static_cast<float>(sub_minimum >> shift & 0xffu));
      } else {
        const unsigned word = kPair == 0 ? scale.x : scale.y;
        result.scale[block] = widen_half(static_cast<std::uint16_t>(word >> (16 * block)));
        if constexpr (has_minimum(kType)) {
          const unsigned low = kPair == 0 ? minimum.x : minimum.y;
          result.minimum[block] = widen_half(static_cast<std::uint16_t>(low >> (16 * block)));
        }
      }
    }
    return result;
  }
};

// float(idot), sub-scales included. `second` is the product of the second half, where there are halves. Every product
// and sum here is an integer below 2^24, so nothing is rounded.
template <DType kType>
__device__ __forceinline__ float scaled_dot(int first, int second, const float (&sub)[2]) {
  const float dot = product_to_float<kType>(first);
  if constexpr (Fragment<kType>::kHalves) return exact_fma(product_to_float<kType>(second), sub[1], dot * sub[0]);
  if constexpr (Fragment<kType>::kSubScales) return dot * sub[0];
  return dot;
}

// partial += one block's term (engine/README.md, "Matrix product").
template <DType kType>
__device__ __forceinline__ float add_block(float partial, float dot, float scale, float minimum, float input_scale,
                                           float input_sum) {
  partial = exact_fma(dot, scale * input_scale, partial);
  if constexpr (has_minimum(kType)) partial = exact_fma(minimum, input_sum, partial);
  return partial;
}

}  // namespace genai::cuda
