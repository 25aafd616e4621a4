// tile.cuh - reads the packed tiles of packed_layout.h: the weights of one block as eight words of four signed bytes,
// the scales of one block, and one weight as float.
#pragma once
#include <cuda_runtime.h>

#include "engine/exact_math.h"
#include "engine/packed_layout.h"

namespace genai::cuda {

using TileBytes = unsigned char;

__device__ __forceinline__ unsigned load_word(const TileBytes* at) { return *reinterpret_cast<const unsigned*>(at); }
__device__ __forceinline__ float load_half(const TileBytes* at) {
  return half_to_float(*reinterpret_cast<const std::uint16_t*>(at));
}

// Bytewise n - zero_point as signed bytes, for unsigned n and a zero point below 128.
template <int kZeroPoint>
__device__ __forceinline__ int subtract_zero_point(unsigned word) {
  if constexpr (kZeroPoint == 0) return static_cast<int>(word);
  return static_cast<int>(((word | 0x80808080u) - 0x01010101u * kZeroPoint) ^ 0x80808080u);
}

// Words 4*h + c hold the weights 16*h + 4*c .. + 3 of block `block` of row `row`, less the zero point.
template <DType kType>
__device__ __forceinline__ void load_block(const TileBytes* tile, int row, int block, int (&words)[8]) {
  constexpr TileLayout kLayout = tile_layout(kType);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int cell = 4 * row + c;
    unsigned low, high;
    if constexpr (kType == DType::Q8_0) {
      low = load_word(tile + 16 * cell + 4 * block);
      high = load_word(tile + 512 + 16 * cell + 4 * block);
    } else {
      const unsigned nibbles = load_word(tile + 16 * cell + 4 * block);
      low = nibbles & 0x0f0f0f0fu;
      high = (nibbles >> 4) & 0x0f0f0f0fu;
      if constexpr (kType == DType::Q5_0 || kType == DType::Q5_1 || kType == DType::Q5_K) {
        const unsigned bits = load_word(tile + kLayout.high_bits + 4 * cell);
        low |= ((bits >> block) & 0x01010101u) << 4;
        high |= ((bits >> (4 + block)) & 0x01010101u) << 4;
      }
      if constexpr (kType == DType::Q6_K) {
        low |= ((load_word(tile + kLayout.high_bits + 8 * cell) >> (2 * block)) & 0x03030303u) << 4;
        high |= ((load_word(tile + kLayout.high_bits + 8 * cell + 4) >> (2 * block)) & 0x03030303u) << 4;
      }
    }
    words[c] = subtract_zero_point<kLayout.zero_point>(low);
    words[4 + c] = subtract_zero_point<kLayout.zero_point>(high);
  }
}

// What multiplies and follows a block's integer dot.
struct BlockScale {
  float scale;    // dw
  float minimum;  // m, in the form that is multiplied with the sum of the activations; 0 where there is none
  int sub[2];     // integer sub-scales of the two halves; 1 where there are none
};

template <DType kType>
__device__ __forceinline__ BlockScale load_block_scale(const TileBytes* tile, int row, int block) {
  constexpr TileLayout kLayout = tile_layout(kType);
  BlockScale scale = {0.0f, 0.0f, {1, 1}};
  if constexpr (kType == DType::Q4_K || kType == DType::Q5_K) {
    scale.scale = load_half(tile + kLayout.scale + 2 * row);
    scale.minimum =
        -(load_half(tile + kLayout.minimum + 2 * row) * static_cast<float>(tile[kLayout.sub_min + 4 * row + block]));
    scale.sub[0] = scale.sub[1] = tile[kLayout.sub_scale + 4 * row + block];
  } else if constexpr (kType == DType::Q6_K) {
    scale.scale = load_half(tile + kLayout.scale + 2 * row);
    const signed char* sub = reinterpret_cast<const signed char*>(tile + kLayout.sub_scale + 8 * row + 2 * block);
    scale.sub[0] = sub[0];
    scale.sub[1] = sub[1];
  } else {
    scale.scale = load_half(tile + kLayout.scale + 2 * (4 * row + block));
    if constexpr (has_minimum(kType)) scale.minimum = load_half(tile + kLayout.minimum + 2 * (4 * row + block));
  }
  return scale;
}

// Element `column` (0..127) of row `row` of a float tile.
template <DType kType>
__device__ __forceinline__ float load_float_weight(const TileBytes* tile, int row, int column) {
  const int index = kTileWidth * row + column;
  if constexpr (kType == DType::F32) return reinterpret_cast<const float*>(tile)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(tile)[index];
  if constexpr (kType == DType::F16) return half_to_float(bits);
  return bfloat_to_float(bits);
}

// One weight of any type, widened: exact but for types with a minimum, which round once.
template <DType kType>
__device__ __forceinline__ float load_weight(const TileBytes* tile, int row, int column) {
  if constexpr (is_float(kType)) {
    return load_float_weight<kType>(tile, row, column);
  } else {
    constexpr TileLayout kLayout = tile_layout(kType);
    const int block = column / kBlockWidth;
    const int half = column / 16 % 2;
    const int cell = 4 * row + column / 4 % 4;
    const int byte = column % 4;
    int n;
    if constexpr (kType == DType::Q8_0) {
      n = static_cast<signed char>(tile[512 * half + 16 * cell + 4 * block + byte]);
    } else {
      n = (tile[16 * cell + 4 * block + byte] >> (4 * half)) & 15;
      if constexpr (kType == DType::Q5_0 || kType == DType::Q5_1 || kType == DType::Q5_K)
        n |= ((tile[kLayout.high_bits + 4 * cell + byte] >> (4 * half + block)) & 1) << 4;
      if constexpr (kType == DType::Q6_K)
        n |= ((tile[kLayout.high_bits + 8 * cell + 4 * half + byte] >> (2 * block)) & 3) << 4;
      n -= kLayout.zero_point;
    }
    const BlockScale scale = load_block_scale<kType>(tile, row, block);
    const float product = (scale.scale * static_cast<float>(scale.sub[half])) * static_cast<float>(n);
    if constexpr (has_minimum(kType)) return product + scale.minimum;
    return product;
  }
}

}  // namespace genai::cuda
