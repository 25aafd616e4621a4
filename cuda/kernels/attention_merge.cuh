// attention_merge.cuh - the steps of merging what chunks of positions left behind: their weights, many chunks at once,
// and the two sums, one chunk after the other. The arithmetic is engine/README.md, "Attention".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

// The weights of a group of chunks, kCount a lane, which follow each other: (a, b, lc, -). `before` is m ahead of the
// group, and behind it in the end.
template <int kCount>
__device__ __forceinline__ void merge_weights(const ChunkSum (&sums)[kCount], float& before, float4* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float highest = sums[0].highest;  // of this lane's chunks and those of the lanes before it
#pragma unroll
  for (int i = 1; i < kCount; ++i) highest = fmaxf(highest, sums[i].highest);
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const float other = __shfl_up_sync(kFullWarp, highest, distance);
    if (lane >= distance) highest = fmaxf(highest, other);
  }
  const float left = __shfl_up_sync(kFullWarp, highest, 1);
  float previous = lane == 0 ? before : fmaxf(before, left);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float now = fmaxf(previous, sums[i].highest);
    weights[lane * kCount + i] =
        make_float4(exp_of_negative(previous - now), exp_of_negative(sums[i].highest - now), sums[i].total, 0.0f);
    previous = now;
  }
  before = fmaxf(before, __shfl_sync(kFullWarp, highest, kWarpLanes - 1));
}

struct MergeState {
  float output;  // o
  float total;   // l

  __device__ __forceinline__ void add(float chunk_output, const float4& weight) {
    output = exact_fma(chunk_output, weight.y, output * weight.x);
    total = exact_fma(weight.z, weight.y, total * weight.x);
  }
};

// A whole batch.
template <int kChunks>
__device__ __forceinline__ void merge_batch(MergeState& state, const float (&outputs)[kChunks], const float4* weights) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) state.add(outputs[k], weights[k]);
}

// The first `count` of a batch.
template <int kChunks>
__device__ __forceinline__ void merge_batch(MergeState& state, const float (&outputs)[kChunks], const float4* weights,
                                            int count) {
  if (count >= kChunks) {
    merge_batch(state, outputs, weights);
  } else {
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (k < count) state.add(outputs[k], weights[k]);
  }
}

}  // namespace genai::cuda
