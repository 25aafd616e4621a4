// tile_product.cuh - what one warp of matmul_tiles.cu does with a tile of K: it has the blocks 2 * half and
// 2 * half + 1 of the tile, kPairs pairs of strips and kOctets octets of columns, and two partials of each output in
// registers. Operands of the next two octets are on their way from shared memory while the integer products of the
// last ones turn into floats.
//
// Scales of K types are folded into the conversion of the integer product: fma(bits, s / factor, -start * s) is exactly
// idot * s, since bits = start + factor * idot (fragment.cuh) and every number here is an integer below 2^24.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kHalfBlocks = 2;  // of a tile, with one warp

// The warps of a block are kRowGroups groups of rows times the two halves of a tile.
template <int kPairCount, int kOctetCount, int kSmBlocks>
struct TileShape {
  static constexpr int kBlocksPerSm = kSmBlocks;
  static constexpr int kPairs = kPairCount;
  static constexpr int kOctets = kOctetCount;
  static constexpr int kRowGroups = 4;
  static constexpr int kWarpStrips = 2 * kPairs;
  static constexpr int kBlockStrips = kRowGroups * kWarpStrips;
  static constexpr int kColumns = 8 * kOctets;
  static constexpr int kPanels = kColumns / kPanelRows;
};

// One step in shared memory: a tile of every strip, then the activations.
template <DType kType, class Shape>
struct Stage {
  static constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  static constexpr int kInput = Shape::kBlockStrips * kTileBytes;
  static constexpr int kInputBytes = Shape::kPanels * ByteRecord::kPanelBytes;
  static constexpr int kSums = kInput + kInputBytes;
  static constexpr int kSumBytes = has_minimum(kType) ? Shape::kPanels * kPanelScales : 0;
  static constexpr int kBytes = kSums + kSumBytes;
};

// Byte offsets of a lane: in the tile of its group's first strip, and in a panel.
template <DType kType, class Shape>
struct LanePlaces {
  using Kind = Fragment<kType>;
  static constexpr int kScaleBytes = Kind::kSubScales && !Kind::kHalves ? 1 : 2;

  int words;   // nibbles or bytes of its two blocks
  int bits;    // the one-bit or two-bit plane
  int row;     // halves, one a row
  int blocks;  // scales of its two blocks, kScaleBytes for each
  int quants;
  int scales;  // of columns

  __device__ __forceinline__ LanePlaces(int lane, int group, int half) {
    const int tile = group * Shape::kWarpStrips * tile_layout(kType).tile_bytes;
    words = keep(tile + 16 * lane + 8 * half);
    bits = keep(tile + (Kind::kSixBits ? 8 : 4) * lane);
    row = keep(tile + lane / 4 * 2);
    blocks = keep(tile + (lane / 4 * kTileBlocks + half * kHalfBlocks) * kScaleBytes);
    quants = keep(half * kHalfBlocks * 1024 + lane * 16);
    scales = keep(half * kHalfBlocks * 128 + lane % 4 * 8);
  }
};

// A lane's part of one strip's tile, as it lies there: the words of its two blocks, and the scales of its row.
template <DType kType>
struct RawStrip {
  static constexpr TileLayout kLayout = tile_layout(kType);
  using Kind = Fragment<kType>;

  uint2 low;
  uint2 high;  // as in Fragment; eight bits: the bytes of h = 1
  unsigned scale;
  unsigned minimum;
  unsigned sub_scale;
  unsigned sub_min;

  template <class Places>
  __device__ __forceinline__ void load(const TileBytes* tile, const Places& at) {
    low = *reinterpret_cast<const uint2*>(tile + at.words);
    if constexpr (Kind::kFiveBits) high.x = *reinterpret_cast<const unsigned*>(tile + kLayout.high_bits + at.bits);
    if constexpr (Kind::kSixBits) high = *reinterpret_cast<const uint2*>(tile + kLayout.high_bits + at.bits);
    if constexpr (Kind::kEightBits) high = *reinterpret_cast<const uint2*>(tile + 512 + at.words);
    if constexpr (Kind::kSubScales) {
      scale = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.scale + at.row);
      if constexpr (Kind::kHalves) {
        sub_scale = *reinterpret_cast<const unsigned*>(tile + kLayout.sub_scale + at.blocks);
      } else {
        minimum = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.minimum + at.row);
        sub_scale = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.sub_scale + at.blocks);
        sub_min = *reinterpret_cast<const std::uint16_t*>(tile + kLayout.sub_min + at.blocks);
      }
    } else {
      scale = *reinterpret_cast<const unsigned*>(tile + kLayout.scale + at.blocks);
      if constexpr (has_minimum(kType))
        minimum = *reinterpret_cast<const unsigned*>(tile + kLayout.minimum + at.blocks);
    }
  }
};

// A row and block of it as products want them.
template <DType kType>
struct RowOperand {
  using Kind = Fragment<kType>;
  static constexpr float kInverse = 1.0f / static_cast<float>(Kind::kFactor);
  static constexpr float kStart = -kRoundMagic * kInverse;

  unsigned weights[2];  // [half of the block]
  float scale;
  float minimum;
  float unit;    // s / factor
  float start;   // -start * s
  float second;  // s of the second half

  // `half` as in RawStrip::load.
  template <int kOfHalf>
  __device__ __forceinline__ void take(const RawStrip<kType>& raw, int half) {
    constexpr unsigned kFlip = Kind::kSigned ? 0x80808080u : 0u;
    const unsigned word = kOfHalf == 0 ? raw.low.x : raw.low.y;
    if constexpr (Kind::kEightBits) {
      weights[0] = word;
      weights[1] = kOfHalf == 0 ? raw.high.x : raw.high.y;
    } else if constexpr (Kind::kFiveBits) {
      const unsigned bits = raw.high.x >> (2 * half);
      weights[0] = and_or(word << 3, 0x78787878u, and_xor(bits << (7 - kOfHalf), 0x80808080u, kFlip));
      weights[1] = and_or(word >> 1, 0x78787878u, and_xor(bits << (3 - kOfHalf), 0x80808080u, kFlip));
    } else if constexpr (Kind::kSixBits) {
      const unsigned lower = raw.high.x >> (4 * half);
      const unsigned upper = raw.high.y >> (4 * half);
      weights[0] = and_or(word << 2, 0x3c3c3c3cu, and_xor(lower << (6 - 2 * kOfHalf), 0xc0c0c0c0u, kFlip));
      weights[1] = and_or(word >> 2, 0x3c3c3c3cu, and_xor(upper << (6 - 2 * kOfHalf), 0xc0c0c0c0u, kFlip));
    } else {
      weights[0] = and_xor(word << 4, 0xf0f0f0f0u, kFlip);
      weights[1] = and_xor(word, 0xf0f0f0f0u, kFlip);
    }
    if constexpr (Kind::kHalves) {
      scale = widen_half(static_cast<std::uint16_t>(raw.scale));
      const float first = static_cast<float>(static_cast<signed char>(raw.sub_scale >> (16 * kOfHalf)));
      second = static_cast<float>(static_cast<signed char>(raw.sub_scale >> (16 * kOfHalf + 8)));
      unit = first * kInverse;
      start = first * kStart;
    } else if constexpr (Kind::kSubScales) {
      scale = widen_half(static_cast<std::uint16_t>(raw.scale));
      const float sub = static_cast<float>(static_cast<unsigned char>(raw.sub_scale >> (8 * kOfHalf)));
      unit = sub * kInverse;
      start = sub * kStart;
      minimum = -(widen_half(static_cast<std::uint16_t>(raw.minimum)) *
                  static_cast<float>(static_cast<unsigned char>(raw.sub_min >> (8 * kOfHalf))));
    } else {
      scale = widen_half(static_cast<std::uint16_t>(raw.scale >> (16 * kOfHalf)));
      if constexpr (has_minimum(kType)) minimum = widen_half(static_cast<std::uint16_t>(raw.minimum >> (16 * kOfHalf)));
    }
  }

  // float(idot), sub-scales included.
  __device__ __forceinline__ float dot(int product, int other) const {
    const float bits = bits_float(static_cast<unsigned>(product));
    if constexpr (Kind::kHalves)
      return exact_fma(product_to_float<kType>(other), second, exact_fma(bits, unit, start));
    else if constexpr (Kind::kSubScales)
      return exact_fma(bits, unit, start);
    else
      return product_to_float<kType>(product);
  }
};

// Two octets of columns of one block: [octet of the pair][half of the block], and [octet] of columns 2c, 2c + 1.
template <DType kType>
struct ColumnOperand {
  uint4 quants;
  float2 scale[2];
  float2 sum[2];
};

template <DType kType, class Shape>
struct WarpTile {
  static constexpr int kPairs = Shape::kPairs;
  static constexpr int kOctetPairs = Shape::kOctets / 2;
  using Layout = Stage<kType, Shape>;
  // Results of a lane: [strip pair][strip of the pair * 2 + column 2c, 2c + 1].
  using Lane = float[kPairs][4];

  int half;
  LanePlaces<kType, Shape> places;
  RawStrip<kType> raw[Shape::kWarpStrips];
  ColumnOperand<kType> next;
  Lane partials[kHalfBlocks][Shape::kOctets];

  __device__ __forceinline__ WarpTile(int lane, int group, int of_tile) : half(of_tile), places(lane, group, of_tile) {}

  __device__ __forceinline__ void load_strips(const unsigned char* stage) {
#pragma unroll
    for (int strip = 0; strip < Shape::kWarpStrips; ++strip)
      raw[strip].load(stage + strip * Layout::kTileBytes, places);
  }

  template <int kOfHalf>
  __device__ __forceinline__ void load_columns(const unsigned char* stage, int pair) {
    const int panel = pair / 2;
    const int of_panel = pair % 2;
    const unsigned char* input = stage + Layout::kInput + panel * ByteRecord::kPanelBytes;
    next.quants = *reinterpret_cast<const uint4*>(input + (kOfHalf * 2 + of_panel) * 512 + places.quants);
    const unsigned char* scales = input + ByteRecord::kPanelQuants + kOfHalf * 128 + of_panel * 64 + places.scales;
    next.scale[0] = *reinterpret_cast<const float2*>(scales);
    next.scale[1] = *reinterpret_cast<const float2*>(scales + 32);
    if constexpr (has_minimum(kType)) {
      const unsigned char* sums =
          stage + Layout::kSums + panel * kPanelScales + kOfHalf * 128 + of_panel * 64 + places.scales;
      next.sum[0] = *reinterpret_cast<const float2*>(sums);
      next.sum[1] = *reinterpret_cast<const float2*>(sums + 32);
    }
  }

  // Adds block kOfHalf times two octets. kFresh: partials start from zero.
  template <int kOfHalf, bool kFresh>
  __device__ __forceinline__ void accumulate(const RowOperand<kType> (&rows)[Shape::kWarpStrips],
                                             const ColumnOperand<kType>& columns, int pair) {
    using Kind = Fragment<kType>;
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      const unsigned b0 = octet == 0 ? columns.quants.x : columns.quants.z;
      const unsigned b1 = octet == 0 ? columns.quants.y : columns.quants.w;
      const float scale[2] = {columns.scale[octet].x, columns.scale[octet].y};
      const float sum[2] = {columns.sum[octet].x, columns.sum[octet].y};
#pragma unroll
      for (int strips = 0; strips < kPairs; ++strips) {
        const RowOperand<kType>& upper = rows[2 * strips];
        const RowOperand<kType>& lower = rows[2 * strips + 1];
        int product[4];
        int other[4] = {};
        if constexpr (Kind::kHalves) {
          multiply_16(product, upper.weights[0], lower.weights[0], b0, kProductStart);
          multiply_16(other, upper.weights[1], lower.weights[1], b1, kProductStart);
        } else {
          multiply_32<Kind::kSigned>(product, upper.weights[0], lower.weights[0], upper.weights[1], lower.weights[1],
                                     b0, b1, kProductStart);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const RowOperand<kType>& row = k < 2 ? upper : lower;
          float& own = partials[kOfHalf][2 * pair + octet][strips][k];
          own = add_block<kType>(kFresh ? 0.0f : own, row.dot(product[k], other[k]), row.scale, row.minimum,
                                 scale[k % 2], sum[k % 2]);
        }
      }
    }
  }

  // One step. `turn()` waits for the next step and gives its stage; `copy()` asks for a later one; `done()` says that
  // this one is no longer needed. What the next step begins with is loaded before copy(), whose branches keep the
  // compiler from putting it off.
  template <bool kFresh, class Turn, class Copy, class Done>
  __device__ __forceinline__ void step(const unsigned char*& stage, const Turn& turn, const Copy& copy,
                                       const Done& done) {
    RowOperand<kType> rows[Shape::kWarpStrips];
#pragma unroll
    for (int strip = 0; strip < Shape::kWarpStrips; ++strip) rows[strip].template take<0>(raw[strip], half);
#pragma unroll
    for (int pair = 0; pair < kOctetPairs; ++pair) {
      const ColumnOperand<kType> columns = next;
      if (pair + 1 < kOctetPairs)
        load_columns<0>(stage, pair + 1);
      else
        load_columns<1>(stage, 0);
      accumulate<0, kFresh>(rows, columns, pair);
    }
#pragma unroll
    for (int strip = 0; strip < Shape::kWarpStrips; ++strip) rows[strip].template take<1>(raw[strip], half);
    const unsigned char* following = turn();
    load_strips(following);
    copy();
#pragma unroll
    for (int pair = 0; pair < kOctetPairs; ++pair) {
      const ColumnOperand<kType> columns = next;
      if (pair + 1 < kOctetPairs)
        load_columns<1>(stage, pair + 1);
      else
        load_columns<0>(following, 0);
      accumulate<1, kFresh>(rows, columns, pair);
    }
    done();
    stage = following;
  }
};

}  // namespace genai::cuda
