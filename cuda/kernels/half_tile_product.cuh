// half_tile_product.cuh - what four warps of matmul_half_tiles.cu do with a tile of K: 64 rows of weights, 16 of them
// with each warp, times the columns of the item, block after block of the tile. Weights become operands in registers
// (half_tile_operand.cuh), activations are read where they lie, and a block's product is float(idot) itself, exactly:
// it is scaled and added to its partial. Four partials of each output are in registers. While tensor cores work on a
// block, a warp makes operands of the next one; the float work of one group of warps falls into the products of the
// other.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/half_tile_operand.cuh"
#include "cuda/kernels/half_tile_ptx.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

// What a block computes at once.
struct HalfTile {
  static constexpr int kWarpStrips = 2;
  static constexpr int kGroupWarps = 4;  // of a product
  static constexpr int kGroups = 2;
  static constexpr int kWarps = kGroups * kGroupWarps;
  static constexpr int kBlockStrips = kWarps * kWarpStrips;
  static constexpr int kColumns = kRecordRows;
  static constexpr int kOctets = kColumns / kOctetRows;
  static constexpr int kLane = 4 * kOctets;  // outputs of a lane, as multiply_async has them
};

// One step in shared memory: a tile of every strip, then the record of its columns, with sums where they are needed.
template <DType kType>
struct HalfStage {
  static constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  static constexpr int kInput = HalfTile::kBlockStrips * kTileBytes;
  static constexpr int kInputBytes = has_minimum(kType) ? HalfRecord::kBytes : HalfRecord::kSums;
  static constexpr int kBytes = kInput + kInputBytes;
  static_assert(kBytes % 128 == 0 && kInput % 128 == 0);
};

template <DType kType>
struct HalfWarpTile {
  using Layout = HalfStage<kType>;
  // Blocks with the tensor cores at a time: two where registers allow.
  static constexpr int kBuffers = has_minimum(kType) || Fragment<kType>::kHalves ? 1 : 2;

  int lane;
  int warp;  // of the block
  Fragment<kType> raw[HalfTile::kWarpStrips];
  RowScales<kType> scales[HalfTile::kWarpStrips];
  BlockOperands<kType> operands;  // of the next block
  unsigned columns;               // of the step, in units of 16 bytes of shared memory
  float dots[kBuffers][HalfTile::kLane];
  float partials[kTileBlocks][HalfTile::kLane];

  __device__ __forceinline__ HalfWarpTile(int own_warp, int own_lane) : lane(own_lane), warp(own_warp), dots{} {}

  // What a step begins with.
  __device__ __forceinline__ void begin(const unsigned char* stage) {
    load(stage);
    prepare<0>();
    columns = columns_of(stage);
  }

  // One step, which has begun, up to the beginning of the next. `peek()` looks whether that is there, `turn(seen)`
  // waits for it and gives its stage; `done()` says that this one is no longer needed. kFresh: partials start from
  // zero.
  template <bool kFresh, class Peek, class Turn, class Done>
  __device__ __forceinline__ void step(const unsigned char* stage, const Peek& peek, const Turn& turn,
                                       const Done& done) {
    bool seen = false;
    const unsigned char* next = nullptr;
    multiply<0>();
    columns = __shfl_sync(kFullWarp, columns, 0);  // the same, in a register of the warp
    if constexpr (kBuffers == 2) {
      prepare<1>();
      multiply<1>();
    }
    accumulate<0, kFresh>(stage, row_factors<kType, 0>(scales[0]), row_factors<kType, 0>(scales[1]),
                          [&] { prepare<kBuffers>(); });
    multiply<kBuffers>();
    accumulate<1, kFresh>(stage, row_factors<kType, 1>(scales[0]), row_factors<kType, 1>(scales[1]), [&] {
      prepare<kBuffers + 1>();
      seen = peek();
    });
    multiply<kBuffers + 1>();
    const RowFactors upper = row_factors<kType, 3>(scales[0]);
    const RowFactors lower = row_factors<kType, 3>(scales[1]);
    accumulate<2, kFresh>(stage, row_factors<kType, 2>(scales[0]), row_factors<kType, 2>(scales[1]), [&] {
      if constexpr (kBuffers == 1) prepare<3>();
      next = turn(seen);
      load(next);
    });
    if constexpr (kBuffers == 1) multiply<3>();
    accumulate<3, kFresh>(stage, upper, lower, [&] {
      prepare<0>();
      columns = columns_of(next);
    });
    done();
  }

 private:
  static __device__ __forceinline__ unsigned columns_of(const unsigned char* stage) {
    return (shared_address(stage) + Layout::kInput) / 16;
  }

  __device__ __forceinline__ void load(const unsigned char* stage) {
#pragma unroll
    for (int strip = 0; strip < HalfTile::kWarpStrips; ++strip) {
      const TileBytes* tile = stage + (warp * HalfTile::kWarpStrips + strip) * Layout::kTileBytes;
      raw[strip].load(tile, lane);
      scales[strip].load(tile, lane / 4);
    }
  }

  template <int kBlock>
  __device__ __forceinline__ void prepare() {
    operands.template take<kBlock, 0>(raw[0], scales[0]);
    operands.template take<kBlock, 1>(raw[1], scales[1]);
  }

  template <int kBlock>
  __device__ __forceinline__ void multiply() {
    begin_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t b = columns_at<HalfRecord::kCoreBytes, HalfRecord::kOctetBytes>(
          columns + (kBlock * 2 + half) * 2 * HalfRecord::kCoreBytes / 16);
      if (half == 0)
        multiply_async<false>(dots[kBlock % kBuffers], operands.half[half][0], b);
      else
        multiply_async<true>(dots[kBlock % kBuffers], operands.half[half][0], b);
      if constexpr (kProductsOfHalf<kType> == 2)
        multiply_async<true>(dots[kBlock % kBuffers], operands.half[half][1], b);
    }
    end_products();
  }

  // `meanwhile()` is done before the product is waited for. What multiplies a dot is computed an octet ahead of the sum
  // that needs it. More scales on their way than those of the first octet would cost registers, and time by that.
  template <int kBlock, bool kFresh, class Meanwhile>
  __device__ __forceinline__ void accumulate(const unsigned char* stage, const RowFactors& upper,
                                             const RowFactors& lower, const Meanwhile& meanwhile) {
    const auto row = [&](int k) -> const RowFactors& { return k < 2 ? upper : lower; };
    const auto column = [](int k, const float2& pair) { return k % 2 == 0 ? pair.x : pair.y; };
    float2 scale[HalfTile::kOctets];
    float2 sum[HalfTile::kOctets];
    float factors[HalfTile::kLane];
    const auto load_octet = [&](int octet) {
      const unsigned char* place =
          stage + Layout::kInput + HalfRecord::scale(kBlock, octet * kOctetRows) + lane % 4 * 8;
      scale[octet] = *reinterpret_cast<const float2*>(place);
      if constexpr (has_minimum(kType))
        sum[octet] = *reinterpret_cast<const float2*>(place + HalfRecord::kSums - HalfRecord::kScales);
    };
    load_octet(0);
    meanwhile();
    wait_for_products<(kBlock + 1 < kTileBlocks ? kBuffers - 1 : 0)>(dots[kBlock % kBuffers]);
#pragma unroll
    for (int octet = 0; octet <= HalfTile::kOctets; ++octet) {
      if (octet < HalfTile::kOctets) {
        if (octet > 0) load_octet(octet);
#pragma unroll
        for (int k = 0; k < 4; ++k) factors[4 * octet + k] = row(k).scale * column(k, scale[octet]);
      }
      if (octet == 0) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // add_block of the octet before (fragment.cuh)
        const int i = 4 * (octet - 1) + k;
        float& partial = partials[kBlock][i];
        partial = exact_fma(dots[kBlock % kBuffers][i], factors[i], kFresh ? 0.0f : partial);
        if constexpr (has_minimum(kType)) partial = exact_fma(row(k).minimum, column(k, sum[octet - 1]), partial);
      }
    }
  }
};

}  // namespace genai::cuda
