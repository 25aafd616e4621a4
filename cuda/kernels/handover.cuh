// handover.cuh - how blocks of a running kernel hand results to each other, without a fence or a flag.
//
// Values are handed over as words: the bits of a value, turned so that a word of zeros is none (no operation gives
// that NaN). Readers ask again until what they see is there. A vector's generations take three places in turn: whoever
// writes one clears the one before, which nobody reads any more, and which is written again two generations later. A
// launch uses one of two regions of words, by its number, which every block keeps in a word of its own, and clears the
// other for the next. What chunks of positions leave behind has one reader, who clears it (program_partials.cuh).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "engine/exact_math.h"

namespace genai::cuda {

// Memory for one stream's programs, chains and products, zero before the first.
struct HandoverMemory {
  static constexpr int kMaxBlocks = 1024;
  static constexpr int kPlaces = 3;  // of a vector
  static constexpr int kRegionWords = kPlaces * 128 * 1024;
  static constexpr int kCounters = 256;
  static constexpr std::size_t kCounterOffset = (kMaxBlocks + 2 * kRegionWords) * sizeof(unsigned);
  static constexpr std::size_t kPartialOffset = kCounterOffset + kCounters * sizeof(unsigned);

  unsigned char* base;

  __host__ __device__ unsigned* launches() const { return reinterpret_cast<unsigned*>(base); }
  __host__ __device__ unsigned* words(unsigned launch) const {
    return reinterpret_cast<unsigned*>(base) + kMaxBlocks + launch % 2 * kRegionWords;
  }
  // Not of programs: NOTE [Rows input].
  __host__ __device__ unsigned* counters() const { return reinterpret_cast<unsigned*>(base + kCounterOffset); }
  __host__ __device__ unsigned* partials() const { return reinterpret_cast<unsigned*>(base + kPartialOffset); }
};

inline constexpr unsigned kNoWord = 0;
inline constexpr unsigned kTurn = 0x7ff5a5a5u;
inline constexpr unsigned kZeroWord = kTurn;  // of 0.0f

__device__ __forceinline__ unsigned value_word(float value) { return float_bits(value) ^ kTurn; }
__device__ __forceinline__ float word_value(unsigned word) { return bits_float(word ^ kTurn); }

__device__ __forceinline__ void store_word(unsigned* at, unsigned word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}
__device__ __forceinline__ void hand_over(unsigned* at, float value) { store_word(at, value_word(value)); }

// The block's part of the words of the last launch, which are those of the next; by kThreads of its threads, each of
// which has kAtOnce stores on their way.
template <int kThreads, int kAtOnce>
__device__ __forceinline__ void clear_words(const HandoverMemory& handover, unsigned launch, int thread) {
  uint4* others = reinterpret_cast<uint4*>(handover.words(launch + 1));
#pragma unroll kAtOnce
  for (int i = static_cast<int>(blockIdx.x) * kThreads + thread; i < HandoverMemory::kRegionWords / 4;
       i += static_cast<int>(gridDim.x) * kThreads)
    others[i] = make_uint4(kNoWord, kNoWord, kNoWord, kNoWord);
}

// The launch is over in this block; by its first threads, also for blocks that other launches have.
__device__ __forceinline__ void count_launch(const HandoverMemory& handover, unsigned launch) {
  const int own = static_cast<int>(blockIdx.x + threadIdx.x * gridDim.x);
  if (own < HandoverMemory::kMaxBlocks) handover.launches()[own] = launch + 1;
}

// Looks where `wanted`, without a branch: many of these are on their way at once.
__device__ __forceinline__ void look_at_word(unsigned& seen, const unsigned* at, bool wanted) {
  asm volatile(
      "{\n .reg .pred wanted;\n"
      " setp.ne.u32 wanted, %2, 0;\n"
      " @wanted ld.relaxed.gpu.global.u32 %0, [%1];\n}"
      : "+r"(seen)
      : "l"(at), "r"(static_cast<unsigned>(wanted))
      : "memory");
}

// Waits for the word.
__device__ __forceinline__ float take_word(const unsigned* at) {
  unsigned seen = kNoWord;
  while (seen == kNoWord) look_at_word(seen, at, true);
  return word_value(seen);
}

// Four neighbours, the first at an address that is a multiple of 16.
__device__ __forceinline__ void look_at_four(uint4& seen, const unsigned* at, bool wanted) {
  asm volatile(
      "{\n .reg .pred wanted;\n"
      " setp.ne.u32 wanted, %5, 0;\n"
      " @wanted ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(seen.x), "+r"(seen.y), "+r"(seen.z), "+r"(seen.w)
      : "l"(at), "r"(static_cast<unsigned>(wanted))
      : "memory");
}
__device__ __forceinline__ void store_four(unsigned* at, const uint4& four) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(four.x), "r"(four.y), "r"(four.z),
               "r"(four.w)
               : "memory");
}
__device__ __forceinline__ float4 four_values(const uint4& four) {
  return make_float4(word_value(four.x), word_value(four.y), word_value(four.z), word_value(four.w));
}
__device__ __forceinline__ bool has_all(const uint4& seen) {
  return seen.x != kNoWord && seen.y != kNoWord && seen.z != kNoWord && seen.w != kNoWord;
}

// Two, at a multiple of 8.
__device__ __forceinline__ void look_at_two(uint2& seen, const unsigned* at, bool wanted) {
  asm volatile(
      "{\n .reg .pred wanted;\n"
      " setp.ne.u32 wanted, %3, 0;\n"
      " @wanted ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];\n}"
      : "+r"(seen.x), "+r"(seen.y)
      : "l"(at), "r"(static_cast<unsigned>(wanted))
      : "memory");
}
__device__ __forceinline__ void store_two(unsigned* at, const uint2& two) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(two.x), "r"(two.y) : "memory");
}
__device__ __forceinline__ bool has_all(const uint2& seen) { return seen.x != kNoWord && seen.y != kNoWord; }

}  // namespace genai::cuda
