// program_rotate.cuh - norm and rotary embedding inside of a program: each by one warp, a lane with the elements
// 32 * k + lane of a head, which it takes as they are handed over. The arithmetic is engine/README.md, "Rotary
// embedding".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kMaxProgramHeadDim = 128;
inline constexpr int kHeadElements = kMaxProgramHeadDim / kWarpLanes;  // of a lane

__device__ __forceinline__ int head_element(int k) {
  return kWarpLanes * k + static_cast<int>(threadIdx.x) % kWarpLanes;
}

// `count` heads, the first at element `first` of the vector, the next `stride` elements on. Zeros behind a head's end.
template <int kCount>
__device__ __forceinline__ void take_heads(const ProgramInput& input, const Cell* cells, unsigned launch, int first,
                                           int stride, int count, int head_dim, float (&x)[kCount][kHeadElements]) {
  const unsigned tag = cell_tag(launch, input.generation);
  const Cell* own_cells = cells + input.cells + first + head_element(0);
  const float* values = input.values + first + head_element(0);
  Cell seen[kCount][kHeadElements];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k) {
      seen[i][k] = {0.0f, tag};
      if (i >= count || head_element(k) >= head_dim) continue;
      if (input.generation == 0)
        seen[i][k].value = __ldcg(values + i * stride + kWarpLanes * k);
      else
        seen[i][k] = look_at(own_cells + i * stride + kWarpLanes * k);
    }
  bool missing;
  do {
    missing = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k)
        if (seen[i][k].tag != tag) {
          missing = true;
          seen[i][k] = look_at(own_cells + i * stride + kWarpLanes * k);
        }
  } while (missing);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k) x[i][k] = seen[i][k].value;
}

// What turns a head, asked for ahead of the head.
class HeadTurn {
 public:
  __device__ __forceinline__ HeadTurn(const ProgramAttention& op, const float* norm_weight, int position)
      : normed_(norm_weight != nullptr), interleaved_(op.interleaved), pair_count_(op.rotated / 2) {
    const float2* table = reinterpret_cast<const float2*>(op.table + static_cast<std::int64_t>(position) * op.rotated);
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k) {
      weight_[k] = 0.0f;
      if (normed_ && head_element(k) < op.cache.head_dim) weight_[k] = __ldg(norm_weight + head_element(k));
    }
#pragma unroll
    for (int k = 0; k < kHeadElements / 2; ++k) {
      turn_[k] = make_float2(0.0f, 0.0f);
      if (head_element(k) < pair_count_) turn_[k] = __ldg(table + head_element(k));
    }
  }

  // The head after norm and rotation goes to `shared`, which other lanes may read behind the warp's next barrier.
  __device__ __forceinline__ void operator()(float (&x)[kHeadElements], float epsilon, int head_dim,
                                             float* shared) const {
    if (normed_) {
      float squares[8] = {};
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k) squares[k] = exact_fma(x[k], x[k], 0.0f);
      const float inverse = inverse_rms(warp_tree_256(squares), head_dim, epsilon);
#pragma unroll
      for (int k = 0; k < kHeadElements; ++k) x[k] = (x[k] * inverse) * weight_[k];
    }
#pragma unroll
    for (int k = 0; k < kHeadElements; ++k)
      if (head_element(k) < head_dim) shared[head_element(k)] = x[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kHeadElements / 2; ++k) {
      const int pair = head_element(k);
      if (pair >= pair_count_) continue;
      float* first = shared + (interleaved_ ? 2 * pair : pair);
      float* second = shared + (interleaved_ ? 2 * pair + 1 : pair + pair_count_);
      const float a = *first;
      const float b = *second;
      *first = exact_fma(a, turn_[k].x, -(b * turn_[k].y));
      *second = exact_fma(a, turn_[k].y, b * turn_[k].x);
    }
  }

 private:
  bool normed_;
  bool interleaved_;
  int pair_count_;
  float weight_[kHeadElements];
  float2 turn_[kHeadElements / 2];  // (cosine, sine) of the lane's pairs 32 * k + lane
};

}  // namespace genai::cuda
