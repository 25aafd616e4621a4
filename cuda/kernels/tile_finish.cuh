// tile_finish.cuh - what the warps of matmul_tiles.cu do after a remainder of K, and after the last one. The partials
// of a remainder are with two warps, and the sum over all 32 goes left to right: so the lower half adds its two to the
// running sum in shared memory, then the upper half its own; lanes of the two halves have the same outputs. The lower
// half goes on without waiting for the upper one; they meet again when the lower half wants the sum back. After the
// last remainder each half stores half of the columns, or the upper half hands the sum to another block
// (tile_schedule.cuh).
//
// Everything here finds out anew which lane it is in: the loop over K has no registers to keep that in.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_ptx.cuh"
#include "cuda/kernels/tile_work.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

// Which warp and lane this is.
template <class Shape>
struct OwnPlace {
  int lane;
  int group;
  bool upper;

  __device__ __forceinline__ OwnPlace() {
    const int thread = thread_in_block();
    lane = thread % kWarpLanes;
    group = thread / kWarpLanes % Shape::kRowGroups;
    upper = thread >= Shape::kRowGroups * kWarpLanes;
  }
};

// Where the halves of each row group meet, in shared memory: phase r of a barrier is over when the half it belongs to
// has added its partials of the warp's r-th remainder. All lanes of a warp arrive.
template <class Shape>
struct HalfBarriers {
  SharedBarrier lower[Shape::kRowGroups];
  SharedBarrier upper[Shape::kRowGroups];
};

template <class Shape>
struct TileFinish {
  // A lane's results for one octet of columns, and for all: [octet][strip pair][strip of the pair * 2 + column].
  using Lane = float[Shape::kPairs][4];
  using Results = Lane[Shape::kOctets];
  static constexpr int kCount = Shape::kOctets * Shape::kPairs;
  static constexpr int kGroupSums = kCount * kWarpLanes;  // float4 each
  static constexpr int kBytes = Shape::kRowGroups * kGroupSums * 16;
  static constexpr int kOwnOctets = Shape::kOctets / 2;  // that a half stores
  static_assert(Shape::kBlocksPerSm * Shape::kRowGroups <= kHandedFlags &&
                Shape::kBlocksPerSm * kBytes <= kHandedSums * 4);

  // first = sums + first + second, in this order; kStart: first + second.
  template <bool kStart>
  static __device__ __forceinline__ void add(const float4* sums, Results& first, const Results& second) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float(&own)[4] = first[i / Shape::kPairs][i % Shape::kPairs];
      if constexpr (!kStart) {
        const float4 sum = sums[i * kWarpLanes];
        own[0] = sum.x + own[0];
        own[1] = sum.y + own[1];
        own[2] = sum.z + own[2];
        own[3] = sum.w + own[3];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) own[k] = own[k] + second[i / Shape::kPairs][i % Shape::kPairs][k];
    }
  }

  template <int kOctets>
  static __device__ __forceinline__ void store(float4* to, const Results& sums) {
#pragma unroll
    for (int i = 0; i < kOctets * Shape::kPairs; ++i) {
      const float(&y)[4] = sums[i / Shape::kPairs][i % Shape::kPairs];
      to[i * kWarpLanes] = make_float4(y[0], y[1], y[2], y[3]);
    }
  }

  // After remainder q of `piece`, the warp's `phase`-th of all; `more`: others follow. `shared_sums` are of all groups.
  static __device__ __forceinline__ void add_remainder(const TilesProduct& product, const TilePiece& piece, int q,
                                                       bool more, unsigned phase, HalfBarriers<Shape>* barriers,
                                                       float4* shared_sums, Results& first, const Results& second) {
    const OwnPlace<Shape> own;
    float4* sums = shared_sums + own.group * kGroupSums + own.lane;
    if (own.upper) {
      wait_phase(barriers->lower + own.group, phase & 1u);
      add<false>(sums, first, second);
      if (more) {
        store<Shape::kOctets>(sums, first);
      } else if (piece.end_q == kUnits) {
        store<kOwnOctets>(sums, first);
      } else {
        const int place = static_cast<int>(blockIdx.x) * Shape::kRowGroups + own.group;
        store<Shape::kOctets>(reinterpret_cast<float4*>(product.input.handed_sums) + place * kGroupSums + own.lane,
                              first);
        __threadfence();
        __syncwarp();
        if (own.lane == 0) raise_flag(product.input.handed_flags + place);
      }
      arrive(barriers->upper + own.group);
      return;
    }
    if (q == 0) {
      add<true>(sums, first, second);
    } else {
      if (q > piece.first_q) {
        wait_phase(barriers->upper + own.group, (phase + 1) & 1u);
      } else {
        const int place = (static_cast<int>(blockIdx.x) - 1) * Shape::kRowGroups + own.group;
        wait_flag(product.input.handed_flags + place);
        const float4* handed =
            reinterpret_cast<const float4*>(product.input.handed_sums) + place * kGroupSums + own.lane;
        for (int i = 0; i < kCount; ++i) sums[i * kWarpLanes] = __ldcg(handed + i * kWarpLanes);
      }
      add<false>(sums, first, second);
    }
    store<Shape::kOctets>(sums, first);
    arrive(barriers->lower + own.group);
  }

  // After the last remainder of `piece`, the warp's `phase`-th of all.
  static __device__ __forceinline__ void finish(const TilesProduct& product, const TilePiece& piece, unsigned phase,
                                                HalfBarriers<Shape>* barriers, const float4* shared_sums,
                                                const Results& first) {
    const OwnPlace<Shape> own;
    if (!own.upper) wait_phase(barriers->upper + own.group, phase & 1u);
    if (piece.end_q < kUnits) return;
    Lane results[kOwnOctets];
#pragma unroll
    for (int i = 0; i < kOwnOctets * Shape::kPairs; ++i) {
      float(&y)[4] = results[i / Shape::kPairs][i % Shape::kPairs];
      if (own.upper) {
#pragma unroll
        for (int k = 0; k < 4; ++k) y[k] = first[kOwnOctets + i / Shape::kPairs][i % Shape::kPairs][k];
      } else {
        const float4 sum = shared_sums[own.group * kGroupSums + own.lane + i * kWarpLanes];
        y[0] = sum.x;
        y[1] = sum.y;
        y[2] = sum.z;
        y[3] = sum.w;
      }
    }
    const TilePlace place = tile_place<Shape::kBlockStrips>(product, piece.item);
    store_results(product, place, own, results);
  }

 private:
  static __device__ __forceinline__ void store_results(const TilesProduct& product, const TilePlace& place,
                                                       const OwnPlace<Shape>& own, const Lane (&sums)[kOwnOctets]) {
    const StreamOutput& output = product.shape.outputs[place.output];
    const bool gated = is_gated(product.epilogue);
    const int odd = own.lane / 4 % 2;
    const int first_column = place.column_group * Shape::kColumns + (own.upper ? kOwnOctets * 8 : 0);
#pragma unroll
    for (int strip = 0; strip < Shape::kWarpStrips; ++strip) {
      const int row = (place.first_strip + own.group * Shape::kWarpStrips + strip) * kStripRows + own.lane / 4;
      const float bias = row < output.rows && output.bias != nullptr ? output.bias[row] : 0.0f;
#pragma unroll
      for (int octet = 0; octet < kOwnOctets; ++octet) {
        float y[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          y[k] = sums[octet][strip / 2][strip % 2 * 2 + k];
          // Without a tile for some of the partials: they are zeros, which are added like the others.
          if (product.shape.tile_count < kUnits) y[k] = y[k] + 0.0f;
          if (output.bias != nullptr) y[k] = y[k] + bias;
        }
        const int m = first_column + octet * 8 + own.lane % 4 * 2;
        if (gated) {  // of a pair of rows, the lane of the even one takes column m, the other one column m + 1
          const float other = __shfl_xor_sync(kFullWarp, odd != 0 ? y[0] : y[1], 4);
          const int column = m + odd;
          if (row - odd < output.rows && column < product.row_count)
            store_gated(product.epilogue, product.soft_cap, odd != 0 ? other : y[0], odd != 0 ? y[1] : other,
                        output.out + static_cast<std::int64_t>(column) * output.out_stride + row / 2);
        } else {
#pragma unroll
          for (int k = 0; k < 2; ++k)
            if (row < output.rows && m + k < product.row_count)
              store_output(product.epilogue, product.soft_cap, y[k],
                           output.out + static_cast<std::int64_t>(m + k) * output.out_stride + row);
        }
      }
    }
  }
};

}  // namespace genai::cuda
