// The host operations with AVX2; see math_scalar.cpp for what each does and math_vector.h for how it is built here.
#if defined(__x86_64__)
#include "engine/host/math_avx2.h"

#include "engine/host/math_vector.h"

namespace genai {
namespace {

// The largest bits of |x| over a block, as integers.
std::uint32_t largest_bits(const __m256 (&x)[4]) {
  __m256i largest = _mm256_castps_si256(Avx2::magnitude(x[0]));
  for (int k = 1; k < 4; ++k) largest = _mm256_max_epu32(largest, _mm256_castps_si256(Avx2::magnitude(x[k])));
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

// 16 rounded activations as bytes, in order.
__m128i rounded_bytes(__m256 first, __m256 second, float inverse) {
  const __m256 magic = _mm256_set1_ps(kRoundMagic);
  const __m256i magic_bits = _mm256_set1_epi32(static_cast<int>(kRoundMagicBits));
  const auto rounded = [&](__m256 x) {
    const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(inverse)), magic);
    return _mm256_sub_epi32(_mm256_castps_si256(shifted), magic_bits);
  };
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded(first), rounded(second)), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// The sum of 16 signed bytes.
std::int32_t sum_bytes(__m128i q) {
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), q);
  __m128i four = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

void quantize_block(const __m256 (&x)[4], ActivationTile& tile, int j) {
  const std::uint32_t bits = largest_bits(x);
  float scale;
  if (bits >= 0x7f800000u)
    scale = __builtin_nanf("");
  else if (bits < 0x0d800000u)
    scale = 0.0f;
  else
    scale = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits)))) / 127.0f;
  const bool empty = !(scale > 0.0f);
  std::int32_t total = 0;
  for (int h = 0; h < 2; ++h) {
    const __m128i q = empty ? _mm_setzero_si128() : rounded_bytes(x[2 * h], x[2 * h + 1], 1.0f / scale);
    _mm_store_si128(reinterpret_cast<__m128i*>(tile.q + kBlockWidth * j + 16 * h), q);
    tile.half_sum[h][j] = sum_bytes(q);
    total += tile.half_sum[h][j];
  }
  tile.scale[j] = scale;
  tile.sum[j] = scale * static_cast<float>(total);
}

void quantize_row(const float* x, std::int32_t width, ActivationTile* tiles) {
  const std::int32_t padded = (width + kTileWidth - 1) / kTileWidth * kTileWidth;
  for (std::int32_t begin = 0; begin < padded; begin += kBlockWidth) {
    __m256 block[4];
    for (int k = 0; k < 4; ++k) {
      const std::int32_t at = begin + 8 * k;
      block[k] = at + 8 <= width ? Avx2::load(x + at) : at < width ? Avx2::load_part(x + at, width - at) : Avx2::zero();
    }
    quantize_block(block, tiles[begin / kTileWidth], begin / kBlockWidth % kTileBlocks);
  }
}

void narrow(const float* from, std::uint16_t* to_half, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to_half + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i)
    to_half[i] =
        static_cast<std::uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(from[i]), _MM_FROUND_TO_NEAREST_INT), 0));
}

void widen(const std::uint16_t* from_half, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, Avx2::load_halves(from_half + i));
  for (; i < count; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(from_half[i])));
}

// The low 64 bits of each product with a constant.
template <std::uint64_t kFactor>
__m256i multiply(__m256i x) {
  const __m256i low = _mm256_set1_epi64x(static_cast<long long>(kFactor & 0xffffffffu));
  const __m256i high = _mm256_set1_epi64x(static_cast<long long>(kFactor >> 32));
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

// logit_hash_term of 4 logits, `keys` being index << 32 | bits.
__m256i hash_terms(__m256i keys, __m256i position_term) {
  __m256i z = _mm256_add_epi64(keys, position_term);
  z = multiply<0xBF58476D1CE4E5B9ull>(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)));
  z = multiply<0x94D049BB133111EBull>(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)));
  return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
}

LogitScan scan_logits(const float* row, std::int32_t begin, std::int32_t end, std::int32_t position) {
  const __m256i position_term =
      _mm256_set1_epi64x(static_cast<long long>(static_cast<std::uint32_t>(position) * 0x9E3779B97F4A7C15ull));
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256 best = _mm256_set1_ps(-__builtin_inff());
  __m256i best_index = _mm256_set1_epi32(-1);
  __m256i hash = _mm256_setzero_si256();
  std::int32_t nonfinite = 0;
  for (std::int32_t i = begin; i < end; i += 8) {
    const __m256i inside = Avx2::first_lanes(end - i);
    const __m256 x = _mm256_maskload_ps(row + i, inside);
    const __m256i index = _mm256_add_epi32(_mm256_set1_epi32(i), lanes);
    const __m256i bits = _mm256_castps_si256(x);
    for (int half = 0; half < 2; ++half) {
      const auto wide = [&](__m256i v) {
        return _mm256_cvtepu32_epi64(half == 0 ? _mm256_castsi256_si128(v) : _mm256_extracti128_si256(v, 1));
      };
      const __m256i keys = _mm256_or_si256(_mm256_slli_epi64(wide(index), 32), wide(bits));
      const __m128i half_mask = half == 0 ? _mm256_castsi256_si128(inside) : _mm256_extracti128_si256(inside, 1);
      const __m256i terms = _mm256_and_si256(hash_terms(keys, position_term), _mm256_cvtepi32_epi64(half_mask));
      hash = _mm256_add_epi64(hash, terms);
    }
    const __m256i bad = _mm256_and_si256(inside, _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent));
    nonfinite += __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(bad))));
    const __m256 higher = _mm256_cmp_ps(x, best, _CMP_GT_OQ);
    // A lane that has none yet (index -1, so its sign bit is set) takes any number.
    const __m256 first =
        _mm256_and_ps(_mm256_cmp_ps(x, x, _CMP_ORD_Q), _mm256_castsi256_ps(_mm256_srai_epi32(best_index, 31)));
    const __m256 taken = _mm256_and_ps(_mm256_or_ps(higher, first), _mm256_castsi256_ps(inside));
    best = _mm256_blendv_ps(best, x, taken);
    best_index = _mm256_blendv_epi8(best_index, index, _mm256_castps_si256(taken));
  }
  float values[8];
  std::int32_t indices[8];
  alignas(32) std::uint64_t sums[4];
  _mm256_storeu_ps(values, best);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices), best_index);
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), hash);
  const vector::LaneBest winner = vector::best_lane<Avx2>(values, indices);
  return {winner.value, winner.index, nonfinite, sums[0] + sums[1] + sums[2] + sums[3]};
}

void embed_row(const PackedMatrix& matrix, std::int64_t row, float scale, float* out) {
  kScalarMath.embed_row(matrix, row, scale, out);
}

void matmul(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  switch (job.matrix.dtype) {
    case DType::F32:
      return vector::matmul_float<Avx2, DType::F32>(job, first_strip, strip_count);
    case DType::F16:
      return vector::matmul_float<Avx2, DType::F16>(job, first_strip, strip_count);
    case DType::BF16:
      return vector::matmul_float<Avx2, DType::BF16>(job, first_strip, strip_count);
    default:
      return matmul_quantized_avx2(job, first_strip, strip_count, workspace);
  }
}

}  // namespace

const HostMath kAvx2Math = {
    .instruction_set = InstructionSet::avx2,
    .name = "avx2",
    .rms_norm = vector::rms_norm<Avx2>,
    .rms_norm_add = vector::rms_norm_add<Avx2>,
    .quantize_row = quantize_row,
    .turn_row = nullptr,
    .matmul = matmul,
    .embed_row = embed_row,
    .gate = vector::gate<Avx2>,
    .rotate_head = vector::rotate_head<Avx2>,
    .narrow = narrow,
    .widen = widen,
    .attend_chunk = vector::attend_chunk<Avx2>,
    .merge_chunk = vector::merge_chunk<Avx2>,
    .finish_attention = vector::finish_attention<Avx2>,
    .scan_logits = scan_logits,
};

}  // namespace genai
#endif
