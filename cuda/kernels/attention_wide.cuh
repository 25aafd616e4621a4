// attention_wide.cuh - as attention_group.cuh, one chunk of 64 positions for up to eight query heads by a group of 128
// threads, for heads of 128 elements: places are known when it is compiled, queries are read for two octets at once,
// and partial sums are exchanged in the rows of the values that a warp alone has read, without a barrier ahead. That is
// three quarters of the instructions, which long contexts are bound by. Other barriers of the group are left to the
// caller. The arithmetic is engine/README.md, "Attention".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_group.cuh"

namespace genai::cuda {

inline constexpr int kWideHead = 128;
inline constexpr int kWideOctets = kWideHead / 8;

// Queries in shared memory: [head][pair of partials][octet][2]. Four floats behind each pair keep the pairs of a lane's
// neighbours in other banks.
inline constexpr int kWidePairFloats = 2 * kWideOctets + 4;
inline constexpr int kWideQueryFloats = 4 * kWidePairFloats;  // of a head
__device__ __forceinline__ int wide_query_place(int element) {
  return element % 8 / 2 * kWidePairFloats + element / 8 * 2 + element % 2;
}

// Dots of all heads with the chunk's keys.
template <int kHeads>
__device__ __forceinline__ void dot_wide_keys(const GroupThread& own, const std::uint16_t* keys, const float* queries,
                                              float* dots) {
  constexpr int kOctetHalves = kChunkPositions * 8;
  const int pair = own.lane >> 3;
  const std::uint16_t* key = keys + (own.warp * 16 + (own.lane & 7)) * 8 + pair * 2;
  const float* query = queries + pair * kWidePairFloats;
  float2 near[kHeads] = {};
  float2 far[kHeads] = {};  // eight positions on
  constexpr int kTwosAtOnce = kHeads <= kFewHeads ? 2 : 1;
#pragma unroll kTwosAtOnce
  for (int octet = 0; octet < kWideOctets; octet += 2) {
    float near_key[2][2];
    float far_key[2][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      widen<2>(key + (octet + k) * kOctetHalves, near_key[k]);
      widen<2>(key + (octet + k) * kOctetHalves + 8 * 8, far_key[k]);
    }
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      float q[4];
      widen<4>(query + head * kWideQueryFloats + 2 * octet, q);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        near[head].x = exact_fma(q[2 * k], near_key[k][0], near[head].x);
        near[head].y = exact_fma(q[2 * k + 1], near_key[k][1], near[head].y);
        far[head].x = exact_fma(q[2 * k], far_key[k][0], far[head].x);
        far[head].y = exact_fma(q[2 * k + 1], far_key[k][1], far[head].y);
      }
    }
  }
  add_dots<kHeads>(own, near, far, dots);
}

// Where a warp's partial `quarter` of oc lies, in the chunk's values, once the warp has read its rows of them: in
// these. Four dimensions from `dim` on.
__device__ __forceinline__ int wide_output_place(int head, int quarter, int dim) {
  constexpr int kRowFloats = kWideHead / 2;  // a row of values is as large as so many floats
  return (quarter + 4 * (2 * head + dim / kRowFloats)) * kRowFloats + dim % kRowFloats;
}

// Partials of oc of all heads into the place of the chunk's values, of which positions first .. last are visible.
template <int kHeads>
__device__ __forceinline__ void weigh_wide_values(const GroupThread& own, std::uint16_t* values, const float* weights,
                                                  int first, int last) {
  constexpr int kDims = kWideHead / kWarpLanes;
  float sum[kHeads][kDims] = {};
  weigh_quarter<std::uint16_t, kHeads, kDims>(values + own.warp * kWideHead + own.lane * kDims, kWideHead, weights,
                                              own.warp, first, last, sum);
  __syncwarp();  // all lanes have read the warp's values
  float* place = reinterpret_cast<float*>(values) + wide_output_place(0, own.warp, own.lane * kDims);
  const int next = wide_output_place(1, 0, 0);
#pragma unroll
  for (int head = 0; head < kHeads; ++head)
    *reinterpret_cast<float4*>(place + head * next) =
        make_float4(sum[head][0], sum[head][1], sum[head][2], sum[head][3]);
}

// As add_partials().
template <int kHeads, class Store>
__device__ __forceinline__ void add_wide_partials(const GroupThread& own, const float* partials, int head_count,
                                                  const Store& store) {
  for_own_heads<kHeads>(own, head_count, [&](int head) {
    store(head, add_quarters(partials + wide_output_place(head, 0, 4 * own.lane), wide_output_place(0, 1, 0)));
  });
}

}  // namespace genai::cuda
