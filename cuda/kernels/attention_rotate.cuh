// attention_rotate.cuh - norm and rotary embedding as a part of attention over a few rows (attention_decode.cu): a head
// in shared memory, turned by one warp. The arithmetic is engine/README.md, "Rotary embedding".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kMaxTurnedDims = 256;

// The rotation ahead of an attention (RotateArgs), of the same rows. Keys and values are those of the rows, (M, G, D).
struct RotationPlan {
  const float* keys;  // null: queries and cache are as attention wants them
  const float* values;
  float* queries;       // (M, H, D): where turned ones go in the end
  const float* q_norm;  // or null
  const float* k_norm;  // or null
  const float* table;
  float norm_epsilon;
  int rotated;
  bool interleaved;
};

// What turns a head at one position, asked for ahead of the head.
class HeadRotation {
 public:
  __device__ __forceinline__ HeadRotation(const RotationPlan& plan, const float* norm_weight, int position,
                                          int head_dim)
      : plan_(plan), normed_(norm_weight != nullptr), head_dim_(head_dim) {
    const float2* table =
        reinterpret_cast<const float2*>(plan.table + static_cast<std::int64_t>(position) * plan.rotated);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      weight_[k] = 0.0f;
      if (normed_ && element(k) < head_dim) weight_[k] = __ldg(norm_weight + element(k));
    }
#pragma unroll
    for (int k = 0; k < kElements / 2; ++k) {
      turn_[k] = make_float2(0.0f, 0.0f);
      if (element(k) < plan.rotated / 2) turn_[k] = __ldg(table + element(k));
    }
  }

  // The head's elements 32 * k + lane were written by the lane, or ahead of a barrier. Other lanes may read the result
  // behind the warp's next barrier.
  __device__ __forceinline__ void operator()(float* head) const {
    if (normed_) normalise(head);
    __syncwarp();
    const int pair_count = plan_.rotated / 2;
#pragma unroll
    for (int k = 0; k < kElements / 2; ++k) {
      const int pair = element(k);
      if (pair >= pair_count) continue;
      float* first = head + (plan_.interleaved ? 2 * pair : pair);
      float* second = head + (plan_.interleaved ? 2 * pair + 1 : pair + pair_count);
      const float a = *first;
      const float b = *second;
      *first = exact_fma(a, turn_[k].x, -(b * turn_[k].y));
      *second = exact_fma(a, turn_[k].y, b * turn_[k].x);
    }
  }

 private:
  static constexpr int kElements = kMaxTurnedDims / kWarpLanes;  // of a lane
  __device__ __forceinline__ static int element(int k) {
    return kWarpLanes * k + static_cast<int>(threadIdx.x) % kWarpLanes;
  }

  __device__ __forceinline__ void normalise(float* head) const {
    static_assert(kElements == 8, "a lane's partials of tree_256 are its elements' squares");
    float x[kElements] = {};
    float squares[kElements];
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (element(k) < head_dim_) x[k] = head[element(k)];
      squares[k] = exact_fma(x[k], x[k], 0.0f);
    }
    const float inverse = inverse_rms(warp_tree_256(squares), head_dim_, plan_.norm_epsilon);
#pragma unroll
    for (int k = 0; k < kElements; ++k)
      if (element(k) < head_dim_) head[element(k)] = (x[k] * inverse) * weight_[k];
  }

  const RotationPlan& plan_;
  bool normed_;
  int head_dim_;
  float weight_[kElements];
  float2 turn_[kElements / 2];  // (cosine, sine) of the lane's pairs
};

}  // namespace genai::cuda
