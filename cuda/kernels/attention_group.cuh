// attention_group.cuh - one chunk of 64 positions for up to eight query heads by a group of 128 threads: dots, weights
// and weighted values, all from and to shared memory. Each function leaves barriers to its caller. The arithmetic is
// engine/README.md, "Attention".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kGroupWarps = 4;
inline constexpr int kGroupThreads = kGroupWarps * kWarpLanes;
static_assert(kMaxUnitHeads <= 2 * kGroupWarps, "half a warp a head");
inline constexpr int kFewHeads = 5;  // with more, sums take the registers that loads far ahead would need

struct GroupThread {
  int warp;  // of the group
  int lane;
};

// Where a head's four weights of positions 16 * sixteen + 4 * i + quarter, i = 0 .. 3, lie. Neighbours among sixteens
// change places in every other head, so that two heads at once do not meet in a bank.
__device__ __forceinline__ int weight_fours(int head, int quarter, int sixteen) {
  return head * kChunkPositions + (sixteen ^ (head & 1)) * 16 + quarter * 4;
}
__device__ __forceinline__ int weight_place(int head, int position) {
  return weight_fours(head, position & 3, position >> 4) + ((position >> 2) & 3);
}

// Adds up what lane (q, p) of warp w has of dots: partials 2q and 2q+1 at positions 16w+p, `near`, and 16w+p+8, `far`.
// The four lanes of a position add theirs as tree_8 does; each step also halves what a lane is left with: first one of
// two positions, then one of two sums, then one of two heads.
template <int kHeads>
__device__ __forceinline__ void add_dots(const GroupThread& own, const float2 (&near)[kHeads],
                                         const float2 (&far)[kHeads], float* dots) {
  const int position = own.warp * 16 + (own.lane & 7);
  const bool takes_far = (own.lane & 16) != 0;
  const bool takes_odd = (own.lane & 8) != 0;
  float sum[kHeads];
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    const float2 kept = takes_far ? far[head] : near[head];
    const float2 sent = takes_far ? near[head] : far[head];
    const float x = kept.x + __shfl_xor_sync(kFullWarp, sent.x, 16);
    const float y = kept.y + __shfl_xor_sync(kFullWarp, sent.y, 16);
    sum[head] = (takes_odd ? y : x) + __shfl_xor_sync(kFullWarp, takes_odd ? x : y, 8);
  }
  float* own_dots = dots + (takes_odd ? kChunkPositions : 0);
  const int own_position = position + (takes_far ? 8 : 0);
  const int place = weight_place(takes_odd ? 1 : 0, own_position) - (takes_odd ? kChunkPositions : 0);
#pragma unroll
  for (int head = 0; head < kHeads; head += 2) {
    const int other = head + 1 < kHeads ? head + 1 : head;
    const float dot =
        (takes_odd ? sum[other] : sum[head]) + __shfl_xor_sync(kFullWarp, takes_odd ? sum[head] : sum[other], 8);
    if (head + 1 < kHeads || !takes_odd) own_dots[head * kChunkPositions + place] = dot;
  }
}

// Dots of all heads with the chunk's keys.
template <class T, int kHeads, bool kCompact = false>
__device__ __forceinline__ void dot_keys(const GroupThread& own, const T* keys, const float* queries, int head_dim,
                                         float* dots) {
  const int position = own.warp * 16 + (own.lane & 7);
  const T* key = keys + position * 8 + (own.lane >> 3) * 2;
  const float* query = queries + (own.lane >> 3) * 2;
  float2 near[kHeads] = {};  // at `position`
  float2 far[kHeads] = {};   // at position + 8
  constexpr int kOctetsAtOnce = kHeads <= kFewHeads && !kCompact ? 4 : 2;
#pragma unroll kOctetsAtOnce
  for (int octet = 0; octet < head_dim / 8; ++octet) {
    float near_key[2];
    float far_key[2];
    widen<2>(key + octet * (kChunkPositions * 8), near_key);
    widen<2>(key + octet * (kChunkPositions * 8) + 8 * 8, far_key);
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      float q[2];
      widen<2>(query + head * head_dim + octet * 8, q);
      near[head].x = exact_fma(q[0], near_key[0], near[head].x);
      near[head].y = exact_fma(q[1], near_key[1], near[head].y);
      far[head].x = exact_fma(q[0], far_key[0], far[head].x);
      far[head].y = exact_fma(q[1], far_key[1], far[head].y);
    }
  }
  add_dots<kHeads>(own, near, far, dots);
}

// Turns dots into e, half a warp a head, and returns mc and lc, equal in all lanes of a half. Positions first .. last
// of the chunk are visible. By warps with a head.
template <int kHeads>
__device__ __forceinline__ ChunkSum soften(const GroupThread& own, float scale, float soft_cap, int first, int last,
                                           float* weights) {
  constexpr int kSteps = 4;  // this lane's positions are lane % 16 + 16 * step
  const int head = 2 * own.warp + (own.lane >> 4);
  const bool active = kHeads % 2 == 0 || head < kHeads;
  const float lowest = bits_float(0xff800000u);
  const int position = own.lane & 15;
  // Of even and of odd steps.
  float* const places[2] = {weights + weight_place(head, position), weights + weight_place(head, position + 16)};
  const auto weight = [&](int step) -> float& { return places[step % 2][weight_fours(0, 0, step - step % 2)]; };
  float e[kSteps];
  bool visible[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    visible[step] = active && position + 16 * step >= first && position + 16 * step <= last;
    e[step] = active ? scale * weight(step) : 0.0f;
  }
  if (soft_cap != 0.0f) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) e[step] = apply_soft_cap(e[step], soft_cap);
  }
  float highest = lowest;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) highest = fmaxf(highest, visible[step] ? e[step] : lowest);
#pragma unroll
  for (int stride = 8; stride > 0; stride /= 2) highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, stride));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const float e_visible = exp_of_negative(e[step] - highest);
    e[step] = visible[step] ? e_visible : 0.0f;
    if (active) weight(step) = e[step];
  }
  return {highest, warp_tree<8>((e[0] + e[2]) + (e[1] + e[3]))};
}

// Adds this warp's four positions of one sixteen. `column` is the lane's place in the row of position `quarter`.
template <class T, int kHeads, int kDims>
__device__ __forceinline__ void weigh_sixteen(const T* column, int head_dim, const float* weights, int quarter,
                                              int sixteen, float (&sum)[kHeads][kDims]) {
  float value[4][kDims];
#pragma unroll
  for (int i = 0; i < 4; ++i) widen<kDims>(column + (16 * sixteen + 4 * i) * head_dim, value[i]);
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    float e[4];
    widen<4>(weights + weight_fours(head, quarter, sixteen), e);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int dim = 0; dim < kDims; ++dim) sum[head][dim] = exact_fma(e[i], value[i][dim], sum[head][dim]);
  }
}

// Partial `quarter` of oc, for kDims dimensions of all heads. kCompact: in less code, for where that is fetched anew
// each time.
template <class T, int kHeads, int kDims, bool kCompact = false>
__device__ __forceinline__ void weigh_quarter(const T* column, int head_dim, const float* weights, int quarter,
                                              int first, int last, float (&sum)[kHeads][kDims]) {
  if constexpr (kHeads <= kFewHeads && !kCompact) {
    if (first == 0 && last == kChunkPositions - 1) {
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen)
        weigh_sixteen<T, kHeads, kDims>(column, head_dim, weights, quarter, sixteen, sum);
      return;
    }
  }
#pragma unroll 1
  for (int sixteen = first / 16; sixteen <= last / 16; ++sixteen) {
    if (first <= 16 * sixteen && 16 * sixteen + 15 <= last) {
      weigh_sixteen<T, kHeads, kDims>(column, head_dim, weights, quarter, sixteen, sum);
      continue;
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int position = 16 * sixteen + 4 * i + quarter;
      if (position < first || position > last) continue;  // what lies there may never have been written
      float value[kDims];
      widen<kDims>(column + (16 * sixteen + 4 * i) * head_dim, value);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        const float e = weights[weight_fours(head, quarter, sixteen) + i];
#pragma unroll
        for (int dim = 0; dim < kDims; ++dim) sum[head][dim] = exact_fma(e, value[dim], sum[head][dim]);
      }
    }
  }
}

// The partials of kDims dimensions of all heads into the exchange, [quarter][head of kPlaces][width].
template <int kHeads, int kDims, int kPlaces = kHeads>
__device__ __forceinline__ void put_partials(const GroupThread& own, int width, const float (&sum)[kHeads][kDims],
                                             float* exchange) {
  float* place = exchange + own.warp * kPlaces * width + own.lane * kDims;
#pragma unroll
  for (int head = 0; head < kHeads; ++head) {
    if constexpr (kDims == 4)
      *reinterpret_cast<float4*>(place + head * width) =
          make_float4(sum[head][0], sum[head][1], sum[head][2], sum[head][3]);
    else
      *reinterpret_cast<float2*>(place + head * width) = make_float2(sum[head][0], sum[head][1]);
  }
}

// tree_4 of the partials of four dimensions, `stride` floats apart.
__device__ __forceinline__ float4 add_quarters(const float* partials, int stride) {
  float4 part[4];
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter)
    part[quarter] = *reinterpret_cast<const float4*>(partials + quarter * stride);
  return make_float4(
      (part[0].x + part[2].x) + (part[1].x + part[3].x), (part[0].y + part[2].y) + (part[1].y + part[3].y),
      (part[0].z + part[2].z) + (part[1].z + part[3].z), (part[0].w + part[2].w) + (part[1].w + part[3].w));
}

// Calls take(head) for the heads own.warp + 4k of `head_count`.
template <int kHeads, class Take>
__device__ __forceinline__ void for_own_heads(const GroupThread& own, int head_count, const Take& take) {
#pragma unroll
  for (int round = 0; round * kGroupWarps < kHeads; ++round) {
    const int head = round * kGroupWarps + own.warp;
    if (head >= head_count) break;
    take(head);
  }
}

// Calls store(head, sums) for tree_4 of the partials of the lane's four dimensions; there are `dim_count` in all.
template <int kHeads, class Store>
__device__ __forceinline__ void add_partials(const GroupThread& own, const float* exchange, int width, int dim_count,
                                             int head_count, const Store& store) {
  if (4 * own.lane >= dim_count) return;
  for_own_heads<kHeads>(own, head_count, [&](int head) {
    store(head, add_quarters(exchange + head * width + 4 * own.lane, kHeads * width));
  });
}

}  // namespace genai::cuda
