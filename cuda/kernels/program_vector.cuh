// program_vector.cuh - the input of a product of a program: taken from memory or from words as they are handed over,
// normalised and quantised into shared memory by the 512 consumers, in the order of row_vector.cuh.
//
// A lane has an item of eight values, elements 4c .. 4c+3 of a block of 32 and those 16 on, which become one 8-byte
// store. Code that runs once takes longer to be fetched than to run: there are loops and no copies of them.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

inline constexpr int kConsumerBarrier = 1;
static_assert(kConsumerThreads == kVectorThreads);

__device__ __forceinline__ void consumer_barrier() { named_barrier<kConsumerBarrier, kConsumerThreads>(); }

// Where a program's input comes from.
struct VectorSource {
  const float* values;
  const unsigned* words;  // null: values

  __device__ __forceinline__ VectorSource(const ProgramInput& input, const unsigned* all_words)
      : values(input.values), words(input.words < 0 ? nullptr : all_words + input.words) {}
};

// Where item `index` lies in the vector: here and 16 elements on.
__device__ __forceinline__ int item_column(int index) { return index / 4 * kBlockWidth + index % 4 * 4; }

// An item as it is asked for. Behind the vector's end there are zeros.
struct ItemWords {
  uint4 low;
  uint4 high;

  __device__ __forceinline__ void ask(const VectorSource& source, int column, int cols) {
    const unsigned zero = source.words != nullptr ? kZeroWord : 0u;
    low = high = make_uint4(zero, zero, zero, zero);
    look(source, column, column < cols, column + 16 < cols);
  }
  // Again what is not there yet.
  __device__ __forceinline__ void wait(const VectorSource& source, int column) {
    if (source.words == nullptr) return;
    while (!has_all(low) || !has_all(high)) look(source, column, !has_all(low), !has_all(high));
  }
  __device__ __forceinline__ float4 low_values(const VectorSource& source) const { return read(source, low); }
  __device__ __forceinline__ float4 high_values(const VectorSource& source) const { return read(source, high); }

 private:
  __device__ __forceinline__ void look(const VectorSource& source, int column, bool wants_low, bool wants_high) {
    const unsigned* at = source.words != nullptr ? source.words : reinterpret_cast<const unsigned*>(source.values);
    look_at_four(low, at + column, wants_low);
    look_at_four(high, at + column + 16, wants_high);
  }
  __device__ __forceinline__ static float4 read(const VectorSource& source, const uint4& four) {
    const unsigned turn = source.words != nullptr ? kTurn : 0u;
    return make_float4(bits_float(four.x ^ turn), bits_float(four.y ^ turn), bits_float(four.z ^ turn),
                       bits_float(four.w ^ turn));
  }
};

// One item as int8, with the scale of its block (exact_math.h). By whole warps.
template <bool kSums>
__device__ __forceinline__ void quantize_item(const float4& low, const float4& high, int index, const RowVector& row) {
  unsigned highest = max(max(max(magnitude(low.x), magnitude(low.y)), max(magnitude(low.z), magnitude(low.w))),
                         max(max(magnitude(high.x), magnitude(high.y)), max(magnitude(high.z), magnitude(high.w))));
  highest = max(highest, __shfl_xor_sync(kFullWarp, highest, 1));
  highest = max(highest, __shfl_xor_sync(kFullWarp, highest, 2));
  const bool finite = highest < 0x7f800000u;
  const bool zero = highest < 0x0d800000u;
  const float divided = divide_by_127(bits_float(highest));
  const float inverse = reciprocal(divided);
  const float scale = zero ? 0.0f : finite ? divided : bits_float(0x7fc00000u);
  const auto pack = [inverse](const float4& four) {
    const unsigned first = __byte_perm(quant_bits(four.x, inverse), quant_bits(four.y, inverse), 0x0040);
    const unsigned second = __byte_perm(quant_bits(four.z, inverse), quant_bits(four.w, inverse), 0x0040);
    return __byte_perm(first, second, 0x5410);
  };
  const bool counts = finite && !zero;
  const uint2 quants = make_uint2(counts ? pack(low) : 0u, counts ? pack(high) : 0u);
  row.quants[index] = quants;
  int sum = 0;
  if constexpr (kSums) {
    sum = __dp4a(static_cast<int>(quants.x), 0x01010101, __dp4a(static_cast<int>(quants.y), 0x01010101, 0));
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
  }
  if (index % 4 != 0) return;
  row.scales[index / 4] = scale;
  if constexpr (kSums) row.sums[index / 4] = scale * static_cast<float>(sum);
}

// 1 / rms of the staged row. The first 256 threads have the elements i = thread (mod 256), ascending.
__device__ __forceinline__ float staged_inverse_rms(const float* staged, int cols, float epsilon, float* reduce) {
  const int thread = own_thread();
  if (thread < kVectorThreads / 2) {
    float partial = 0.0f;
#pragma unroll 4
    for (int i = thread; i < cols; i += 256) partial = exact_fma(staged[i], staged[i], partial);
    reduce[thread] = partial;
  }
  consumer_barrier();
  float partials[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) partials[k] = reduce[kWarpLanes * k + thread % kWarpLanes];
  return inverse_rms(warp_tree_256(partials), cols, epsilon);
}

__device__ __forceinline__ float4 normed(const float4& x, float inverse, const float4& weight) {
  return make_float4((x.x * inverse) * weight.x, (x.y * inverse) * weight.y, (x.z * inverse) * weight.z,
                     (x.w * inverse) * weight.w);
}

// The row into shared memory, once all consumers are through with the last operation; the caller has a barrier before
// anyone reads.
template <bool kSums>
__device__ __forceinline__ void prepare_program_vector(const VectorSource& source, const float* norm_weight,
                                                       float norm_epsilon, int cols, const RowVector& row,
                                                       float* staged) {
  const int thread = own_thread();
  const int item_count = octet_count(cols) * kOctetWidth / 8;  // whole warps
  consumer_barrier();
  if (norm_weight == nullptr) {
    constexpr int kAhead = 3;
    ItemWords next[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) next[k].ask(source, item_column(thread + k * kConsumerThreads), cols);
#pragma unroll 1
    for (int index = thread; index < item_count; index += kConsumerThreads) {
      ItemWords item = next[0];
#pragma unroll
      for (int k = 0; k + 1 < kAhead; ++k) next[k] = next[k + 1];
      next[kAhead - 1].ask(source, item_column(index + kAhead * kConsumerThreads), cols);
      item.wait(source, item_column(index));
      quantize_item<kSums>(item.low_values(source), item.high_values(source), index, row);
    }
    return;
  }
  ItemWords next;
  next.ask(source, item_column(thread), cols);
#pragma unroll 1
  for (int index = thread; index < item_count; index += kConsumerThreads) {
    const int column = item_column(index);
    ItemWords item = next;
    next.ask(source, item_column(index + kConsumerThreads), cols);
    item.wait(source, column);
    if (column < cols) *reinterpret_cast<float4*>(staged + column) = item.low_values(source);
    if (column + 16 < cols) *reinterpret_cast<float4*>(staged + column + 16) = item.high_values(source);
  }
  const VectorSource weights({norm_weight, -1}, nullptr);
  ItemWords weight;
  weight.ask(weights, item_column(thread), cols);
  consumer_barrier();
  const float inverse = staged_inverse_rms(staged, cols, norm_epsilon, row.reduce);
#pragma unroll 1
  for (int index = thread; index < item_count; index += kConsumerThreads) {
    const int column = item_column(index);
    float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 high = low;
    if (column < cols)
      low = normed(*reinterpret_cast<const float4*>(staged + column), inverse, weight.low_values(weights));
    if (column + 16 < cols)
      high = normed(*reinterpret_cast<const float4*>(staged + column + 16), inverse, weight.high_values(weights));
    weight.ask(weights, item_column(index + kConsumerThreads), cols);
    quantize_item<kSums>(low, high, index, row);
  }
}

}  // namespace genai::cuda
