// half_tile_operand.cuh - a block of 32 packed weights of two rows as operands of half products, in one lane's
// registers. Lane 4*g + c holds row g of two strips, weights 4c .. 4c+3 and 16 on (fragment.cuh). Of a word of nibbles,
// masks leave n or 16 * n below the bits of 1024, two a word; one fma then takes the 1024 and the zero point away and
// multiplies by the sub-scale s of K types: s * (n - zero point) is exact in a half, so that a product is idot * s
// itself.
//
// Q6_K has a sub-scale for each half of a block, and s * (n - 32) needs 13 bits: s is cut into a multiple of four and
// the rest, each with a product of its own.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/halves.cuh"

namespace genai::cuda {

// Of weights and activations of one half of a block.
template <DType kType>
inline constexpr int kProductsOfHalf = Fragment<kType>::kHalves ? 2 : 1;

// One product: even weights of the upper and the lower row, then odd ones.
using Operand = unsigned[4];

template <DType kType>
struct BlockOperands {
  using Kind = Fragment<kType>;
  static constexpr float kZero = static_cast<float>(Kind::kLayout.zero_point);

  Operand half[2][kProductsOfHalf<kType>];

  // Block kBlock of the strip's tile; kStrip: 0 the upper one, 1 the lower one.
  template <int kBlock, int kStrip>
  __device__ __forceinline__ void take(const Fragment<kType>& raw, const RowScales<kType>& scales) {
    const unsigned word = word_of<kBlock>(raw.low);
    if constexpr (Kind::kEightBits) {
      const unsigned second = word_of<kBlock>(raw.high);
      half[0][0][kStrip] = widen_bytes<0>(word);
      half[0][0][2 + kStrip] = widen_bytes<1>(word);
      half[1][0][kStrip] = widen_bytes<0>(second);
      half[1][0][2 + kStrip] = widen_bytes<1>(second);
    } else {
      unsigned bits[2][2];  // [half][even, odd]: 1024 + n, and for the second half 1024 + 16 * n
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const unsigned nibbles = word >> (8 * odd);
        bits[0][odd] = and_or(nibbles, 0x000f000fu, kHalves1024);
        bits[1][odd] = and_or(nibbles, 0x00f000f0u, kHalves1024);
      }
      if constexpr (Kind::kFiveBits) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const unsigned fifth = odd == 0 ? raw.high.x << (4 - kBlock) : raw.high.x >> (4 + kBlock);
          bits[0][odd] = and_or(fifth, 0x00100010u, bits[0][odd]);
          bits[1][odd] = and_or(fifth, 0x01000100u, bits[1][odd]);
        }
      }
      if constexpr (Kind::kSixBits) {
        bits[0][0] = and_or(shifted<4 - 2 * kBlock>(raw.high.x), 0x00300030u, bits[0][0]);
        bits[0][1] = and_or(shifted<-4 - 2 * kBlock>(raw.high.x), 0x00300030u, bits[0][1]);
        bits[1][0] = and_or(shifted<8 - 2 * kBlock>(raw.high.y), 0x03000300u, bits[1][0]);
        bits[1][1] = and_or(shifted<-2 * kBlock>(raw.high.y), 0x03000300u, bits[1][1]);
      }
      if constexpr (Kind::kHalves) {
        const unsigned sub = (kBlock < 2 ? scales.sub.x : scales.sub.y) ^ 0x80808080u;
        place<0>(bits[0], kStrip, four<2 * (kBlock % 2)>(sub), rest<2 * (kBlock % 2)>(sub));
        place<1>(bits[1], kStrip, four<2 * (kBlock % 2) + 1>(sub), rest<2 * (kBlock % 2) + 1>(sub));
      } else if constexpr (Kind::kSubScales) {
        const unsigned sub = add_halves(place_bytes<kBlock, kBlock>(scales.sub.x), twice(-1024.0f));
        const unsigned first = multiply_halves(sub, twice(-1024.0f));
        const unsigned second = multiply_halves(sub, twice(-64.0f));
        const unsigned sixteenth = multiply_halves(sub, twice(1.0f / 16));
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          half[0][0][2 * odd + kStrip] = fma_halves(bits[0][odd], sub, first);
          half[1][0][2 * odd + kStrip] = fma_halves(bits[1][odd], sixteenth, second);
        }
      } else {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          half[0][0][2 * odd + kStrip] = number<0>(bits[0][odd]);
          half[1][0][2 * odd + kStrip] = number<1>(bits[1][odd]);
        }
      }
    }
  }

 private:
  template <int kBlock>
  static __device__ __forceinline__ unsigned word_of(const uint4& words) {
    return kBlock == 0 ? words.x : kBlock == 1 ? words.y : kBlock == 2 ? words.z : words.w;
  }
  template <int kLeft>
  static __device__ __forceinline__ unsigned shifted(unsigned word) {
    if constexpr (kLeft >= 0) return word << kLeft;
    return word >> (kLeft < 0 ? -kLeft : 0);
  }
  // n - zero point.
  template <int kHalf>
  static __device__ __forceinline__ unsigned number(unsigned bits) {
    if constexpr (kHalf == 0) return add_halves(bits, twice(-1024.0f - kZero));
    return fma_halves(bits, twice(1.0f / 16), twice(-64.0f - kZero));
  }
  // Of Q6_K's sub-scale, byte kByte of `sub`, which is 128 more.
  template <int kByte>
  static __device__ __forceinline__ unsigned four(unsigned sub) {
    return add_halves(place_bytes<kByte, kByte>(sub & 0xfcfcfcfcu), twice(-1024.0f - 128.0f));
  }
  template <int kByte>
  static __device__ __forceinline__ unsigned rest(unsigned sub) {
    return add_halves(place_bytes<kByte, kByte>(sub & 0x03030303u), twice(-1024.0f));
  }
  template <int kHalf>
  __device__ __forceinline__ void place(const unsigned (&bits)[2], int strip, unsigned four, unsigned rest) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const unsigned weights = number<kHalf>(bits[odd]);
      half[kHalf][0][2 * odd + strip] = multiply_halves(weights, four);
      half[kHalf][kProductsOfHalf<kType> - 1][2 * odd + strip] = multiply_halves(weights, rest);
    }
  }
};

// What multiplies and follows the dot of a block of one row.
struct RowFactors {
  float scale;
  float minimum;
};

template <DType kType, int kBlock>
__device__ __forceinline__ RowFactors row_factors(const RowScales<kType>& scales) {
  const auto half_of = [](const uint2& halves) {
    return static_cast<std::uint16_t>((kBlock < 2 ? halves.x : halves.y) >> (16 * (kBlock % 2)));
  };
  if constexpr (Fragment<kType>::kHalves) {
    return {widen_half(static_cast<std::uint16_t>(scales.scale.x)), 0.0f};
  } else if constexpr (Fragment<kType>::kSubScales) {
    const float minimum = static_cast<float>(scales.sub_minimum >> (8 * kBlock) & 0xffu);
    return {widen_half(static_cast<std::uint16_t>(scales.scale.x)),
            -(widen_half(static_cast<std::uint16_t>(scales.minimum.x)) * minimum)};
  } else {
    RowFactors factors = {widen_half(half_of(scales.scale)), 0.0f};
    if constexpr (has_minimum(kType)) factors.minimum = widen_half(half_of(scales.minimum));
    return factors;
  }
}

}  // namespace genai::cuda
