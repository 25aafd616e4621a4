// program_vector.cuh - the input of a product of a program: taken from memory or from cells as they are written,
// normalised and quantised into shared memory by the 512 consumers (row_vector.cuh).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

inline constexpr int kConsumerBarrier = 1;
static_assert(kConsumerThreads == kVectorThreads);

// Of the last group, which has the fewest units to finish.
inline constexpr int kWatchingWarp = kConsumerThreads / kWarpLanes - 1;

__device__ __forceinline__ void consumer_barrier() { named_barrier<kConsumerBarrier, kConsumerThreads>(); }

// Where a program's input comes from.
struct VectorSource {
  const float* values;
  const unsigned* words;  // null: values

  __device__ __forceinline__ VectorSource(const ProgramInput& input, const unsigned* all_words)
      : values(input.values), words(input.words < 0 ? nullptr : all_words + input.words) {}

  // Asks for a quad, where `wanted`; what comes from memory looks the same as what is handed over.
  __device__ __forceinline__ void look(uint4& seen, int column, bool wanted) const {
    if (words != nullptr) return look_at_four(seen, words + column, wanted);
    if (!wanted) return;
    const float4 four = __ldcg(reinterpret_cast<const float4*>(values + column));
    seen = make_uint4(float_bits(four.x) ^ kTurn, float_bits(four.y) ^ kTurn, float_bits(four.z) ^ kTurn,
                      float_bits(four.w) ^ kTurn);
  }
  __device__ __forceinline__ float4 take(uint4 seen, int column) const {
    while (words != nullptr && !has_all(seen)) look_at_four(seen, words + column, true);
    return word_values(seen);
  }
};

// Quads of a thread (row_vector.cuh) that have been asked for, the next one first. They are turned on rather than
// indexed: code that runs once takes longer to be fetched than to run, so there are loops and no copies of them.
struct QuadsAhead {
  uint4 quads[kVectorQuads];

  // Zeros behind the vector's end.
  __device__ __forceinline__ void ask(const VectorSource& source, int column, int cols) {
#pragma unroll
    for (int k = 0; k < kVectorQuads; ++k) {
      quads[k] = make_uint4(kZeroWord, kZeroWord, kZeroWord, kZeroWord);
      source.look(quads[k], column + k * kVectorStride, column + k * kVectorStride < cols);
    }
  }
  __device__ __forceinline__ void turn() {
#pragma unroll
    for (int k = 0; k + 1 < kVectorQuads; ++k) quads[k] = quads[k + 1];
    quads[kVectorQuads - 1] = make_uint4(kZeroWord, kZeroWord, kZeroWord, kZeroWord);
  }
};

// Waits until the vector is probably whole: words are looked at where each block's share ends, by one warp, so that
// waiting does not take the memory's time. Whether the others are there is seen when they are read.
__device__ __forceinline__ void watch_vector(const VectorSource& source, int cols) {
  if (source.words == nullptr) return;
  const unsigned blocks = gridDim.x;
#pragma unroll 1
  for (unsigned share = threadIdx.x % kWarpLanes + 1; share <= blocks; share += kWarpLanes)
    (void)take_word(source.words + max(static_cast<int>(share * static_cast<unsigned>(cols) / blocks), 1) - 1);
  __syncwarp();
}

// The row goes to `staged`; 1 / rms of it. The first 256 threads have the elements i = thread (mod 256), ascending.
__device__ __forceinline__ float stage_vector(const VectorSource& source, QuadsAhead ahead, int cols, float epsilon,
                                              const RowVector& row, float* staged) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int column = 4 * thread; column < cols; column += kVectorStride) {
    *reinterpret_cast<float4*>(staged + column) = source.take(ahead.quads[0], column);
    ahead.turn();
  }
  consumer_barrier();
  if (thread < kVectorThreads / 2) {
    float partial = 0.0f;
#pragma unroll 4
    for (int i = thread; i < cols; i += 256) partial = exact_fma(staged[i], staged[i], partial);
    row.reduce[thread] = partial;
  }
  consumer_barrier();
  float partials[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) partials[k] = row.reduce[kWarpLanes * k + thread % kWarpLanes];
  return inverse_rms(warp_tree_256(partials), cols, epsilon);
}

// The row into shared memory, once all consumers are through with the last operation; the caller has a barrier before
// anyone reads.
template <bool kSums>
__device__ __forceinline__ void prepare_program_vector(const VectorSource& source, const float* norm_weight,
                                                       float norm_epsilon, int cols, const RowVector& row,
                                                       float* staged) {
  const int thread = static_cast<int>(threadIdx.x);
  const int padded = octet_count(cols) * kOctetWidth;
  const bool normed = norm_weight != nullptr;
  const QuadPlace place(row);
  if (thread / kWarpLanes == kWatchingWarp) watch_vector(source, cols);
  consumer_barrier();
  QuadsAhead ahead;
  ahead.ask(source, 4 * thread, cols);
  float inverse = 1.0f;
  if (normed) {
    QuadsAhead weights;
    weights.ask({{norm_weight, -1}, nullptr}, 4 * thread, cols);
    inverse = stage_vector(source, ahead, cols, norm_epsilon, row, staged);
    ahead = weights;
  }
  int column = 4 * thread;
#pragma unroll 1
  for (int first = thread / kWarpLanes * kTileWidth, k = 0; first < padded;
       first += kVectorStride, column += kVectorStride, ++k) {
    float4 x;
    if (normed) {
      const float4 weight = word_values(ahead.quads[0]);
      x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (column < cols) x = *reinterpret_cast<const float4*>(staged + column);
      x.x = (x.x * inverse) * weight.x;
      x.y = (x.y * inverse) * weight.y;
      x.z = (x.z * inverse) * weight.z;
      x.w = (x.w * inverse) * weight.w;
    } else {
      x = source.take(ahead.quads[0], column);
    }
    ahead.turn();
    const int next = column + kVectorQuads * kVectorStride;
    if (!normed) source.look(ahead.quads[kVectorQuads - 1], next, next < cols);
    quantize_quads<kSums, 1>(&x, place, k);
  }
}

}  // namespace genai::cuda
