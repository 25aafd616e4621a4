// row_vector.cuh - one row of activations, normalised and quantised by one block into its shared memory, in the order
// in which lanes of the integer matrix product read it: elements 4c .. 4c+3 of a block of 32 and those 16 on are one
// 8-byte load. The width is padded with zeros to whole octets of blocks.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rounding.cuh"
#include "cuda/kernels/row_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kVectorThreads = 512;
inline constexpr int kVectorQuads = 4;  // of a thread at once, four neighbouring values each
inline constexpr int kVectorStride = 4 * kVectorThreads;
// With a norm a thread keeps its values in registers between the two passes over them, so a row is at most this wide.
inline constexpr int kMaxVectorNormWidth = kVectorStride * kVectorQuads;
static_assert(kTileWidth == 4 * kWarpLanes, "a warp has four whole blocks");

struct RowVector {
  uint2* quants;  // [block][4]
  float* scales;  // [block]
  float* sums;    // the same, where a weight type has a minimum
  float* reduce;  // [256]
};

// Where a thread's quads go: quad k is elements 4 * thread + k * kVectorStride .. + 3.
struct QuadPlace {
  unsigned* quants;
  float* scales;
  float* sums;

  __device__ __forceinline__ explicit QuadPlace(const RowVector& row) {
    const int block = static_cast<int>(threadIdx.x) / 8;
    const int word = static_cast<int>(threadIdx.x) % 8;
    quants = reinterpret_cast<unsigned*>(row.quants) + block * 8 + word % 4 * 2 + word / 4;
    scales = row.scales + block;
    sums = row.sums + block;
  }
};

// Rounds kCount quads of a whole warp, without a branch, so that their latencies overlap.
template <bool kSums, int kCount>
__device__ __forceinline__ void quantize_quads(const float4* quads, const QuadPlace& place, int first_quad) {
  constexpr int kBlocks = kVectorStride / kBlockWidth;  // from quad to quad
  const bool stores_scale = threadIdx.x % 8 == 0;
  unsigned highest[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) highest[k] = largest_magnitude(quads[k]);
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2)
#pragma unroll
    for (int k = 0; k < kCount; ++k) highest[k] = max(highest[k], __shfl_xor_sync(kFullWarp, highest[k], stride));
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const RoundingScale scale(highest[k]);
    const unsigned quants = scale.counts ? four_quants(quads[k], scale.inverse) : 0u;
    place.quants[(first_quad + k) * kBlocks * 8] = quants;
    int sum = 0;
    if constexpr (kSums) {
      sum = sum_of_quants(quants);
#pragma unroll
      for (int stride = 4; stride > 0; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
    }
    if (!stores_scale) continue;
    place.scales[(first_quad + k) * kBlocks] = scale.scale;
    if constexpr (kSums) place.sums[(first_quad + k) * kBlocks] = scale.scale * static_cast<float>(sum);
  }
}

// Zeros behind the row.
__device__ __forceinline__ void load_quads(const float* from, int cols, int first, float4 (&quads)[kVectorQuads]) {
  const int left = cols - first;
#pragma unroll
  for (int k = 0; k < kVectorQuads; ++k)
    quads[k] = k * kVectorStride < left ? __ldcg(reinterpret_cast<const float4*>(from + first) + k * kVectorThreads)
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Sum of squares of the row's elements i = thread (mod 256), ascending, by the first 256 threads; all loads at once.
__device__ __forceinline__ float square_partial(const float* values, int cols) {
  constexpr int kCount = kMaxVectorNormWidth / 256;
  const int left = cols - static_cast<int>(threadIdx.x);
  float loaded[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) loaded[k] = k * 256 < left ? __ldcg(values + threadIdx.x + 256 * k) : 0.0f;
  float partial = 0.0f;
#pragma unroll
  for (int k = 0; k < kCount; ++k) partial = exact_fma(loaded[k], loaded[k], partial);  // zeros behind the row
  return partial;
}

// The row, a multiple of four wide, by the 512 threads of barrier kBarrier; `values` and `norm_weight` are aligned to
// 16 bytes. Waits for the previous grid when it has done what does not depend on it. The caller has a barrier before
// anyone reads.
template <int kBarrier, bool kSums>
__device__ __forceinline__ void prepare_vector(const RowInput& input, const RowVector& row) {
  const int thread = static_cast<int>(threadIdx.x);
  const int padded = octet_count(input.cols) * kOctetWidth;
  const int warp_first = thread / kWarpLanes * kTileWidth;  // the warp's first element; padded is whole warps
  const QuadPlace place(row);
  float4 quads[kVectorQuads];
  if (input.norm_weight == nullptr) {
    wait_for_previous_grid();
    load_quads(input.values, input.cols, 4 * thread, quads);
  } else {
    float4 weights[kVectorQuads];
    load_quads(input.norm_weight, input.cols, 4 * thread, weights);
    wait_for_previous_grid();
    load_quads(input.values, input.cols, 4 * thread, quads);
    if (thread < kVectorThreads / 2) row.reduce[thread] = square_partial(input.values, input.cols);
    named_barrier<kBarrier, kVectorThreads>();
    float partials[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) partials[k] = row.reduce[kWarpLanes * k + thread % kWarpLanes];
    const float inverse = inverse_rms(warp_tree_256(partials), input.cols, input.norm_epsilon);
#pragma unroll
    for (int k = 0; k < kVectorQuads; ++k) {
      quads[k].x = (quads[k].x * inverse) * weights[k].x;
      quads[k].y = (quads[k].y * inverse) * weights[k].y;
      quads[k].z = (quads[k].z * inverse) * weights[k].z;
      quads[k].w = (quads[k].w * inverse) * weights[k].w;
    }
  }
  int quad = 0;
#pragma unroll 1
  for (int first = warp_first; first < padded; first += kVectorStride * kVectorQuads, quad += kVectorQuads) {
    if (first + kVectorStride < padded)
      quantize_quads<kSums, 2>(quads, place, quad);
    else
      quantize_quads<kSums, 1>(quads, place, quad);
    if (first + 3 * kVectorStride < padded)
      quantize_quads<kSums, 2>(quads + 2, place, quad + 2);
    else if (first + 2 * kVectorStride < padded)
      quantize_quads<kSums, 1>(quads + 2, place, quad + 2);
    if (first + kVectorQuads * kVectorStride < padded)
      load_quads(input.values, input.cols, 4 * thread + (quad + kVectorQuads) * kVectorStride, quads);
  }
}

}  // namespace genai::cuda
