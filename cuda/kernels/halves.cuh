// halves.cuh - small integers as pairs of halves in a word. A byte of bits below those of 1024 is 1024 plus a number;
// taking the 1024 away is exact, and so is every product here (up to 2048 in magnitude).
#pragma once
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

namespace genai::cuda {

// Both halves of a word: a number that is a normal half exactly.
constexpr unsigned twice(float value) {
  const unsigned bits = std::bit_cast<unsigned>(value);
  return value == 0.0f ? 0u : (((bits >> 16) & 0x8000u) | (((bits >> 13) & 0x3ffffu) - (112u << 10))) * 0x10001u;
}

inline constexpr unsigned kHalves1024 = twice(1024.0f);

__device__ __forceinline__ unsigned add_halves(unsigned a, unsigned b) {
  unsigned sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
__device__ __forceinline__ unsigned multiply_halves(unsigned a, unsigned b) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ unsigned fma_halves(unsigned a, unsigned b, unsigned c) {
  unsigned result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// 1024 plus byte kLow, and 1024 plus byte kHigh.
template <int kLow, int kHigh>
__device__ __forceinline__ unsigned place_bytes(unsigned word) {
  return __byte_perm(word, 0x64646464u, 0x4040u | kLow | kHigh << 8);
}

// Signed bytes kFirst and kFirst + 2.
template <int kFirst>
__device__ __forceinline__ unsigned widen_bytes(unsigned word) {
  return add_halves(place_bytes<kFirst, kFirst + 2>(word ^ 0x80808080u), twice(-1024.0f - 128.0f));
}

}  // namespace genai::cuda
