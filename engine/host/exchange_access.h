// exchange_access.h - words of an exchange (exchange_words.h) as the host stores and loads them. A word that was
// loaded makes visible what came before its store: on the host that costs nothing.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "engine/exact_math.h"
#include "engine/exchange_words.h"

namespace genai {

inline ExchangeWord load_word(const ExchangeWord& word) {
  return std::atomic_ref(const_cast<ExchangeWord&>(word)).load(std::memory_order_acquire);  // atomic_ref takes no const
}
inline void store_word(ExchangeWord& word, ExchangeWord value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

inline constexpr int kLineWords = 8;

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
// The data of a line of words to `to`; false where not all of them belong to `request` yet. Words are loaded two at a
// time: processors with AVX load 16 aligned bytes whole, older ones the words of them.
// REQUIRES: words on a boundary of 16 bytes.
inline bool load_line(const ExchangeWord* from, std::uint32_t request, std::byte* to) {
  std::atomic_signal_fence(std::memory_order_seq_cst);  // each call loads anew
  const auto pair = [from](int k) {
    return _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from) + k));
  };
  const auto numbers = [](__m128 a, __m128 b) { return _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd)); };
  const auto data = [](__m128 a, __m128 b) { return _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88)); };
  const __m128 p0 = pair(0), p1 = pair(1), p2 = pair(2), p3 = pair(3);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), data(p0, p1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1, data(p2, p3));
  const __m128i wanted = _mm_set1_epi32(static_cast<std::int32_t>(request));
  const __m128i equal =
      _mm_and_si128(_mm_cmpeq_epi32(numbers(p0, p1), wanted), _mm_cmpeq_epi32(numbers(p2, p3), wanted));
  return _mm_movemask_epi8(equal) == 0xffff;
}

// Words of floats, two at a time where they lie on a boundary of 16 bytes.
inline void store_floats(ExchangeWord* to, const float* from, std::int64_t count, std::uint32_t request) {
  std::atomic_signal_fence(std::memory_order_release);  // the processor keeps the order of stores
  const auto store_one = [&](std::int64_t i) { store_word(to[i], exchange_word(float_bits(from[i]), request)); };
  std::int64_t i = 0;
  if (count > 0 && reinterpret_cast<std::uintptr_t>(to) % 16 != 0) store_one(i++);
  const __m128 number = _mm_castsi128_ps(_mm_set1_epi32(static_cast<std::int32_t>(request)));
  for (; i + 4 <= count; i += 4) {
    const __m128 four = _mm_loadu_ps(from + i);
    _mm_store_ps(reinterpret_cast<float*>(to + i), _mm_unpacklo_ps(four, number));
    _mm_store_ps(reinterpret_cast<float*>(to + i + 2), _mm_unpackhi_ps(four, number));
  }
  for (; i < count; ++i) store_one(i);
}
#else
// The data of a line of words to `to`; false where not all of them belong to `request` yet.
inline bool load_line(const ExchangeWord* from, std::uint32_t request, std::byte* to) {
  for (int k = 0; k < kLineWords; ++k) {
    const ExchangeWord word = load_word(from[k]);
    if (request_of(word) != request) return false;
    const std::uint32_t data = data_of(word);
    std::memcpy(to + 4 * k, &data, sizeof data);
  }
  return true;
}

// Words of floats.
inline void store_floats(ExchangeWord* to, const float* from, std::int64_t count, std::uint32_t request) {
  for (std::int64_t i = 0; i < count; ++i) store_word(to[i], exchange_word(float_bits(from[i]), request));
}
#endif

}  // namespace genai
