// cells.cuh - vectors handed over between blocks of a running kernel, in cells of a value and a tag. A cell is written
// and read in one access, so whoever sees the tag has the value: readers ask again until the tag is there. Tags are
// never used twice: they hold the generation of a vector within a launch and the number of the launch, which every
// block keeps in a word of its own.
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

// Memory for one stream's programs, zero before the first: a word for each block, cells of vectors, then what chunks of
// positions leave behind.
struct HandoverMemory {
  static constexpr int kMaxBlocks = 1024;
  static constexpr int kVectorCells = 128 * 1024;
  static constexpr std::size_t kPartialOffset = kMaxBlocks * sizeof(unsigned) + kVectorCells * sizeof(Cell);

  unsigned char* base;

  __host__ __device__ unsigned* launches() const { return reinterpret_cast<unsigned*>(base); }
  __host__ __device__ Cell* cells() const { return reinterpret_cast<Cell*>(base + kMaxBlocks * sizeof(unsigned)); }
  __host__ __device__ Cell* partials() const { return reinterpret_cast<Cell*>(base + kPartialOffset); }
};

inline constexpr int kGenerationBits = 8;

__device__ __forceinline__ unsigned cell_tag(unsigned launch, unsigned generation) {
  return launch << kGenerationBits | generation;
}

__device__ __forceinline__ void publish(Cell* cell, float value, unsigned tag) {
  const std::uint64_t word = std::uint64_t{tag} << 32 | float_bits(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(cell), "l"(word) : "memory");
}

__device__ __forceinline__ Cell look_at(const Cell* cell) {
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(cell) : "memory");
  return {bits_float(static_cast<unsigned>(word)), static_cast<unsigned>(word >> 32)};
}

// Four neighbours, the first at an address that is a multiple of 16, each read in one access.
struct CellQuad {
  float value[4];
  unsigned tag[4];

  __device__ __forceinline__ bool has(unsigned wanted) const {
    return tag[0] == wanted && tag[1] == wanted && tag[2] == wanted && tag[3] == wanted;
  }
  // Zeros, and as if they had been read, until they are.
  __device__ __forceinline__ void clear(unsigned wanted) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] = 0.0f;
      tag[i] = wanted;
    }
  }
  __device__ __forceinline__ void look_at(const Cell* cells, bool wanted) {
    asm volatile(
        "{\n .reg .pred wanted;\n .reg .u64 a, b, c, d;\n"
        " setp.ne.u32 wanted, %9, 0;\n"
        " mov.b64 a, {%0, %4};\n mov.b64 b, {%1, %5};\n mov.b64 c, {%2, %6};\n mov.b64 d, {%3, %7};\n"
        " @wanted ld.relaxed.gpu.global.v2.u64 {a, b}, [%8];\n"
        " @wanted ld.relaxed.gpu.global.v2.u64 {c, d}, [%8 + 16];\n"
        " mov.b64 {%0, %4}, a;\n mov.b64 {%1, %5}, b;\n mov.b64 {%2, %6}, c;\n mov.b64 {%3, %7}, d;\n}"
        : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3]), "+r"(tag[0]), "+r"(tag[1]), "+r"(tag[2]),
          "+r"(tag[3])
        : "l"(cells), "r"(static_cast<unsigned>(wanted))
        : "memory");
  }
};

// Waits for the cell's tag.
__device__ __forceinline__ float take(const Cell* cell, unsigned tag) {
  Cell seen = look_at(cell);
  while (seen.tag != tag) seen = look_at(cell);
  return seen.value;
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
