// The host operations with AVX-512; see math_scalar.cpp for what each does and math_vector.h for how it is built here.
#if defined(__x86_64__)
#include "engine/host/math_avx512.h"

#include "engine/host/math_vector.h"

namespace genai {
namespace {

// Quantises one tile of 128 activations.
void quantize_tile(const __m512 (&x)[2 * kTileBlocks], ActivationTile& tile) {
  alignas(16) std::uint32_t largest_bits[kTileBlocks];
  for (int j = 0; j < kTileBlocks; ++j) {
    const __m512i low = _mm512_castps_si512(Avx512::magnitude(x[2 * j]));
    const __m512i high = _mm512_castps_si512(Avx512::magnitude(x[2 * j + 1]));
    largest_bits[j] = _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
  }
  const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(largest_bits));
  const __m128 largest = _mm_castsi128_ps(bits);
  __m128 scale = _mm_div_ps(largest, _mm_set1_ps(127.0f));
  const __mmask8 zero = _mm_cmplt_epu32_mask(bits, _mm_set1_epi32(0x0d800000));
  const __mmask8 nonfinite = _mm_cmpge_epu32_mask(bits, _mm_set1_epi32(0x7f800000));
  scale = _mm_mask_mov_ps(scale, zero, _mm_setzero_ps());
  scale = _mm_mask_mov_ps(scale, nonfinite, _mm_castsi128_ps(_mm_set1_epi32(0x7fc00000)));
  const __mmask8 empty = static_cast<__mmask8>(zero | nonfinite);
  alignas(16) float inverse[kTileBlocks];
  _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(1.0f), scale));

  const __m512 magic = _mm512_set1_ps(kRoundMagic);
  const __m512i magic_bits = _mm512_set1_epi32(static_cast<int>(kRoundMagicBits));
  alignas(64) std::int32_t sums[2 * kTileBlocks][4];  // of four activations each
  for (int half = 0; half < 2 * kTileBlocks; ++half) {
    const int j = half / 2;
    const __m512 rounded = _mm512_add_ps(_mm512_mul_ps(x[half], _mm512_set1_ps(inverse[j])), magic);
    const __mmask16 keep = (empty >> j & 1) != 0 ? 0 : 0xffff;
    const __m128i q = _mm512_maskz_cvtepi32_epi8(keep, _mm512_sub_epi32(_mm512_castps_si512(rounded), magic_bits));
    _mm_store_si128(reinterpret_cast<__m128i*>(tile.q + 16 * half), q);
    _mm_store_si128(reinterpret_cast<__m128i*>(sums[half]), _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), q));
  }
  // Elements (j, h, i) to (h, j, i), then the four sums of each half to one.
  const __m512i low = _mm512_load_si512(sums[0]);
  const __m512i high = _mm512_load_si512(sums[4]);
  const __m512i h0 = _mm512_shuffle_i32x4(low, high, 0x88);
  const __m512i h1 = _mm512_shuffle_i32x4(low, high, 0xdd);
  const __m512i pairs = _mm512_add_epi32(_mm512_unpacklo_epi64(h0, h1), _mm512_unpackhi_epi64(h0, h1));
  // In each 128-bit lane j: two sums of half 0, two of half 1.
  const __m512i wholes = _mm512_add_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
  const __m512i by_half =
      _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0), wholes);
  const __m256i half_sums = _mm512_castsi512_si256(by_half);
  _mm256_store_si256(reinterpret_cast<__m256i*>(tile.half_sum), half_sums);
  const __m128i totals = _mm_add_epi32(_mm256_castsi256_si128(half_sums), _mm256_extracti128_si256(half_sums, 1));
  _mm_store_ps(tile.scale, scale);
  _mm_store_ps(tile.sum, _mm_mul_ps(scale, _mm_cvtepi32_ps(totals)));
}

void quantize_row(const float* x, std::int32_t width, ActivationTile* tiles) {
  for (std::int32_t begin = 0; begin < width; begin += kTileWidth) {
    __m512 tile[2 * kTileBlocks];
    for (int v = 0; v < 2 * kTileBlocks; ++v) {
      const std::int32_t at = begin + v * Avx512::kLanes;
      tile[v] = at < width ? Avx512::load_part(x + at, width - at) : Avx512::zero();
    }
    quantize_tile(tile, tiles[begin / kTileWidth]);
  }
}

void narrow(const float* from, std::uint16_t* to_half, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_half + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  if (i < count) {
    const __mmask16 mask = Avx512::first_lanes(static_cast<int>(count - i));
    _mm256_mask_storeu_epi16(to_half + i, mask,
                             _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, from + i), _MM_FROUND_TO_NEAREST_INT));
  }
}

void widen(const std::uint16_t* from_half, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(to + i, Avx512::load_halves(from_half + i));
  if (i < count) {
    const __mmask16 mask = Avx512::first_lanes(static_cast<int>(count - i));
    _mm512_mask_storeu_ps(to + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from_half + i)));
  }
}

// logit_hash_term of 8 logits, `keys` being index << 32 | bits.
__m512i hash_terms(__m512i keys, __m512i position_term) {
  __m512i z = _mm512_add_epi64(keys, position_term);
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(0xBF58476D1CE4E5B9ull)));
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(0x94D049BB133111EBull)));
  return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

LogitScan scan_logits(const float* row, std::int32_t begin, std::int32_t end, std::int32_t position) {
  const __m512i position_term =
      _mm512_set1_epi64(static_cast<long long>(static_cast<std::uint32_t>(position) * 0x9E3779B97F4A7C15ull));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 best = _mm512_set1_ps(-__builtin_inff());
  __m512i best_index = _mm512_set1_epi32(-1);
  __m512i hash = _mm512_setzero_si512();
  std::int32_t nonfinite = 0;
  for (std::int32_t i = begin; i < end; i += 16) {
    const __mmask16 inside = Avx512::first_lanes(end - i);
    const __m512 x = _mm512_maskz_loadu_ps(inside, row + i);
    const __m512i index = _mm512_add_epi32(_mm512_set1_epi32(i), lanes);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i low = _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(index)), 32),
                                        _mm512_cvtepu32_epi64(_mm512_castsi512_si256(bits)));
    const __m512i high =
        _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(index, 1)), 32),
                        _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(bits, 1)));
    hash = _mm512_mask_add_epi64(hash, static_cast<__mmask8>(inside), hash, hash_terms(low, position_term));
    hash = _mm512_mask_add_epi64(hash, static_cast<__mmask8>(inside >> 8), hash, hash_terms(high, position_term));
    constexpr int kNaNOrInfinity = 0x99;
    nonfinite += __builtin_popcount(_mm512_mask_fpclass_ps_mask(inside, x, kNaNOrInfinity));
    const __mmask16 number = _mm512_mask_cmp_ps_mask(inside, x, x, _CMP_ORD_Q);
    const __mmask16 vacant = _mm512_cmplt_epi32_mask(best_index, _mm512_setzero_si512());
    const __mmask16 taken =
        static_cast<__mmask16>(_mm512_mask_cmp_ps_mask(inside, x, best, _CMP_GT_OQ) | (number & vacant));
    best = _mm512_mask_mov_ps(best, taken, x);
    best_index = _mm512_mask_mov_epi32(best_index, taken, index);
  }
  float values[16];
  std::int32_t indices[16];
  _mm512_storeu_ps(values, best);
  _mm512_storeu_si512(indices, best_index);
  const vector::LaneBest winner = vector::best_lane<Avx512>(values, indices);
  std::uint64_t hashes[8];
  _mm512_storeu_si512(hashes, hash);
  std::uint64_t hash_sum = 0;
  for (const std::uint64_t lane : hashes) hash_sum += lane;
  return {winner.value, winner.index, nonfinite, hash_sum};
}

void embed_row(const PackedMatrix& matrix, std::int64_t row, float scale, float* out) {
  kScalarMath.embed_row(matrix, row, scale, out);
}

template <auto kQuantized>
void matmul(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  switch (job.matrix.dtype) {
    case DType::F32:
      return vector::matmul_float<Avx512, DType::F32>(job, first_strip, strip_count);
    case DType::F16:
      return vector::matmul_float<Avx512, DType::F16>(job, first_strip, strip_count);
    case DType::BF16:
      return vector::matmul_float<Avx512, DType::BF16>(job, first_strip, strip_count);
    default:
      return kQuantized(job, first_strip, strip_count, workspace);
  }
}

template <auto kQuantized>
constexpr HostMath table(InstructionSet instruction_set, const char* name) {
  return {
      .instruction_set = instruction_set,
      .name = name,
      .rms_norm = vector::rms_norm<Avx512>,
      .rms_norm_add = vector::rms_norm_add<Avx512>,
      .quantize_row = quantize_row,
      .turn_row = turn_row_avx512,
      .matmul = matmul<kQuantized>,
      .embed_row = embed_row,
      .gate = vector::gate<Avx512>,
      .rotate_head = vector::rotate_head<Avx512>,
      .narrow = narrow,
      .widen = widen,
      .attend_chunk = vector::attend_chunk<Avx512>,
      .merge_chunk = vector::merge_chunk<Avx512>,
      .finish_attention = vector::finish_attention<Avx512>,
      .scan_logits = scan_logits,
  };
}

}  // namespace

const HostMath kAvx512Math = table<matmul_quantized_avx512>(InstructionSet::avx512, "avx512");
const HostMath kAmxMath = table<matmul_quantized_amx>(InstructionSet::amx, "amx");

}  // namespace genai
#endif
