// row_input.cuh - rows of activations, normalised and quantised by one block into its shared memory, in the order in
// which lanes of the integer matrix product read them: elements 4c .. 4c+3 of a block of 32 and those 16 on are one
// 8-byte load. The blocks of `columns` rows alternate: block b of row m is the (b * columns + m)-th 32 bytes. The width
// is padded with zeros to whole octets of blocks.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/warp.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kOctetBlocks = 8;
inline constexpr int kOctetWidth = kOctetBlocks * kBlockWidth;
// With a norm a thread keeps its values in registers between the two passes over them, so a row is at most this wide.
inline constexpr int kRowThreads = 256;
inline constexpr int kRowValues = 32;
inline constexpr int kRowBatch = 4;  // reductions under way at once
inline constexpr int kMaxNormWidth = kRowThreads * kRowValues;

struct RowInput {
  const float* values;
  const float* norm_weight;  // null: none
  float norm_epsilon;
  int cols;
};

struct RowShared {
  uint2* quants;  // [block][column][4]
  float* scales;  // [block][column]
  float* sums;    // the same; null where no weight type has a minimum
  float* reduce;  // [256]
  int columns;
};

__host__ __device__ constexpr int octet_count(int cols) { return (cols + kOctetWidth - 1) / kOctetWidth; }

// Octets first .. first + kRowValues - 1 of a row by 256 threads: warp w has block w of each octet, one element a lane.
__device__ __forceinline__ void quantize_octets(const float (&values)[kRowValues], int first, int octets,
                                                const RowShared& shared, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  unsigned own_amax = 0;  // of the block in octet first + lane
#pragma unroll
  for (int batch = 0; batch < kRowValues; batch += kRowBatch) {
    if (first + batch >= octets) break;
    unsigned amax[kRowBatch];
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k) amax[k] = warp_max(float_bits(values[batch + k]) & 0x7fffffffu);
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k)
      if (lane == batch + k) own_amax = amax[k];
  }
  const float scale = activation_scale(own_amax);
  const float own_inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  unsigned char* bytes = reinterpret_cast<unsigned char*>(shared.quants) +
                         (warp * shared.columns + column) * kBlockWidth + lane / 4 % 4 * 8 + lane / 16 * 4 + lane % 4;
  int own_sum = 0;
#pragma unroll
  for (int batch = 0; batch < kRowValues; batch += kRowBatch) {
    if (first + batch >= octets) break;
    int quants[kRowBatch];
    int sums[kRowBatch];
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k)
      quants[k] = quantize_activation(values[batch + k], __shfl_sync(kFullWarp, own_inverse, batch + k));
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k)
      if (first + batch + k < octets)
        bytes[(first + batch + k) * shared.columns * kOctetWidth] = static_cast<unsigned char>(quants[k]);
    if (shared.sums == nullptr) continue;
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k) sums[k] = warp_sum(quants[k]);
#pragma unroll
    for (int k = 0; k < kRowBatch; ++k)
      if (lane == batch + k) own_sum = sums[k];
  }
  if (first + lane < octets) {
    const int place = ((first + lane) * kOctetBlocks + warp) * shared.columns + column;
    shared.scales[place] = scale;
    if (shared.sums != nullptr) shared.sums[place] = scale * static_cast<float>(own_sum);
  }
}

__device__ __forceinline__ void load_octets(const float* from, int cols, int first, float (&values)[kRowValues]) {
#pragma unroll
  for (int k = 0; k < kRowValues; ++k) {
    const int i = (first + k) * kOctetWidth + static_cast<int>(threadIdx.x);
    values[k] = i < cols ? __ldcg(from + i) : 0.0f;
  }
}

// One row, as column `column`, by 256 threads of a block, which share barrier kBarrier. Waits for the previous grid
// when it has done what does not depend on it. The caller has a barrier before anyone reads.
template <int kBarrier>
__device__ __forceinline__ void prepare_row(const RowInput& input, const RowShared& shared, int column) {
  const int octets = octet_count(input.cols);
  float values[kRowValues];
  if (input.norm_weight == nullptr) {
    wait_for_previous_grid();
    for (int first = 0; first < octets; first += kRowValues) {
      load_octets(input.values, input.cols, first, values);
      quantize_octets(values, first, octets, shared, column);
    }
    return;
  }
  float weights[kRowValues];
  load_octets(input.norm_weight, input.cols, 0, weights);
  wait_for_previous_grid();
  load_octets(input.values, input.cols, 0, values);
  float partial = 0.0f;
#pragma unroll
  for (int k = 0; k < kRowValues; ++k) partial = exact_fma(values[k], values[k], partial);  // zeros behind the row
  shared.reduce[threadIdx.x] = partial;
  named_barrier<kBarrier, kRowThreads>();
  float partials[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) partials[k] = shared.reduce[kWarpLanes * k + threadIdx.x % kWarpLanes];
  const float inverse = inverse_rms(warp_tree_256(partials), input.cols, input.norm_epsilon);
#pragma unroll
  for (int k = 0; k < kRowValues; ++k) values[k] = (values[k] * inverse) * weights[k];
  quantize_octets(values, 0, octets, shared, column);
}

}  // namespace genai::cuda
