// The host operations in plain C++, in the order of engine/README.md. Every other implementation, on any device, is
// compared with this one bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/exact_math.h"
#include "engine/host/math.h"

namespace genai {
namespace {

constexpr int kNormPartials = 256;
constexpr int kFloatPartials = 256;
constexpr int kQuantPartials = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// p[0] becomes the sum of p[0 .. kCount).
template <int kCount>
float tree_sum(float (&p)[kCount]) {
  for (int stride = kCount / 2; stride >= 1; stride /= 2)
    for (int i = 0; i < stride; ++i) p[i] = p[i] + p[i + stride];
  return p[0];
}

float inverse_rms(const float* x, float epsilon, std::int32_t width) {
  float partials[kNormPartials] = {};
  for (std::int32_t i = 0; i < width; ++i) {
    float& p = partials[i % kNormPartials];
    p = exact_fma(x[i], x[i], p);
  }
  return 1.0f / std::sqrt(tree_sum(partials) / static_cast<float>(width) + epsilon);
}

void rms_norm(const float* x, const float* weight, float epsilon, std::int32_t width, float* y) {
  const float inverse = inverse_rms(x, epsilon, width);
  for (std::int32_t i = 0; i < width; ++i) y[i] = (x[i] * inverse) * weight[i];
}

void rms_norm_add(float* x, const float* y, const float* weight, float epsilon, std::int32_t width) {
  const float inverse = inverse_rms(y, epsilon, width);
  for (std::int32_t i = 0; i < width; ++i) x[i] = x[i] + (y[i] * inverse) * weight[i];
}

void quantize_block(const float (&x)[kBlockWidth], ActivationTile& tile, int j) {
  std::uint32_t largest_bits = 0;
  for (const float value : x) largest_bits = std::max(largest_bits, float_bits(value) & 0x7fffffffu);
  const float scale = activation_scale(largest_bits);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  std::int32_t half_sum[2] = {};
  for (int i = 0; i < kBlockWidth; ++i) {
    const std::int8_t q = quantize_activation(x[i], inverse);
    tile.q[kBlockWidth * j + i] = q;
    half_sum[i / 16] += q;
  }
  tile.scale[j] = scale;
  tile.sum[j] = scale * static_cast<float>(half_sum[0] + half_sum[1]);
  for (int h = 0; h < 2; ++h) tile.half_sum[h][j] = half_sum[h];
}

void quantize_row(const float* x, std::int32_t width, ActivationTile* tiles) {
  const std::int64_t block_count = padded_width(width) / kBlockWidth;
  for (std::int64_t b = 0; b < block_count; ++b) {
    const std::int64_t begin = b * kBlockWidth;
    float block[kBlockWidth] = {};
    const std::int64_t used = std::clamp<std::int64_t>(width - begin, 0, kBlockWidth);
    std::copy_n(x + std::min<std::int64_t>(begin, width), used, block);
    quantize_block(block, tiles[b / kTileBlocks], static_cast<int>(b % kTileBlocks));
  }
}

std::uint32_t word_of(const std::byte* plane, int index) {
  std::uint32_t word;
  std::memcpy(&word, plane + 4 * index, sizeof word);
  return word;
}

float half_of(const std::byte* plane, int index) {
  std::uint16_t half;
  std::memcpy(&half, plane + 2 * index, sizeof half);
  return half_to_float(half);
}

int unsigned_byte(const std::byte* plane, int index) { return std::to_integer<int>(plane[index]); }
int signed_byte(const std::byte* plane, int index) { return static_cast<std::int8_t>(plane[index]); }

// Everything that one block of 32 weights says. weight = (scale * sub_scale[h]) * n + minimum
struct WideBlock {
  float scale;
  float minimum;
  std::int32_t sub_scale[2];
};

template <DType kDType>
WideBlock block_factors(const std::byte* tile, int g, int j) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  const int block = kTileBlocks * g + j;
  if constexpr (kDType == DType::Q6_K) {
    const std::byte* sub_scales = tile + kLayout.sub_scale;
    return {half_of(tile + kLayout.scale, g),
            0.0f,
            {signed_byte(sub_scales, 2 * block), signed_byte(sub_scales, 2 * block + 1)}};
  } else if constexpr (kLayout.sub_scale >= 0) {
    const int sub_scale = unsigned_byte(tile + kLayout.sub_scale, block);
    const int sub_min = unsigned_byte(tile + kLayout.sub_min, block);
    return {half_of(tile + kLayout.scale, g),
            -(half_of(tile + kLayout.minimum, g) * static_cast<float>(sub_min)),
            {sub_scale, sub_scale}};
  } else {
    const float minimum = kLayout.minimum >= 0 ? half_of(tile + kLayout.minimum, block) : 0.0f;
    return {half_of(tile + kLayout.scale, block), minimum, {1, 1}};
  }
}

// The integers n - zero point of row g of a tile, in order.
template <DType kDType>
void unpack_tile_row(const std::byte* tile, int g, std::int8_t* n) {
  constexpr TileLayout kLayout = tile_layout(kDType);
  for (int h = 0; h < 2; ++h) {
    for (int c = 0; c < 4; ++c) {
      const int lane = 4 * g + c;
      for (int j = 0; j < kTileBlocks; ++j) {
        for (int e = 0; e < 4; ++e) {
          const int within = 4 * j + e;
          int value;
          if constexpr (kDType == DType::Q8_0) {
            value = signed_byte(tile + 512 * h, 16 * lane + within);
          } else {
            value = unsigned_byte(tile, 16 * lane + within) >> (4 * h) & 15;
            if constexpr (kDType == DType::Q6_K) {
              value |= static_cast<int>(word_of(tile + kLayout.high_bits, 2 * lane + h) >> (8 * e + 2 * j) & 3u) << 4;
            } else if constexpr (kLayout.high_bits >= 0) {
              value |= static_cast<int>(word_of(tile + kLayout.high_bits, lane) >> (8 * e + 4 * h + j) & 1u) << 4;
            }
          }
          n[kBlockWidth * j + 16 * h + 4 * c + e] = static_cast<std::int8_t>(value - kLayout.zero_point);
        }
      }
    }
  }
}

// One row of weights, unpacked.
struct WideRow {
  std::int8_t* n;     // [tile][128]
  WideBlock* blocks;  // [tile][4]
};

template <DType kDType>
void unpack_row(const std::byte* strip, std::int64_t tile_count, int g, const WideRow& row) {
  for (std::int64_t t = 0; t < tile_count; ++t) {
    const std::byte* tile = strip + t * tile_layout(kDType).tile_bytes;
    unpack_tile_row<kDType>(tile, g, row.n + t * kTileWidth);
    for (int j = 0; j < kTileBlocks; ++j) row.blocks[t * kTileBlocks + j] = block_factors<kDType>(tile, g, j);
  }
}

// The 8 rows of a strip in a thread's workspace.
struct WideStrip {
  WideStrip(std::byte* workspace, std::int64_t tile_count) {
    const std::int64_t width = tile_count * kTileWidth;
    auto* n = reinterpret_cast<std::int8_t*>(workspace);
    auto* blocks = reinterpret_cast<WideBlock*>(workspace + kStripRows * width);
    for (int g = 0; g < kStripRows; ++g) rows[g] = {n + g * width, blocks + g * (width / kBlockWidth)};
  }
  WideRow rows[kStripRows];
};

std::int32_t half_dot(const std::int8_t* n, const std::int8_t* q) {
  std::int32_t sum = 0;
  for (int i = 0; i < kBlockWidth / 2; ++i) sum += n[i] * q[i];
  return sum;
}

float quantized_dot(const WideRow& row, const ActivationTile* tiles, std::int64_t tile_count, bool minimum) {
  float partials[kQuantPartials] = {};
  for (std::int64_t t = 0; t < tile_count; ++t) {
    const ActivationTile& x = tiles[t];
    for (int j = 0; j < kTileBlocks; ++j) {
      const WideBlock& block = row.blocks[t * kTileBlocks + j];
      const std::int8_t* n = row.n + t * kTileWidth + kBlockWidth * j;
      const std::int8_t* q = x.q + kBlockWidth * j;
      const std::int32_t dot = half_dot(n, q) * block.sub_scale[0] + half_dot(n + 16, q + 16) * block.sub_scale[1];
      float& p = partials[(t * kTileBlocks + j) % kQuantPartials];
      p = exact_fma(static_cast<float>(dot), block.scale * x.scale[j], p);
      if (minimum) p = exact_fma(block.minimum, x.sum[j], p);
    }
  }
  float y = partials[0];
  for (int i = 1; i < kQuantPartials; ++i) y = y + partials[i];
  return y;
}

float widen_element(DType dtype, const std::byte* elements, std::int64_t index) {
  if (dtype == DType::F32) {
    float value;
    std::memcpy(&value, elements + 4 * index, sizeof value);
    return value;
  }
  std::uint16_t value;
  std::memcpy(&value, elements + 2 * index, sizeof value);
  return dtype == DType::F16 ? half_to_float(value) : bfloat_to_float(value);
}

// Element `index` of row g of a strip of a float matrix.
float strip_element(DType dtype, const std::byte* strip, int g, std::int64_t index) {
  const std::int64_t in_tile = index % kTileWidth + std::int64_t{g} * kTileWidth;
  return widen_element(dtype, strip + index / kTileWidth * tile_layout(dtype).tile_bytes, in_tile);
}

float float_dot(DType dtype, const std::byte* strip, int g, const float* x, std::int64_t width) {
  float partials[kFloatPartials] = {};
  for (std::int64_t i = 0; i < width; ++i) {
    float& p = partials[i % kFloatPartials];
    p = exact_fma(strip_element(dtype, strip, g, i), x[i], p);
  }
  return tree_sum(partials);
}

float activate(Epilogue activation, float x) {
  return activation == Epilogue::gated_gelu ? exact_gelu(x) : exact_silu(x);
}

// y holds the products of up to 8 rows of weights with activation row m.
void finish_rows(const MatmulJob& job, std::int32_t m, std::int64_t first_row, int row_count, float (&y)[kStripRows]) {
  if (job.bias != nullptr)
    for (int g = 0; g < row_count; ++g) y[g] = y[g] + job.bias[first_row + g];
  const bool gated = is_gated(job.epilogue);
  float* out = job.out + m * job.out_stride + (gated ? first_row / 2 : first_row);
  const int out_count = gated ? row_count / 2 : row_count;
  for (int g = 0; g < out_count; ++g) {
    float value = gated ? activate(job.epilogue, y[2 * g]) * y[2 * g + 1] : y[g];
    if (job.epilogue == Epilogue::add) value = out[g] + value;
    if (job.soft_cap != 0.0f) value = job.soft_cap * exact_tanh(value / job.soft_cap);
    out[g] = value;
  }
}

// Calls product(m, g) for every row of activations and every row of the strip.
template <class Product>
void finish_strip(const MatmulJob& job, std::int64_t strip, const Product& product) {
  const std::int64_t first_row = strip * kStripRows;
  const int row_count = static_cast<int>(std::min<std::int64_t>(kStripRows, job.matrix.rows - first_row));
  for (std::int32_t m = 0; m < job.row_count; ++m) {
    float y[kStripRows];
    for (int g = 0; g < row_count; ++g) y[g] = product(m, g);
    finish_rows(job, m, first_row, row_count, y);
  }
}

template <DType kDType>
void matmul_quantized(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  const std::int64_t tile_count = padded_width(job.matrix.cols) / kTileWidth;
  const WideStrip wide(workspace, tile_count);
  for (std::int64_t strip = first_strip; strip < first_strip + strip_count; ++strip) {
    const std::byte* packed = job.matrix.data + strip * strip_bytes(kDType, job.matrix.cols);
    for (int g = 0; g < kStripRows; ++g) unpack_row<kDType>(packed, tile_count, g, wide.rows[g]);
    finish_strip(job, strip, [&](std::int32_t m, int g) {
      const auto* tiles = reinterpret_cast<const ActivationTile*>(job.input + m * job.input_stride_bytes);
      return quantized_dot(wide.rows[g], tiles, tile_count, has_minimum(kDType));
    });
  }
}

void matmul_float(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte*) {
  for (std::int64_t strip = first_strip; strip < first_strip + strip_count; ++strip) {
    const std::byte* packed = job.matrix.data + strip * strip_bytes(job.matrix.dtype, job.matrix.cols);
    finish_strip(job, strip, [&](std::int32_t m, int g) {
      const auto* x = reinterpret_cast<const float*>(job.input + m * job.input_stride_bytes);
      return float_dot(job.matrix.dtype, packed, g, x, padded_width(job.matrix.cols));
    });
  }
}

void matmul(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace) {
  switch (job.matrix.dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      return matmul_float(job, first_strip, strip_count, workspace);
    case DType::Q4_0:
      return matmul_quantized<DType::Q4_0>(job, first_strip, strip_count, workspace);
    case DType::Q4_1:
      return matmul_quantized<DType::Q4_1>(job, first_strip, strip_count, workspace);
    case DType::Q5_0:
      return matmul_quantized<DType::Q5_0>(job, first_strip, strip_count, workspace);
    case DType::Q5_1:
      return matmul_quantized<DType::Q5_1>(job, first_strip, strip_count, workspace);
    case DType::Q8_0:
      return matmul_quantized<DType::Q8_0>(job, first_strip, strip_count, workspace);
    case DType::Q4_K:
      return matmul_quantized<DType::Q4_K>(job, first_strip, strip_count, workspace);
    case DType::Q5_K:
      return matmul_quantized<DType::Q5_K>(job, first_strip, strip_count, workspace);
    case DType::Q6_K:
      return matmul_quantized<DType::Q6_K>(job, first_strip, strip_count, workspace);
  }
}

template <DType kDType>
void embed_quantized(const std::byte* strip, int g, std::int32_t cols, float scale, float* out) {
  for (std::int32_t begin = 0; begin < cols; begin += kTileWidth) {
    const std::byte* tile = strip + begin / kTileWidth * tile_layout(kDType).tile_bytes;
    std::int8_t n[kTileWidth];
    unpack_tile_row<kDType>(tile, g, n);
    for (int k = 0; k < std::min(kTileWidth, cols - begin); ++k) {
      const int j = k / kBlockWidth;
      const int i = k % kBlockWidth;
      const WideBlock block = block_factors<kDType>(tile, g, j);
      float w = (block.scale * static_cast<float>(block.sub_scale[i / 16])) * static_cast<float>(n[k]);
      if constexpr (has_minimum(kDType)) w = w + block.minimum;
      out[begin + k] = w * scale;
    }
  }
}

void embed_row(const PackedMatrix& matrix, std::int64_t row, float scale, float* out) {
  const std::byte* strip = matrix.data + row / kStripRows * strip_bytes(matrix.dtype, matrix.cols);
  const int g = static_cast<int>(row % kStripRows);
  switch (matrix.dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      for (std::int32_t i = 0; i < matrix.cols; ++i) out[i] = strip_element(matrix.dtype, strip, g, i) * scale;
      return;
    case DType::Q4_0:
      return embed_quantized<DType::Q4_0>(strip, g, matrix.cols, scale, out);
    case DType::Q4_1:
      return embed_quantized<DType::Q4_1>(strip, g, matrix.cols, scale, out);
    case DType::Q5_0:
      return embed_quantized<DType::Q5_0>(strip, g, matrix.cols, scale, out);
    case DType::Q5_1:
      return embed_quantized<DType::Q5_1>(strip, g, matrix.cols, scale, out);
    case DType::Q8_0:
      return embed_quantized<DType::Q8_0>(strip, g, matrix.cols, scale, out);
    case DType::Q4_K:
      return embed_quantized<DType::Q4_K>(strip, g, matrix.cols, scale, out);
    case DType::Q5_K:
      return embed_quantized<DType::Q5_K>(strip, g, matrix.cols, scale, out);
    case DType::Q6_K:
      return embed_quantized<DType::Q6_K>(strip, g, matrix.cols, scale, out);
  }
}

void gate(Epilogue activation, const float* gate_values, const float* up, float* out, std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) out[i] = activate(activation, gate_values[i]) * up[i];
}

void rotate_head(float* head, const float* table, std::int32_t rotated, bool interleaved) {
  for (std::int32_t i = 0; i < rotated / 2; ++i) {
    float& first = head[interleaved ? 2 * i : i];
    float& second = head[interleaved ? 2 * i + 1 : i + rotated / 2];
    const float a = first;
    const float b = second;
    const float cosine = table[2 * i];
    const float sine = table[2 * i + 1];
    first = exact_fma(a, cosine, -(b * sine));
    second = exact_fma(a, sine, b * cosine);
  }
}

void narrow(const float* from, std::uint16_t* to_half, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to_half[i] = float_to_half(from[i]);
}

void widen(const std::uint16_t* from_half, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = half_to_float(from_half[i]);
}

float attention_score(const ChunkJob& job, int position) {
  float partials[8] = {};
  for (std::int32_t i = 0; i < job.head_dim; ++i) {
    float& p = partials[i % 8];
    p = exact_fma(job.query[i], job.keys[(i / 8 * kChunkPositions + position) * 8 + i % 8], p);
  }
  const float score = job.scale * tree_sum(partials);
  return job.soft_cap == 0.0f ? score : job.soft_cap * exact_tanh(score / job.soft_cap);
}

void attend_chunk(const ChunkJob& job, AttentionPart& part) {
  float scores[kChunkPositions];
  part.max = -kInfinity;
  for (int j = job.first; j < job.last; ++j) {
    scores[j] = attention_score(job, j);
    if (scores[j] > part.max) part.max = scores[j];
  }
  float weights[kChunkPositions] = {};
  for (int j = job.first; j < job.last; ++j) weights[j] = exact_exp(scores[j] - part.max);
  for (std::int32_t i = 0; i < job.head_dim; ++i) {
    float partials[4] = {};
    for (int j = job.first; j < job.last; ++j) {
      float& p = partials[j % 4];
      p = exact_fma(weights[j], job.values[j * job.head_dim + i], p);
    }
    part.out[i] = tree_sum(partials);
  }
  part.sum = tree_sum(weights);
}

void merge_chunk(AttentionPart& state, const AttentionPart& chunk, std::int32_t head_dim) {
  const float max = state.max > chunk.max ? state.max : chunk.max;
  const float state_factor = exact_exp(state.max - max);
  const float chunk_factor = exact_exp(chunk.max - max);
  state.max = max;
  state.sum = exact_fma(chunk.sum, chunk_factor, state.sum * state_factor);
  for (std::int32_t i = 0; i < head_dim; ++i)
    state.out[i] = exact_fma(chunk.out[i], chunk_factor, state.out[i] * state_factor);
}

void finish_attention(AttentionPart& state, std::int32_t head_dim) {
  const float inverse = 1.0f / state.sum;
  for (std::int32_t i = 0; i < head_dim; ++i) state.out[i] = state.out[i] * inverse;
}

LogitScan scan_logits(const float* row, std::int32_t begin, std::int32_t end, std::int32_t position) {
  LogitScan scan{-kInfinity, -1, 0, 0};
  for (std::int32_t i = begin; i < end; ++i) {
    const float logit = row[i];
    const std::uint32_t bits = float_bits(logit);
    scan.hash += logit_hash_term(static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(i), bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) ++scan.nonfinite;
    if (logit > scan.best || (scan.index < 0 && logit == logit)) {
      scan.best = logit;
      scan.index = i;
    }
  }
  return scan;
}

}  // namespace

const HostMath kScalarMath = {
    .instruction_set = InstructionSet::scalar,
    .name = "scalar",
    .rms_norm = rms_norm,
    .rms_norm_add = rms_norm_add,
    .quantize_row = quantize_row,
    .turn_row = nullptr,
    .matmul = matmul,
    .embed_row = embed_row,
    .gate = gate,
    .rotate_head = rotate_head,
    .narrow = narrow,
    .widen = widen,
    .attend_chunk = attend_chunk,
    .merge_chunk = merge_chunk,
    .finish_attention = finish_attention,
    .scan_logits = scan_logits,
};

}  // namespace genai
