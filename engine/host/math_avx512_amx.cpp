// Products of many rows with quantised weights on AMX tiles: one tile product is the dots of one block (Q6_K: of half a
// block) of 16 rows of activations with the 16 rows of two strips; the float part follows in AVX-512, a register for
// each row of activations. Few rows go the way of math_avx512_matmul.cpp.
#if defined(__x86_64__)
#include "engine/host/math_avx512_unpack.h"

namespace genai {
namespace {

constexpr int kTileRows = 16;
// Tiles are worth it from here on. At 512 rows they are 1.5 to 1.7 times as fast as VNNI for types without a
// minimum, 1.2 to 1.3 times for those with one; halves of 16 leave half of each tile product unused, so Q6_K is level
// at 64 rows.
constexpr std::int32_t least_rows(DType dtype) { return dtype == DType::Q6_K ? 64 : 32; }

// Numbers of tile registers, which instructions carry as constants.
#define GENAI_TILE_SUMS 0
#define GENAI_TILE_ACTIVATIONS 1
#define GENAI_TILE_WEIGHTS 2

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// The tile registers of this thread while a product runs; `dot_width` weights make one dot.
class TileSession {
 public:
  explicit TileSession(int dot_width) {
    TileConfig config;
    config.row_bytes[GENAI_TILE_SUMS] = 64;
    config.rows[GENAI_TILE_SUMS] = kTileRows;
    config.row_bytes[GENAI_TILE_ACTIVATIONS] = static_cast<std::uint16_t>(dot_width);
    config.rows[GENAI_TILE_ACTIVATIONS] = kTileRows;
    config.row_bytes[GENAI_TILE_WEIGHTS] = 64;
    config.rows[GENAI_TILE_WEIGHTS] = static_cast<std::uint8_t>(dot_width / 4);
    asm volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic admits to reading 8 bytes only
    _tile_loadconfig(&config);
  }
  ~TileSession() { _tile_release(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

// The dots of one block: [half, Q6_K only][row of activations][row of weights].
struct alignas(64) BlockDots {
  std::int32_t sums[2][kTileRows][kTileRows];
};

inline void multiply_tile(const std::int8_t* activations, std::int64_t stride, const __m512i* weights,
                          std::int32_t (&sums)[kTileRows][kTileRows]) {
  asm volatile("" : : : "memory");  // GCC's loads do not say that they read memory
  _tile_zero(GENAI_TILE_SUMS);
  _tile_loadd(GENAI_TILE_ACTIVATIONS, activations, stride);
  _tile_loadd(GENAI_TILE_WEIGHTS, weights, 64);
  _tile_dpbssd(GENAI_TILE_SUMS, GENAI_TILE_ACTIVATIONS, GENAI_TILE_WEIGHTS);
  _tile_stored(GENAI_TILE_SUMS, sums, 64);
}

// 16 rows of activations, `stride` bytes apart.
struct RowPanel {
  const std::byte* first;
  std::int64_t stride;

  const std::byte* tile(std::int64_t block) const {
    return first + block / kTileBlocks * static_cast<std::int64_t>(sizeof(ActivationTile));
  }
};

template <DType kDType>
inline void multiply_block(const RowPanel& x, const WideBlock<kDType>& block, std::int64_t b, BlockDots& dots) {
  const auto* q = reinterpret_cast<const std::int8_t*>(x.tile(b)) + b % kTileBlocks * kBlockWidth;
  multiply_tile(q, x.stride, block.n, dots.sums[0]);
  if constexpr (kIsSix<kDType>) multiply_tile(q + 16, x.stride, block.n + 4, dots.sums[1]);
}

// Calls take(row, p), where p is what becomes of before(row) after one block.
template <DType kDType, class Before, class Take>
[[gnu::always_inline]] inline void accumulate_block(const RowPanel& x, const WideBlock<kDType>& block, std::int64_t b,
                                                    const BlockDots& dots, const Before& before, const Take& take) {
  const vector::ActivationBlocks<kTileRows> rows(x.tile(b), static_cast<int>(b % kTileBlocks), x.stride);
  Factors factors{};
  factors.scale = block.scale;
  if constexpr (kHasMinimum<kDType>) factors.minimum = block.minimum[0];
  if constexpr (kHasSubScale<kDType>) factors.sub[0] = block.sub[0];
  if constexpr (kIsSix<kDType>) factors.sub[1] = block.sub[1];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const __m512i low = _mm512_load_si512(dots.sums[0][r]);
    const __m512i high = kIsSix<kDType> ? _mm512_load_si512(dots.sums[1][r]) : low;
    take(r, vector::accumulate_block<Avx512, kDType>(before(r), low, high, factors, _mm512_set1_ps(rows.scale(r)),
                                                     _mm512_set1_ps(rows.sum(r))));
  }
}

// result[r] = the product of row r of the panel with the 16 rows of weights. The tile product of a block is under way
// while the float part of the one before is done.
template <DType kDType>
void multiply_panel(const RowPanel& x, const WideBlock<kDType>* blocks, std::int64_t block_count,
                    __m512 (&result)[kTileRows]) {
  BlockDots dots[2];
  int current = 0;
  multiply_block<kDType>(x, blocks[0], 0, dots[0]);
  if (block_count <= vector::kPartials) {  // each partial has one block at most, so sums stay in registers
    __m512 y[kTileRows];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) y[r] = _mm512_setzero_ps();
    for (std::int64_t b = 0; b < block_count; ++b, current ^= 1) {
      if (b + 1 < block_count) multiply_block<kDType>(x, blocks[b + 1], b + 1, dots[current ^ 1]);
      accumulate_block<kDType>(
          x, blocks[b], b, dots[current], [](int) { return _mm512_setzero_ps(); },
          [&](int r, __m512 p) { y[r] = _mm512_add_ps(y[r], p); });
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) result[r] = y[r];
    return;
  }
  for (std::int64_t part = 0; part < vector::kPartials; ++part) {
    __m512 p[kTileRows];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) p[r] = _mm512_setzero_ps();
    for (std::int64_t b = part; b < block_count; b += vector::kPartials, current ^= 1) {
      const bool last_of_part = b + vector::kPartials >= block_count;
      const std::int64_t next = last_of_part ? part + 1 : b + vector::kPartials;
      if (next < vector::kPartials || !last_of_part) multiply_block<kDType>(x, blocks[next], next, dots[current ^ 1]);
      accumulate_block<kDType>(
          x, blocks[b], b, dots[current], [&](int r) { return p[r]; }, [&](int r, __m512 sum) { p[r] = sum; });
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) result[r] = part == 0 ? p[r] : _mm512_add_ps(result[r], p[r]);
  }
}

struct AmxPath {
  using Lanes = Avx512;
  template <DType kDType>
  using Block = WideBlock<kDType>;
  static constexpr int kStrips = 2;
  template <DType kDType>
  static constexpr std::int32_t kNarrowRows = 0;

  const std::byte* last_rows;  // the last row_count mod 16 rows of activations, and zeros for 16 in all

  template <DType kDType>
  static __m512 narrow(const std::byte* const (&)[kStrips], const ActivationTile*, std::int64_t) {
    return _mm512_setzero_ps();  // never called: there are no narrow rows
  }
  template <DType kDType>
  static void widen_tile(const std::byte* const (&strips)[kStrips], std::int64_t offset, WideBlock<kDType>* blocks) {
    genai::widen_tile<kDType, true>(strips[0] + offset, strips[1] + offset, blocks);
  }
  template <DType kDType>
  void wide(const MatmulJob& job, const vector::WideJob& wide_job, const WideBlock<kDType>* blocks) const {
    for (std::int32_t m = wide_job.begin; m < wide_job.end; m += kTileRows) {
      const int row_count = wide_job.end - m < kTileRows ? wide_job.end - m : kTileRows;
      const RowPanel panel{row_count < kTileRows ? last_rows : job.input + m * job.input_stride_bytes,
                           job.input_stride_bytes};
      __m512 y[kTileRows];
      multiply_panel<kDType>(panel, blocks, wide_job.block_count, y);
      finish(job, m, row_count, wide_job.first_row, wide_job.count, y);
    }
  }
  [[gnu::noinline]] static void finish(const MatmulJob& job, std::int32_t m, int m_count, std::int64_t first_row,
                                       int count, const __m512* y) {
    vector::finish_rows<Avx512>(job, m, m_count, first_row, count, y);
  }
};

}  // namespace

void matmul_quantized_amx(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count,
                          std::byte* workspace) {
  if (job.row_count < least_rows(job.matrix.dtype))
    return matmul_quantized_avx512(job, first_strip, strip_count, workspace);
  // Behind the unpacked weights.
  std::byte* last_rows = workspace + (job.matrix.cols + kTileWidth - 1) / kTileWidth * (32 * kTileWidth);
  const std::int64_t full_rows = job.row_count / kTileRows * kTileRows;
  const std::int64_t last_bytes = (job.row_count - full_rows) * job.input_stride_bytes;
  if (last_bytes > 0) {
    __builtin_memcpy(last_rows, job.input + full_rows * job.input_stride_bytes, static_cast<std::size_t>(last_bytes));
    __builtin_memset(last_rows + last_bytes, 0,
                     static_cast<std::size_t>(kTileRows * job.input_stride_bytes - last_bytes));
  }
  const TileSession session(job.matrix.dtype == DType::Q6_K ? kBlockWidth / 2 : kBlockWidth);
  vector::matmul_quantized(AmxPath{last_rows}, job, first_strip, strip_count, workspace);
}

}  // namespace genai
#endif
