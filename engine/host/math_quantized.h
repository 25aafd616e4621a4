// math_quantized.h - products with quantised weights, as far as they are the same for every vector width. A path P
// (math_avx2_matmul.cpp, math_avx512_matmul.cpp) has as many rows of weights in its lanes as P::kStrips strips have,
// and two ways to multiply:
//   narrow  for few rows of activations, straight from the tiles: P::narrow gives one row of activations times all
//   lanes wide    the strips are unpacked once into the thread's workspace (P::widen_tile, a P::Block for each block of
//   32), then
//           P::wide multiplies them with many rows; broadcast_wide below does so by broadcasting four activations at a
//           time to all lanes (P::wide_step)
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

// What multiplies and follows the integer dots of a block in each lane. For types with sub-minima `minimum` is dmin *
// t, to be subtracted.
template <class V>
struct BlockFactors {
  typename V::Floats scale;
  typename V::Floats minimum;
  typename V::Floats sub[2];
};

// p after one block a lane: its dot (Q6_K: those of its halves), scale and sum of the activations.
template <class V, DType kDType>
inline typename V::Floats accumulate_block(typename V::Floats p, typename V::Ints dot, typename V::Ints high_dot,
                                           const BlockFactors<V>& factors, typename V::Floats x_scale,
                                           typename V::Floats x_sum) {
  typename V::Floats value = V::from_ints(dot);
  // Integers below 2^24 as floats: these products and sums are exact.
  if constexpr (kHasSubScale<kDType>) value = V::mul(value, factors.sub[0]);
  if constexpr (kIsSix<kDType>) value = V::fma(V::from_ints(high_dot), factors.sub[1], value);
  p = V::fma(value, V::mul(factors.scale, x_scale), p);
  if constexpr (kHasMinimum<kDType> && kHasSubScale<kDType>)
    p = V::fnma(factors.minimum, x_sum, p);
  else if constexpr (kHasMinimum<kDType>)
    p = V::fma(factors.minimum, x_sum, p);
  return p;
}

// How far ahead of their use weights are fetched into the second-level cache. The processor's own prefetcher brings
// them more slowly than a single row of activations asks for them: 7 GB/s a core without this, 10 to 11.5 with (read
// peak of the same machine 11 to 12), and no loss in cache.
inline constexpr int kAheadBytes = 16384;
template <DType kDType>
inline constexpr int kTileLines = tile_layout(kDType).tile_bytes / 64;

template <int kCount>
[[gnu::always_inline]] inline void prefetch_lines(const std::byte* from) {
#pragma GCC unroll 17
  for (int line = 0; line < kCount; ++line) __builtin_prefetch(from + 64 * line, 0, 2);
}

template <class P, DType kDType>
inline void prefetch_tile(const std::byte* tile) {
  prefetch_lines<kTileLines<kDType>>(tile + kAheadBytes);
}

// One block of kRows neighbouring rows of activations, addressed by few registers: of every fourth row its bytes, and
// what else ActivationTile has for it, from &tile.scale[j] on.
template <int kRows>
class ActivationBlocks {
 public:
  [[gnu::always_inline]] ActivationBlocks(const std::byte* tile, int j, std::int64_t stride)
      : stride_(stride), stride_3_(3 * stride) {
#pragma GCC unroll 4
    for (int k = 0; k < kGroups; ++k) {
      bytes_[k] = tile + kBlockWidth * j + 4 * k * stride;
      floats_[k] = tile + offsetof(ActivationTile, scale) + 4 * j + 4 * k * stride;
    }
  }

  // To the same block 8 tiles, that is 32 blocks, further on.
  [[gnu::always_inline]] void advance() {
    for (const std::byte*& from : bytes_) from += kPartialTiles * sizeof(ActivationTile);
    for (const std::byte*& from : floats_) from += kPartialTiles * sizeof(ActivationTile);
  }
  // Activations 4 * vector .. 4 * vector + 3 of row r.
  [[gnu::always_inline]] std::int32_t four(int r, int vector) const { return get<std::int32_t>(bytes_, r, 4 * vector); }
  [[gnu::always_inline]] float scale(int r) const { return get<float>(floats_, r, 0); }
  [[gnu::always_inline]] float sum(int r) const { return get<float>(floats_, r, kStep); }
  [[gnu::always_inline]] std::int32_t half_sum(int r, int h) const {
    return get<std::int32_t>(floats_, r, (2 + h) * kStep);
  }

 private:
  static constexpr int kGroups = (kRows + 3) / 4;
  static constexpr int kStep = 4 * kTileBlocks;
  static_assert(offsetof(ActivationTile, sum) == offsetof(ActivationTile, scale) + kStep);
  static_assert(offsetof(ActivationTile, half_sum) == offsetof(ActivationTile, scale) + 2 * kStep);

  template <class T>
  [[gnu::always_inline]] T get(const std::byte* const (&from)[kGroups], int r, int offset) const {
    const int k = r % 4;
    const std::byte* row = from[r / 4] + (k == 0 ? 0 : k == 1 ? stride_ : k == 2 ? 2 * stride_ : stride_3_);
    T value;
    __builtin_memcpy(&value, row + offset, sizeof value);
    return value;
  }

  const std::byte* bytes_[kGroups];
  const std::byte* floats_[kGroups];
  std::int64_t stride_;
  std::int64_t stride_3_;
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
    ActivationBlocks<kRows> x(job.input + m * stride + part / kTileBlocks * sizeof(ActivationTile),
                              static_cast<int>(part % kTileBlocks), stride);
    for (std::int64_t b = part; b < block_count; b += kPartials, x.advance())
      P::template wide_step<kDType, kRows>(p, blocks[b], x);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) y[r] = part == 0 ? p[r] : V::add(y[r], p[r]);
  }
  // The partials that no block feeds are zeros, and adding one of them is as good as adding all.
  if (used < kPartials)
    for (Floats<V>& sum : y) sum = V::add(sum, V::zero());
  P::finish(job, m, kRows, first_row, count, y);
}

// What P::wide has to do: rows begin .. end - 1 of the activations with the rows of weights in `blocks`.
struct WideJob {
  std::int64_t block_count;
  std::int32_t begin;
  std::int32_t end;
  std::int64_t first_row;
  int count;
};

template <class P, DType kDType>
void broadcast_wide(const MatmulJob& job, const WideJob& wide, const typename P::template Block<kDType>* blocks) {
  const auto rows = [&]<int kRows>(std::int32_t m) {
    wide_rows<P, kDType, kRows>(job, blocks, wide.block_count, m, wide.first_row, wide.count);
    return m + kRows;
  };
  std::int32_t m = wide.begin;
  while (m + P::kWideRows <= wide.end) m = rows.template operator()<P::kWideRows>(m);
  if constexpr (P::kWideRows > 4)
    if (((wide.end - m) & 4) != 0) m = rows.template operator()<4>(m);
  if (((wide.end - m) & 2) != 0) m = rows.template operator()<2>(m);
  if (((wide.end - m) & 1) != 0) m = rows.template operator()<1>(m);
}

template <class P, DType kDType>
void matmul_quantized(const P& path, const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                      std::byte* workspace) {
  // Activations of this size stay in the second-level cache while strips pass by.
  constexpr std::int64_t kResidentBytes = std::int64_t{5} << 18;
  constexpr std::int64_t kRowStep = 16;
  // For fewer, unpacking the weights again each turn costs too much.
  constexpr std::int64_t kLeastRows = 3 * kRowStep;
  using Block = typename P::template Block<kDType>;
  static_assert(sizeof(Block) <= 32 * kBlockWidth, "matmul_workspace_bytes is too small");
  const std::int64_t tile_count = (job.matrix.cols + kTileWidth - 1) / kTileWidth;
  const std::int64_t bytes_each = tile_count * tile_layout(kDType).tile_bytes;
  auto* blocks = reinterpret_cast<Block*>(workspace);
  const bool narrow = job.row_count <= P::template kNarrowRows<kDType>;
  const std::int64_t fitting = kResidentBytes / job.input_stride_bytes / kRowStep * kRowStep;
  const std::int64_t rows_at_once = fitting < kLeastRows ? kLeastRows : fitting;
  for (std::int64_t begin = 0; begin < job.row_count; begin += rows_at_once) {
    const std::int64_t end = begin + rows_at_once < job.row_count ? begin + rows_at_once : job.row_count;
    for (std::int64_t i = 0; i < strip_count; i += P::kStrips) {
      const std::byte* strips[P::kStrips];  // a strip that is not there is the last one again
      for (int k = 0; k < P::kStrips; ++k)
        strips[k] = job.matrix.data + (first_strip + (i + k < strip_count ? i + k : strip_count - 1)) * bytes_each;
      const std::int64_t first_row = (first_strip + i) * kStripRows;
      const std::int64_t strip_end = first_strip + (i + P::kStrips < strip_count ? i + P::kStrips : strip_count);
      const std::int64_t row_end = strip_end * kStripRows < job.matrix.rows ? strip_end * kStripRows : job.matrix.rows;
      const WideJob wide{tile_count * kTileBlocks, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                         first_row, static_cast<int>(row_end - first_row)};
      if (narrow) {
        for (std::int32_t m = wide.begin; m < wide.end; ++m) {
          const auto* tiles = reinterpret_cast<const ActivationTile*>(job.input + m * job.input_stride_bytes);
          const Floats<typename P::Lanes> y = P::template narrow<kDType>(strips, tiles, tile_count);
          P::finish(job, m, 1, first_row, wide.count, &y);
        }
        continue;
      }
      for (std::int64_t t = 0; t < tile_count; ++t)
        P::template widen_tile<kDType>(strips, t * tile_layout(kDType).tile_bytes, blocks + t * kTileBlocks);
      path.template wide<kDType>(job, wide, blocks);
    }
  }
}

// REQUIRES: a quantised type.
template <class P>
void matmul_quantized(const P& path, const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                      std::byte* workspace) {
  switch (job.matrix.dtype) {
    case DType::Q4_0:
      return matmul_quantized<P, DType::Q4_0>(path, job, first_strip, strip_count, workspace);
    case DType::Q4_1:
      return matmul_quantized<P, DType::Q4_1>(path, job, first_strip, strip_count, workspace);
    case DType::Q5_0:
      return matmul_quantized<P, DType::Q5_0>(path, job, first_strip, strip_count, workspace);
    case DType::Q5_1:
      return matmul_quantized<P, DType::Q5_1>(path, job, first_strip, strip_count, workspace);
    case DType::Q8_0:
      return matmul_quantized<P, DType::Q8_0>(path, job, first_strip, strip_count, workspace);
    case DType::Q4_K:
      return matmul_quantized<P, DType::Q4_K>(path, job, first_strip, strip_count, workspace);
    case DType::Q5_K:
      return matmul_quantized<P, DType::Q5_K>(path, job, first_strip, strip_count, workspace);
    case DType::Q6_K:
      return matmul_quantized<P, DType::Q6_K>(path, job, first_strip, strip_count, workspace);
    default:
      return;  // float types have their own way
  }
}

}  // namespace genai::vector
