// cells.cuh - how blocks of a running kernel hand results to each other, without a fence or a flag.
//
// Vectors are handed over as words: the bits of a value, turned so that a word of zeros is none (no operation gives
// that NaN). A vector's generations take three places in turn: whoever writes one clears the one before, which nobody
// reads any more, and which is written again two generations later. A launch uses one of two regions of words, by its
// number, and clears the other for the next. What chunks of positions leave behind is handed over in cells of a value
// and a tag, written and read in one access: there is too much of it to be cleared. Tags are never used twice: they
// hold the operation and the number of the launch, which every block keeps in a word of its own. In both cases readers
// ask again until what they see is there.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "engine/exact_math.h"

namespace genai::cuda {

struct alignas(8) Cell {
  float value;
  unsigned tag;
};

// Memory for one stream's programs and products, zero before the first.
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
  __host__ __device__ Cell* partials() const { return reinterpret_cast<Cell*>(base + kPartialOffset); }
};

// ---- words ---------------------------------------------------------------------------------------------------------

inline constexpr unsigned kNoWord = 0;
inline constexpr unsigned kTurn = 0x7ff5a5a5u;
inline constexpr unsigned kZeroWord = kTurn;  // of 0.0f

__device__ __forceinline__ float word_value(unsigned word) { return bits_float(word ^ kTurn); }

__device__ __forceinline__ void store_word(unsigned* at, unsigned word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}
__device__ __forceinline__ void hand_over(unsigned* at, float value) { store_word(at, float_bits(value) ^ kTurn); }

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
__device__ __forceinline__ bool has_all(const uint4& seen) {
  return seen.x != kNoWord && seen.y != kNoWord && seen.z != kNoWord && seen.w != kNoWord;
}

// ---- cells ---------------------------------------------------------------------------------------------------------

inline constexpr int kGenerationBits = 8;

__device__ __forceinline__ unsigned cell_tag(unsigned launch, unsigned generation) {
  return launch << kGenerationBits | generation;
}

// A cell as it is read: many on their way at once stay in pairs of registers, which taking them apart would wait for.
using CellWord = std::uint64_t;

__device__ __forceinline__ CellWord cell_word(float value, unsigned tag) {
  return CellWord{tag} << 32 | float_bits(value);
}
__device__ __forceinline__ unsigned tag_of(CellWord word) { return static_cast<unsigned>(word >> 32); }
__device__ __forceinline__ float value_of(CellWord word) { return bits_float(static_cast<unsigned>(word)); }

// Looks again where `wanted`, without a branch.
__device__ __forceinline__ void look_again(CellWord& seen, const Cell* cell, bool wanted) {
  asm volatile(
      "{\n .reg .pred wanted;\n"
      " setp.ne.u32 wanted, %2, 0;\n"
      " @wanted ld.relaxed.gpu.global.u64 %0, [%1];\n}"
      : "+l"(seen)
      : "l"(cell), "r"(static_cast<unsigned>(wanted))
      : "memory");
}

}  // namespace genai::cuda
