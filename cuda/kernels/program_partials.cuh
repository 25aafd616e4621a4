// program_partials.cuh - the words by which chunks of positions hand over what they leave behind: oc, in the order
// [head][slice][chunk][kSliceDims], then (mc, lc), [head][slice][chunk], as often as there are slices, so that every
// word has one reader, who clears it. Chunks count as in ChunkSpan. Attentions take two such places in turn: a word is
// written again two of them after it was cleared. Between programs all of it is zero, whatever its layout is.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/program.cuh"

namespace genai::cuda {

inline constexpr int kPartialTurns = 2;
inline constexpr int kSumWords = 2;

// Of one turn.
__host__ __device__ constexpr std::int64_t partial_words(int head_count, int head_dim, int chunk_capacity) {
  return static_cast<std::int64_t>(head_count) * slice_count(head_dim) * chunk_capacity * (kSliceDims + kSumWords);
}

// Computed where it is needed: kept, it would take registers from sums.
struct ChunkWords {
  unsigned* outputs;
  unsigned* sums;
  int slices;
  int capacity;

  // Of several rows the heads follow each other.
  __device__ __forceinline__ ChunkWords(const ProgramAttention& op, const HandoverMemory& handover, int row_count = 1)
      : slices(slice_count(op.kind.cache.head_dim)), capacity(keep(op.kind.chunk_capacity)) {
    const int heads = row_count * op.kind.head_count;
    outputs = handover.partials() + op.call.turn * partial_words(heads, op.kind.cache.head_dim, op.kind.chunk_capacity);
    sums = outputs + static_cast<std::int64_t>(heads) * slices * capacity * kSliceDims;
  }
  __device__ __forceinline__ unsigned* output(int head, int slice, int chunk) const {
    return outputs + place(head, slice, chunk) * kSliceDims;
  }
  __device__ __forceinline__ unsigned* sum(int head, int slice, int chunk) const {
    return sums + place(head, slice, chunk) * kSumWords;
  }

 private:
  __device__ __forceinline__ std::int64_t place(int head, int slice, int chunk) const {
    return static_cast<std::int64_t>(head * slices + slice) * capacity + chunk;
  }
};

// Four neighbours by one store, the first at an address that is a multiple of 16.
__device__ __forceinline__ void hand_over_four(unsigned* at, const float4& values) {
  store_four(at, make_uint4(value_word(values.x), value_word(values.y), value_word(values.z), value_word(values.w)));
}

// A chunk's (mc, lc).
__device__ __forceinline__ void hand_over_sum(unsigned* at, const ChunkSum& sum) {
  store_two(at, make_uint2(value_word(sum.highest), value_word(sum.total)));
}

}  // namespace genai::cuda
