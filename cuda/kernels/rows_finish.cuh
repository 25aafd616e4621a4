// rows_finish.cuh - the end of a product with several rows (matmul_rows.cu): the sum over the 32 partials, left to
// right, through eight warps, and the store. Warp w has the partials 4w .. 4w+3 of a pair of strips; it adds them to
// what warp w - 1 hands over in shared memory and hands the sum on; the last warp stores. Warps run ahead of one
// another by at most the two buffers of a link.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kColumns = 8;                 // of one integer product
inline constexpr int kLinks = kConsumerWarps - 1;  // from a warp to the next
inline constexpr int kLinkBuffers = 2;

struct RowsEpilogue {
  Epilogue epilogue;
  float soft_cap;
  int row_count;
};

// Results of one lane: [column group][block of the tile][strip of the pair][column 2c, 2c + 1].
template <int kColumnGroups>
using Partials = float[kColumnGroups][kTileBlocks][2][2];

// Where sums wait on their way from warp to warp.
struct Links {
  float4* sums;  // [link][buffer][column group][lane]
  SharedBarrier* full;
  SharedBarrier* empty;
  int passed = 0;  // pairs that this warp has dealt with

  __device__ __forceinline__ int buffer() const { return passed % kLinkBuffers; }
  __device__ __forceinline__ unsigned parity() const { return static_cast<unsigned>(passed / kLinkBuffers) & 1u; }
};

template <int kColumnGroups>
__device__ __forceinline__ void store_pair(const RowsEpilogue& finish, const StreamOutput& output, int strip,
                                           int strip_count, const float4 (&sums)[kColumnGroups],
                                           const float (&before)[kColumnGroups][2][2], const float (&bias)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
    const float y[2][2] = {{sums[group].x, sums[group].y}, {sums[group].z, sums[group].w}};
#pragma unroll
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      const int row = (strip + of_pair) * kStripRows + lane / 4;
      const bool active = of_pair < strip_count && row < output.rows;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int m = group * kColumns + lane % 4 * 2 + k;
        const float value = output.bias != nullptr ? y[of_pair][k] + bias[of_pair] : y[of_pair][k];
        float* out = output.out + static_cast<std::int64_t>(m) * output.out_stride;
        if (is_gated(finish.epilogue)) {
          const float up = __shfl_xor_sync(kFullWarp, value, 4);
          if (active && m < finish.row_count && row % 2 == 0)
            store_gated(finish.epilogue, finish.soft_cap, value, up, out + row / 2);
        } else if (active && m < finish.row_count) {
          const float sum = finish.epilogue == Epilogue::add ? before[group][of_pair][k] + value : value;
          out[row] = apply_soft_cap(sum, finish.soft_cap);
        }
      }
    }
  }
}

// Adds this warp's partials of a pair of strips to those of the warps before it.
template <int kColumnGroups>
__device__ __forceinline__ void pass_on(const RowsEpilogue& finish, const StreamOutput& output, int strip,
                                        int strip_count, int warp, Links& links, Partials<kColumnGroups>& partials) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const bool last = warp == kConsumerWarps - 1;
  float before[kColumnGroups][2][2] = {};
  float bias[2] = {};
  if (last) {  // ask early for what the store needs
#pragma unroll
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      const int row = (strip + of_pair) * kStripRows + lane / 4;
      if (of_pair >= strip_count || row >= output.rows) continue;
      if (output.bias != nullptr) bias[of_pair] = output.bias[row];
      if (finish.epilogue != Epilogue::add) continue;
#pragma unroll
      for (int group = 0; group < kColumnGroups; ++group)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int m = group * kColumns + lane % 4 * 2 + k;
          if (m < finish.row_count)
            before[group][of_pair][k] = output.out[static_cast<std::int64_t>(m) * output.out_stride + row];
        }
    }
  }
  float4 sums[kColumnGroups];
  if (warp > 0) {
    const int link = (warp - 1) * kLinkBuffers + links.buffer();
    wait_phase(links.full + link, links.parity());
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group)
      sums[group] = links.sums[(link * kColumnGroups + group) * kWarpLanes + lane];
    __syncwarp();
    if (lane == 0) arrive(links.empty + link);
  }
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group)
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
      const float(&own)[2][2] = partials[group][block];
      const bool first = warp == 0 && block == 0;
      sums[group].x = first ? own[0][0] : sums[group].x + own[0][0];
      sums[group].y = first ? own[0][1] : sums[group].y + own[0][1];
      sums[group].z = first ? own[1][0] : sums[group].z + own[1][0];
      sums[group].w = first ? own[1][1] : sums[group].w + own[1][1];
    }
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group)
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block)
#pragma unroll
      for (int k = 0; k < 4; ++k) partials[group][block][k / 2][k % 2] = 0.0f;
  if (last) {
    store_pair<kColumnGroups>(finish, output, strip, strip_count, sums, before, bias);
  } else {
    const int link = warp * kLinkBuffers + links.buffer();
    wait_phase(links.empty + link, links.parity() ^ 1u);  // the first round passes
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group)
      links.sums[(link * kColumnGroups + group) * kWarpLanes + lane] = sums[group];
    __syncwarp();
    if (lane == 0) arrive(links.full + link);
  }
  ++links.passed;
}

}  // namespace genai::cuda
