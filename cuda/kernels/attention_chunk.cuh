// attention_chunk.cuh - one chunk of 64 positions against up to eight query heads that share a key-value head, by one
// block; and the merge of a chunk into what came before it. The arithmetic is engine/README.md, "Attention".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kMaxUnitHeads = 8;

// The query heads of one key-value head, cut into units of at most kMaxUnitHeads.
struct HeadUnits {
  int heads_per_kv;
  int units_per_kv;
};

__host__ __device__ constexpr HeadUnits head_units(int head_count, int kv_head_count) {
  const int heads_per_kv = head_count / kv_head_count;
  return {heads_per_kv, (heads_per_kv + kMaxUnitHeads - 1) / kMaxUnitHeads};
}

struct Unit {
  int kv_head;
  int first_head;
  int head_count;
};

__device__ __forceinline__ Unit unit_at(const HeadUnits& units, int index) {
  const int kv_head = index / units.units_per_kv;
  const int first = index % units.units_per_kv * kMaxUnitHeads;
  return {kv_head, kv_head * units.heads_per_kv + first, min(units.heads_per_kv - first, kMaxUnitHeads)};
}

struct ChunkSum {
  float highest;  // mc
  float total;    // lc
};

// The weights a and b of one merge, and the state they lead to.
struct MergeState {
  float highest;
  float total;
};
struct MergeWeights {
  float before;
  float chunk;
};

__device__ __forceinline__ MergeWeights merge_chunk(MergeState& state, ChunkSum chunk) {
  const float highest = fmaxf(state.highest, chunk.highest);
  const MergeWeights weights = {exact_exp(state.highest - highest), exact_exp(chunk.highest - highest)};
  state.total = exact_fma(chunk.total, weights.chunk, state.total * weights.before);
  state.highest = highest;
  return weights;
}

// Positions first .. last of the chunk (0 .. 63) are visible. `queries` is [head][D], `scores` [head][64], both in
// shared memory. Leaves e in `scores` and mc, lc in `sums`. Ends with a barrier; begins without one.
template <class T, int kThreads>
__device__ __forceinline__ void score_chunk(const T* keys, int head_dim, const float* queries, int head_count,
                                            int first, int last, float scale, float soft_cap, float* scores,
                                            ChunkSum* sums) {
  for (int index = static_cast<int>(threadIdx.x); index < head_count * kChunkPositions; index += kThreads) {
    const int position = index % kChunkPositions;
    const float* query = queries + index / kChunkPositions * head_dim;
    float score = bits_float(0xff800000u);
    if (position >= first && position <= last) {
      float partial[8] = {};
      for (int octet = 0; octet < head_dim / 8; ++octet) {
        const T* key = keys + (octet * kChunkPositions + position) * 8;
#pragma unroll
        for (int k = 0; k < 8; ++k) partial[k] = exact_fma(query[octet * 8 + k], from_cache(key[k]), partial[k]);
      }
      const float dot = ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
                        ((partial[1] + partial[5]) + (partial[3] + partial[7]));
      score = apply_soft_cap(scale * dot, soft_cap);
    }
    scores[index] = score;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int head = static_cast<int>(threadIdx.x) / kWarpLanes; head < head_count; head += kThreads / kWarpLanes) {
    float* row = scores + head * kChunkPositions;
    float highest = fmaxf(row[lane], row[lane + kWarpLanes]);
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2)
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, stride));
    const bool low_visible = lane >= first && lane <= last;
    const bool high_visible = lane + kWarpLanes >= first && lane + kWarpLanes <= last;
    const float low = low_visible ? exact_exp(row[lane] - highest) : 0.0f;
    const float high = high_visible ? exact_exp(row[lane + kWarpLanes] - highest) : 0.0f;
    row[lane] = low;
    row[lane + kWarpLanes] = high;
    const float total = warp_tree<16>(low + high);
    if (lane == 0) sums[head] = {highest, total};
  }
  __syncthreads();
}

// oc[i] of one head: tree_4 over the visible positions.
template <class T>
__device__ __forceinline__ float weigh_values(const T* values, int head_dim, const float* weights, int first, int last,
                                              int i) {
  float partial[4] = {};
  for (int base = first / 4 * 4; base <= last; base += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int position = base + k;
      if (position >= first && position <= last)
        partial[k] = exact_fma(weights[position], from_cache(values[position * head_dim + i]), partial[k]);
    }
  }
  return (partial[0] + partial[2]) + (partial[1] + partial[3]);
}

}  // namespace genai::cuda
