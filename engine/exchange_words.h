// exchange_words.h - how a device and the host cores that compute rows for it talk: in words of 8 bytes in host memory,
// each stored and loaded whole. Half of a word is data, half is the number of the request that it belongs to. So words
// need no order among each other, neither fence nor flag: who finds the number that it waits for has the data.
//
// Memory of words is zeros at first; requests are numbered from 1 on, modulo 2^32. A request is the header, then its
// rows of activations one after the other, as the host's own products want them: of each 128 values
//   quantised  32 words of int8, 4 scales, 4 sums (scale * sum of q), 8 sums of q over half a block: [half][block]
//   float      128 floats
// with zeros behind the last value. Results are one float a word.
#pragma once
#include <cstdint>

#include "engine/packed_layout.h"

namespace genai {

using ExchangeWord = std::uint64_t;

constexpr ExchangeWord exchange_word(std::uint32_t data, std::uint32_t request) {
  return static_cast<ExchangeWord>(request) << 32 | data;
}
constexpr std::uint32_t request_of(ExchangeWord word) { return static_cast<std::uint32_t>(word >> 32); }
constexpr std::uint32_t data_of(ExchangeWord word) { return static_cast<std::uint32_t>(word); }

// The header has a line for itself.
inline constexpr std::int64_t kHeaderWords = 8;
inline constexpr std::uint32_t kMaxRequestRows = 255;

// The data of a header: which of the products that the host knows, and for how many rows.
constexpr std::uint32_t request_header(std::int32_t job, std::int32_t row_count) {
  return static_cast<std::uint32_t>(job) << 8 | static_cast<std::uint32_t>(row_count);
}
constexpr std::int32_t job_of(std::uint32_t header) { return static_cast<std::int32_t>(header >> 8); }
constexpr std::int32_t row_count_of(std::uint32_t header) { return static_cast<std::int32_t>(header & 0xff); }

// Words of a tile of 128 quantised values.
inline constexpr int kScaleWord = 32;
inline constexpr int kSumWord = kScaleWord + kTileBlocks;
inline constexpr int kHalfSumWord = kSumWord + kTileBlocks;
inline constexpr int kTileWords = kHalfSumWord + 2 * kTileBlocks;

// Of one row of `cols` activations.
constexpr std::int64_t input_words(std::int64_t cols, bool quantized) {
  return quantized ? padded_width(cols) / kTileWidth * kTileWords : padded_width(cols);
}

}  // namespace genai
