// program_rotate.cuh - norm and rotary embedding inside of a program: each by one warp, a lane with the elements
// 32 * k + lane of a head, which it takes as they are handed over. The arithmetic is engine/README.md, "Rotary
// embedding".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kMaxProgramHeadDim = 128;
inline constexpr int kHeadElements = kMaxProgramHeadDim / kWarpLanes;  // of a lane

__device__ __forceinline__ int head_element(int lane, int k) { return kWarpLanes * k + lane; }

// `count` heads that are handed over, to shared memory, one behind the other `shared_stride` elements on. The first
// begins at element `first` of the vector, the next `stride` elements on.
template <int kCount>
__device__ __forceinline__ void take_heads(const unsigned* vector, int first, int stride, int count, int head_dim,
                                           float* shared, int shared_stride) {
  const int lane = own_lane();
  const unsigned* words = vector + first + head_element(lane, 0);
  const auto wanted = [&](int i, int k) { return i < count && head_element(lane, k) < head_dim; };
  unsigned seen[kCount][kHeadElements];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k) {
      seen[i][k] = kZeroWord;
      look_at_word(seen[i][k], words + i * stride + kWarpLanes * k, wanted(i, k));
    }
  bool missing;
  do {
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k) {
        const bool again = seen[i][k] == kNoWord;
        missing |= again;
        look_at_word(seen[i][k], words + i * stride + kWarpLanes * k, again);
      }
  } while (missing);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k)
      if (wanted(i, k)) shared[i * shared_stride + head_element(lane, k)] = word_value(seen[i][k]);
}

// What turns a head, asked for ahead of the head.
class HeadTurn {
 public:
  __device__ __forceinline__ HeadTurn(const ProgramAttention& op, const float* norm_weight, int position)
      : normed_(norm_weight != nullptr) {
    const int lane = own_lane();
    const float2* table =
        reinterpret_cast<const float2*>(op.kind.table + static_cast<std::int64_t>(position) * op.kind.rotated);
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k) {
      weight_[k] = 0.0f;
      if (normed_ && head_element(lane, k) < op.kind.cache.head_dim)
        weight_[k] = __ldg(norm_weight + head_element(lane, k));
    }
#pragma unroll
    for (int k = 0; k < kHeadElements / 2; ++k) {
      turn_[k] = make_float2(0.0f, 0.0f);
      if (head_element(lane, k) < op.kind.rotated / 2) turn_[k] = __ldg(table + head_element(lane, k));
    }
  }

  // Norm and rotation of a head in shared memory, of which the lane's elements were written by the lane. Other lanes
  // may read the result behind the warp's next barrier.
  __device__ __forceinline__ void operator()(const ProgramAttention& op, float* head) const {
    const int lane = own_lane();
    const int head_dim = op.kind.cache.head_dim;
    if (normed_) {
      float x[8] = {};
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k)
        if (head_element(lane, k) < head_dim) x[k] = head[head_element(lane, k)];
      float squares[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) squares[k] = exact_fma(x[k], x[k], 0.0f);
      const float inverse = inverse_rms(warp_tree_256(squares), head_dim, op.kind.norm_epsilon);
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k)
        if (head_element(lane, k) < head_dim) head[head_element(lane, k)] = (x[k] * inverse) * weight_[k];
    }
    __syncwarp();
    const int pair_count = op.kind.rotated / 2;
#pragma unroll
    for (int k = 0; k < kHeadElements / 2; ++k) {
      const int pair = head_element(lane, k);
      if (pair >= pair_count) continue;
      float* first = head + (op.kind.interleaved ? 2 * pair : pair);
      float* second = head + (op.kind.interleaved ? 2 * pair + 1 : pair + pair_count);
      const float a = *first;
      const float b = *second;
      *first = exact_fma(a, turn_[k].x, -(b * turn_[k].y));
      *second = exact_fma(a, turn_[k].y, b * turn_[k].x);
    }
  }

 private:
  bool normed_;
  float weight_[kHeadElements];
  float2 turn_[kHeadElements / 2];  // (cosine, sine) of the lane's pairs 32 * k + lane
};

// Where element i of a key or a value lies in a chunk of a head's.
__device__ __forceinline__ int position_place(bool is_key, int slot, int head_dim, int i) {
  return is_key ? (i / 8 * kChunkPositions + slot) * 8 + i % 8 : slot * head_dim + i;
}

// A key or a value into its place in a chunk of the head's, in shared memory and, where it `stores`, in the cache. One
// warp, whose `staged` it is.
__device__ __forceinline__ void put_position(const float* staged, bool is_key, int slot, int head_dim, bool stores,
                                             std::uint16_t* shared, std::uint16_t* global) {
#pragma unroll 1
  for (int i = own_lane(); i < head_dim; i += kWarpLanes) {
    const std::uint16_t half = float_to_half(staged[i]);
    const int place = position_place(is_key, slot, head_dim, i);
    shared[place] = half;
    if (stores) global[place] = half;
  }
  order_before_bulk_loads();
}

}  // namespace genai::cuda
