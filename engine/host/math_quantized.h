// math_quantized.h - products with quantised weights, as far as they are the same for every vector width. A path P
// (math_avx2_matmul.cpp, math_avx512_matmul.cpp) has as many rows of weights in its lanes as P::kStrips strips have,
// and two ways to multiply:
//   narrow  for few rows of activations, straight from the tiles: P::narrow gives one row of activations times all
//   lanes wide    the strips are unpacked once into the thread's workspace (P::widen_tile, a P::Block for each block of
//   32), then
//           P::wide_step broadcasts four activations at a time to all lanes, for several rows of activations together
// See NOTE [Code for one instruction set] in math_vector.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/host/math.h"
#include "engine/host/math_vector.h"
#include "engine/packed_layout.h"

namespace genai::vector {

inline constexpr int kPartials = 32;
inline constexpr int kPartialTiles = kPartials / kTileBlocks;  // tile t feeds partials 4 * (t mod 8) and on

template <DType kDType>
inline constexpr bool kIsSix = kDType == DType::Q6_K;
template <DType kDType>
inline constexpr bool kHasFifthBit = tile_layout(kDType).high_bits >= 0 && kDType != DType::Q6_K;
template <DType kDType>
inline constexpr bool kHasSubScale = tile_layout(kDType).sub_scale >= 0;
template <DType kDType>
inline constexpr bool kHasMinimum = tile_layout(kDType).minimum >= 0;

// A single row of activations asks for weights faster than the processor's own prefetcher brings them from memory: 7
// GB/s a core without these, 9.5 to 10.5 with (read peak 11.8), and no loss in cache.
template <class P, DType kDType>
inline void prefetch_tile(const std::byte* tile) {
  constexpr int kCacheLine = 64;
  constexpr std::int64_t kAhead = 8192;
  constexpr int kLines = tile_layout(kDType).tile_bytes / kCacheLine;
#pragma GCC unroll 17
  for (int line = 0; line < kLines; ++line) __builtin_prefetch(tile + kAhead + line * kCacheLine);
}

// One block of some neighbouring rows of activations. All that belongs to block j of a tile lies at fixed distances
// from &tile + 4 * j, so that few registers address it all.
struct ActivationBlocks {
  static constexpr int kScale = offsetof(ActivationTile, scale);
  static constexpr int kSum = offsetof(ActivationTile, sum);
  static constexpr int kHalfSums[2] = {offsetof(ActivationTile, half_sum),
                                       offsetof(ActivationTile, half_sum) + 4 * kTileBlocks};

  const std::byte* low;   // of row 0
  const std::byte* high;  // of row 4
  std::int64_t stride;
  std::int64_t stride_3;

  template <class T>
  [[gnu::always_inline]] T get(int r, int offset) const {
    const int k = r % 4;
    const std::byte* row = (r < 4 ? low : high) + (k == 0 ? 0 : k == 1 ? stride : k == 2 ? 2 * stride : stride_3);
    T value;
    __builtin_memcpy(&value, row + offset, sizeof value);
    return value;
  }
};

// The product of kRows rows of activations from row m on with the rows of weights in `blocks`.
template <class P, DType kDType, int kRows>
void wide_rows(const MatmulJob& job, const typename P::template Block<kDType>* blocks, std::int64_t block_count,
               std::int32_t m, std::int64_t first_row, int count) {
  using V = typename P::Lanes;
  const std::int64_t used = block_count < kPartials ? block_count : kPartials;
  const std::int64_t stride = job.input_stride_bytes;
  Floats<V> y[kRows];
  for (Floats<V>& sum : y) sum = V::zero();
  for (std::int64_t part = 0; part < used; ++part) {
    Floats<V> p[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) p[r] = V::zero();
    const std::byte* x =
        job.input + m * stride + part / kTileBlocks * sizeof(ActivationTile) + 4 * (part % kTileBlocks);
    for (std::int64_t b = part; b < block_count; b += kPartials) {
      P::template wide_step<kDType, kRows>(p, blocks[b], {x, x + 4 * stride, stride, 3 * stride});
      x += kPartialTiles * sizeof(ActivationTile);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) y[r] = part == 0 ? p[r] : V::add(y[r], p[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    // The partials that no block feeds are zeros, and adding one of them is as good as adding all.
    if (used < kPartials) y[r] = V::add(y[r], V::zero());
    P::finish(job, m + r, first_row, count, y[r]);
  }
}

template <class P, DType kDType>
void matmul_quantized(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  // Activations of this size stay in the second-level cache while strips pass by.
  constexpr std::int64_t kResidentBytes = std::int64_t{1} << 20;
  constexpr int kWideRows = P::kWideRows;
  constexpr std::int64_t kLeastRows = 6 * 8;  // below this, unpacking the weights again for each turn costs too much
  using Block = typename P::template Block<kDType>;
  static_assert(sizeof(Block) <= 32 * kBlockWidth, "matmul_workspace_bytes is too small");
  const std::int64_t tile_count = (job.matrix.cols + kTileWidth - 1) / kTileWidth;
  const std::int64_t bytes_each = tile_count * tile_layout(kDType).tile_bytes;
  auto* blocks = reinterpret_cast<Block*>(workspace);
  const bool narrow = job.row_count <= P::template kNarrowRows<kDType>;
  const std::int64_t fitting = kResidentBytes / job.input_stride_bytes / kWideRows * kWideRows;
  const std::int64_t rows_at_once = fitting < kLeastRows ? kLeastRows : fitting;
  for (std::int64_t begin = 0; begin < job.row_count; begin += rows_at_once) {
    const std::int32_t end =
        static_cast<std::int32_t>(begin + rows_at_once < job.row_count ? begin + rows_at_once : job.row_count);
    for (std::int64_t i = 0; i < strip_count; i += P::kStrips) {
      const std::byte* strips[P::kStrips];  // a strip that is not there is the last one again
      for (int k = 0; k < P::kStrips; ++k)
        strips[k] = job.matrix.data + (first_strip + (i + k < strip_count ? i + k : strip_count - 1)) * bytes_each;
      const std::int64_t first_row = (first_strip + i) * kStripRows;
      const std::int64_t strip_end = first_strip + (i + P::kStrips < strip_count ? i + P::kStrips : strip_count);
      const std::int64_t row_end = strip_end * kStripRows < job.matrix.rows ? strip_end * kStripRows : job.matrix.rows;
      const int count = static_cast<int>(row_end - first_row);
      std::int32_t m = static_cast<std::int32_t>(begin);
      if (narrow) {
        for (; m < end; ++m) {
          const auto* tiles = reinterpret_cast<const ActivationTile*>(job.input + m * job.input_stride_bytes);
          P::finish(job, m, first_row, count, P::template narrow<kDType>(strips, tiles, tile_count));
        }
        continue;
      }
      for (std::int64_t t = 0; t < tile_count; ++t)
        P::template widen_tile<kDType>(strips, t * tile_layout(kDType).tile_bytes, blocks + t * kTileBlocks);
      const std::int64_t block_count = tile_count * kTileBlocks;
      for (; m + kWideRows <= end; m += kWideRows)
        wide_rows<P, kDType, kWideRows>(job, blocks, block_count, m, first_row, count);
      if constexpr (kWideRows > 4)
        if (((end - m) & 4) != 0) wide_rows<P, kDType, 4>(job, blocks, block_count, m, first_row, count), m += 4;
      if (((end - m) & 2) != 0) wide_rows<P, kDType, 2>(job, blocks, block_count, m, first_row, count), m += 2;
      if (((end - m) & 1) != 0) wide_rows<P, kDType, 1>(job, blocks, block_count, m, first_row, count);
    }
  }
}

// REQUIRES: a quantised type.
template <class P>
void matmul_quantized(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  switch (job.matrix.dtype) {
    case DType::Q4_0:
      return matmul_quantized<P, DType::Q4_0>(job, first_strip, strip_count, workspace);
    case DType::Q4_1:
      return matmul_quantized<P, DType::Q4_1>(job, first_strip, strip_count, workspace);
    case DType::Q5_0:
      return matmul_quantized<P, DType::Q5_0>(job, first_strip, strip_count, workspace);
    case DType::Q5_1:
      return matmul_quantized<P, DType::Q5_1>(job, first_strip, strip_count, workspace);
    case DType::Q8_0:
      return matmul_quantized<P, DType::Q8_0>(job, first_strip, strip_count, workspace);
    case DType::Q4_K:
      return matmul_quantized<P, DType::Q4_K>(job, first_strip, strip_count, workspace);
    case DType::Q5_K:
      return matmul_quantized<P, DType::Q5_K>(job, first_strip, strip_count, workspace);
    case DType::Q6_K:
      return matmul_quantized<P, DType::Q6_K>(job, first_strip, strip_count, workspace);
    default:
      return;  // float types have their own way
  }
}

}  // namespace genai::vector
