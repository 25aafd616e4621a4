// attention_four.cuh - one chunk of 64 positions for four queries of one key-value head by one warp: scores in
// registers, weights through shared memory of the warp, weighted values in registers, and the merge into the running
// state. No barrier but the warp's. The arithmetic is engine/README.md, "Attention".
//
// Lanes. Each has a place, 0 .. 31, and the scores of positions `place` and `place` + 32; bits 3 and 4 of lane and
// place are swapped, so that keys are read without bank conflicts. Bits 4 and 3 of a lane name its own query, of which
// it keeps m and l. Of values, kRowLanes lanes (8 or 16) read a row, eight dimensions each, the others the rows after
// it. A lane ends with the outputs of kRowLanes / 8 queries, its own among them, at its eight dimensions.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kFour = 4;  // queries of a warp

struct FourLane {
  int lane;
  bool odd;    // bit 3
  bool upper;  // bit 4

  __device__ __forceinline__ explicit FourLane(int lane) : lane(lane), odd((lane & 8) != 0), upper((lane & 16) != 0) {}
  __device__ __forceinline__ int place() const { return (lane & 7) + (upper ? 8 : 0) + (odd ? 16 : 0); }
  // A lane whose own query is `query`.
  __device__ __forceinline__ static int owner(int query) { return query * 8; }
};

// The positions that each query sees, first .. last; counted from the first one of a chunk they may lie outside of it.
struct alignas(16) FourSights {
  int first[kFour];
  int last[kFour];

  __device__ __forceinline__ FourSights shifted(int base) const {
    FourSights result;
#pragma unroll
    for (int four = 0; four < kFour; ++four) {
      result.first[four] = first[four] - base;
      result.last[four] = last[four] - base;
    }
    return result;
  }
  __device__ __forceinline__ bool sees(int query, int position) const {
    return position >= first[query] && position <= last[query];
  }
  __device__ __forceinline__ bool sees_any(int query) const {
    return last[query] >= 0 && first[query] < kChunkPositions;
  }
  __device__ __forceinline__ bool any() const { return sees_any(0) || sees_any(1) || sees_any(2) || sees_any(3); }
};

// Dots of four queries, stored [D/8][4][8], with the keys at the lane's two positions. A lane has four of the eight
// partials, at two positions for itself and at two for the lane that has the other four.
template <class T>
__device__ __forceinline__ void dot_four(const FourLane& own, const T* keys, const float* queries, int head_dim,
                                         float (&dot)[kFour][2]) {
  constexpr int kOctet = kChunkPositions * 8;  // elements of keys
  const int place = (own.lane & 7) + (own.upper ? 8 : 0);
  const int half = own.odd ? 4 : 0;
  const T* kept_key = keys + (place + (own.odd ? 16 : 0)) * 8 + half;
  const T* sent_key = keys + (place + (own.odd ? 0 : 16)) * 8 + half;
  const float* query = queries + half;
  float kept[kFour][2][4] = {};
  float sent[kFour][2][4] = {};
#pragma unroll 2
  for (int octet = 0; octet < head_dim / 8; ++octet) {
    float kept_wide[2][4];
    float sent_wide[2][4];
#pragma unroll
    for (int far = 0; far < 2; ++far) {
      widen<4>(kept_key + far * 32 * 8, kept_wide[far]);
      widen<4>(sent_key + far * 32 * 8, sent_wide[far]);
    }
#pragma unroll
    for (int four = 0; four < kFour; ++four) {
      float q[4];
      widen<4>(query + four * 8, q);
#pragma unroll
      for (int far = 0; far < 2; ++far)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          kept[four][far][i] = exact_fma(q[i], kept_wide[far][i], kept[four][far][i]);
          sent[four][far][i] = exact_fma(q[i], sent_wide[far][i], sent[four][far][i]);
        }
    }
    kept_key += kOctet;
    sent_key += kOctet;
    query += kFour * 8;
  }
#pragma unroll
  for (int four = 0; four < kFour; ++four)
#pragma unroll
    for (int far = 0; far < 2; ++far) {
      float partial[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[i] = kept[four][far][i] + __shfl_xor_sync(kFullWarp, sent[four][far][i], 8);
      dot[four][far] = (partial[0] + partial[2]) + (partial[1] + partial[3]);
    }
}

// Turns dots into e, and returns mc and lc of the lane's own query; for a query that sees nothing they mean nothing,
// and e is 0.
__device__ __forceinline__ ChunkSum soften_four(const FourLane& own, float scale, float soft_cap,
                                                const FourSights& sights, float (&e)[kFour][2]) {
  const float lowest = bits_float(0xff800000u);
  const int place = own.place();
#pragma unroll
  for (int four = 0; four < kFour; ++four)
#pragma unroll
    for (int far = 0; far < 2; ++far) e[four][far] = scale * e[four][far];
  if (soft_cap != 0.0f) {
#pragma unroll
    for (int four = 0; four < kFour; ++four)
#pragma unroll
      for (int far = 0; far < 2; ++far) e[four][far] = apply_soft_cap(e[four][far], soft_cap);
  }
  float highest[kFour];
#pragma unroll
  for (int four = 0; four < kFour; ++four)
    highest[four] =
        fmaxf(sights.sees(four, place) ? e[four][0] : lowest, sights.sees(four, place + 32) ? e[four][1] : lowest);
  // Each step halves the queries that a lane looks after, until its own is left.
  float pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    pair[i] = fmaxf(own.upper ? highest[2 + i] : highest[i],
                    __shfl_xor_sync(kFullWarp, own.upper ? highest[i] : highest[2 + i], 16));
  ChunkSum sum;
  sum.highest = fmaxf(own.odd ? pair[1] : pair[0], __shfl_xor_sync(kFullWarp, own.odd ? pair[0] : pair[1], 8));
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2)
    sum.highest = fmaxf(sum.highest, __shfl_xor_sync(kFullWarp, sum.highest, stride));
  float total[kFour];
#pragma unroll
  for (int four = 0; four < kFour; ++four) {
    const float most = __shfl_sync(kFullWarp, sum.highest, FourLane::owner(four));
#pragma unroll
    for (int far = 0; far < 2; ++far) {
      const float weight = exp_of_negative(e[four][far] - most);
      e[four][far] = sights.sees(four, place + 32 * far) ? weight : 0.0f;
    }
    total[four] = e[four][0] + e[four][1];  // tree_64: stride 32
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)  // stride 16 of places
    pair[i] = (own.odd ? total[2 * i + 1] : total[2 * i]) +
              __shfl_xor_sync(kFullWarp, own.odd ? total[2 * i] : total[2 * i + 1], 8);
  sum.total = (own.upper ? pair[1] : pair[0]) + __shfl_xor_sync(kFullWarp, own.upper ? pair[0] : pair[1], 16);
  sum.total = warp_tree<4>(sum.total);
  return sum;
}

// Partials of oc. Lanes that read rows apart have partials apart: kRowLanes / 8 each.
template <int kRowLanes>
struct FourPartials {
  static constexpr int kParts = kRowLanes / 8;
  static constexpr int kKept = kRowLanes / 8;  // queries that a lane ends with
  float sum[kParts][kFour][8];
};

// Adds the lane's rows of four positions. `rows` and `weights` are the lane's first of these.
template <int kRowLanes, bool kAllSeen, class T>
__device__ __forceinline__ void weigh_positions(const T* rows, int head_dim, const float4* weights,
                                                const FourSights& sights, int position,
                                                FourPartials<kRowLanes>& partials) {
#pragma unroll
  for (int part = 0; part < partials.kParts; ++part) {
    const float4 weight = weights[2 * part];
    const float e[kFour] = {weight.x, weight.y, weight.z, weight.w};
    float value[8];
    widen<8>(rows + 2 * part * head_dim, value);
#pragma unroll
    for (int four = 0; four < kFour; ++four) {
      // What lies where nobody looks may never have been written, and adding 0 would change -0.
      if (!kAllSeen && !sights.sees(four, position + 2 * part)) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        partials.sum[part][four][i] = exact_fma(e[four], value[i], partials.sum[part][four][i]);
    }
  }
}

// oc at eight dimensions from `dim` on, of all positions of the chunk. weights [64], one of each query.
template <int kRowLanes, class T>
__device__ __forceinline__ void weigh_four(const FourLane& own, const T* values, int head_dim, int dim,
                                           const float4* weights, const FourSights& sights,
                                           float (&kept)[kRowLanes / 8][8]) {
  FourPartials<kRowLanes> partials = {};
  int first = kChunkPositions;  // of any query
  int last = -1;
  int all_first = 0;  // of all of them
  int all_last = kChunkPositions - 1;
#pragma unroll
  for (int four = 0; four < kFour; ++four) {
    first = min(first, max(sights.first[four], 0));
    last = max(last, min(sights.last[four], kChunkPositions - 1));
    all_first = max(all_first, sights.first[four]);
    all_last = min(all_last, sights.last[four]);
  }
  const int row = own.lane / kRowLanes;
  const T* column = values + row * head_dim + dim;
  const float4* own_weights = weights + row;
  const int begin = first / 4;
  const int end = last / 4 + 1;
  const int all_begin = min((all_first + 3) / 4, end);
  const int all_end = max((all_last + 1) / 4, all_begin);
  int four_positions = begin;
#pragma unroll 1
  for (; four_positions < all_begin; ++four_positions)
    weigh_positions<kRowLanes, false>(column + 4 * four_positions * head_dim, head_dim,
                                      own_weights + 4 * four_positions, sights, 4 * four_positions + row, partials);
#pragma unroll 2
  for (; four_positions < all_end; ++four_positions)
    weigh_positions<kRowLanes, true>(column + 4 * four_positions * head_dim, head_dim, own_weights + 4 * four_positions,
                                     sights, 4 * four_positions + row, partials);
#pragma unroll 1
  for (; four_positions < end; ++four_positions)
    weigh_positions<kRowLanes, false>(column + 4 * four_positions * head_dim, head_dim,
                                      own_weights + 4 * four_positions, sights, 4 * four_positions + row, partials);
  // tree_4
  float pair[2][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float sum[kFour];
#pragma unroll
    for (int four = 0; four < kFour; ++four) {
      sum[four] = partials.sum[0][four][i];
      if constexpr (kRowLanes == 16) sum[four] = sum[four] + partials.sum[1][four][i];
    }
#pragma unroll
    for (int k = 0; k < 2; ++k)
      pair[k][i] = (own.upper ? sum[2 + k] : sum[k]) + __shfl_xor_sync(kFullWarp, own.upper ? sum[k] : sum[2 + k], 16);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (kRowLanes == 16) {
      kept[0][i] = pair[0][i];
      kept[1][i] = pair[1][i];
    } else {
      kept[0][i] =
          (own.odd ? pair[1][i] : pair[0][i]) + __shfl_xor_sync(kFullWarp, own.odd ? pair[0][i] : pair[1][i], 8);
    }
  }
}

}  // namespace genai::cuda
