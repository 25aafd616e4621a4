// math_vector.h - the operations of HostMath that look alike in every vector width, as templates over a set of lanes V
// (math_avx2.h, math_avx512.h). Each repeats math_scalar.cpp lane by lane, in the same order of sums.
//
// NOTE [Code for one instruction set]: a translation unit compiled for AVX must not emit an inline function or template
// instance that another unit may emit too, or the linker can pick the AVX version for a processor without AVX. So V is
// always a type of an unnamed namespace, which makes every instance local to its unit; these units call no scalar
// inline function of a shared header and are always compiled with optimisation.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device/kernels.h"
#include "engine/exact_math.h"
#include "engine/host/math.h"

namespace genai::vector {

template <class V>
using Floats = typename V::Floats;

// exact_exp: the polynomial for all lanes, then the ends where they apply.
template <class V>
inline Floats<V> exp(Floats<V> x) {
  const Floats<V> magic = V::set(kRoundMagic);
  const Floats<V> shifted = V::fma(x, V::set(1.44269504f), magic);
  const Floats<V> n = V::sub(shifted, magic);
  Floats<V> r = V::fma(n, V::set(-0.693359375f), x);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  Floats<V> p = V::set(1.9875691500e-4f);
  p = V::fma(p, r, V::set(1.3981999507e-3f));
  p = V::fma(p, r, V::set(8.3334519073e-3f));
  p = V::fma(p, r, V::set(4.1665795894e-2f));
  p = V::fma(p, r, V::set(1.6666665459e-1f));
  p = V::fma(p, r, V::set(5.0000001201e-1f));
  p = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0f));
  const Floats<V> inside = V::mul(p, V::power_of_two(shifted));
  return V::exp_ends(x, inside);
}

template <class V>
inline Floats<V> silu(Floats<V> x) {
  return V::div(x, V::add(V::set(1.0f), exp<V>(V::negate(x))));
}

template <class V>
inline Floats<V> gelu(Floats<V> x) {
  const Floats<V> inner = V::fma(V::mul(V::set(0.044715f), V::mul(x, x)), x, x);
  return V::div(x, V::add(V::set(1.0f), exp<V>(V::mul(V::set(-1.5957691216f), inner))));
}

template <class V>
inline Floats<V> tanh(Floats<V> x) {
  const Floats<V> one = V::set(1.0f);
  const Floats<V> e = exp<V>(V::mul(V::set(-2.0f), V::magnitude(x)));
  return V::or_sign(V::div(V::sub(one, e), V::add(one, e)), x);
}

template <class V>
inline Floats<V> soft_cap(Floats<V> x, float cap) {
  return V::mul(V::set(cap), tanh<V>(V::div(x, V::set(cap))));
}

template <class V>
inline Floats<V> activate(Epilogue activation, Floats<V> x) {
  return activation == Epilogue::gated_gelu ? gelu<V>(x) : silu<V>(x);
}

// 256 partials as registers: element i belongs to lane i % kLanes of register i / kLanes % kCount.
template <class V>
struct Partials256 {
  static constexpr int kCount = 256 / V::kLanes;
  Floats<V> p[kCount];

  inline float tree() {
    for (int stride = kCount / 2; stride >= 1; stride /= 2)
      for (int i = 0; i < stride; ++i) p[i] = V::add(p[i], p[i + stride]);
    return V::tree(p[0]);
  }
};

template <class V>
inline float inverse_rms(const float* x, float epsilon, std::int32_t width) {
  Partials256<V> partials;
  for (int part = 0; part < Partials256<V>::kCount; ++part) {
    Floats<V> p = V::zero();
    std::int32_t i = part * V::kLanes;
    for (; i + V::kLanes <= width; i += 256) {
      const Floats<V> value = V::load(x + i);
      p = V::fma(value, value, p);
    }
    if (i < width) {  // lanes behind the end add a square of 0, which leaves a sum of squares as it is
      const Floats<V> value = V::load_part(x + i, width - i);
      p = V::fma(value, value, p);
    }
    partials.p[part] = p;
  }
  return 1.0f / V::sqrt(partials.tree() / static_cast<float>(width) + epsilon);
}

// Calls whole(i) for each full vector of `count` elements and part(i, rest) for what is left.
template <class V, class Whole, class Part>
inline void for_vectors(std::int64_t count, const Whole& whole, const Part& part) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) whole(i);
  if (i < count) part(i, static_cast<int>(count - i));
}

// out[i] = operation of the elements at i of each input
template <class V, class Operation, class... Inputs>
inline void map(float* out, std::int64_t count, const Operation& operation, const Inputs*... inputs) {
  for_vectors<V>(
      count, [&](std::int64_t i) { V::store(out + i, operation(V::load(inputs + i)...)); },
      [&](std::int64_t i, int rest) { V::store_part(out + i, operation(V::load_part(inputs + i, rest)...), rest); });
}

template <class V>
void rms_norm(const float* x, const float* weight, float epsilon, std::int32_t width, float* y) {
  const Floats<V> inverse = V::set(inverse_rms<V>(x, epsilon, width));
  map<V>(
      y, width, [&](Floats<V> value, Floats<V> w) { return V::mul(V::mul(value, inverse), w); }, x, weight);
}

template <class V>
void rms_norm_add(float* x, const float* y, const float* weight, float epsilon, std::int32_t width) {
  const Floats<V> inverse = V::set(inverse_rms<V>(y, epsilon, width));
  const auto sum = [&](Floats<V> old, Floats<V> value, Floats<V> w) {
    return V::add(old, V::mul(V::mul(value, inverse), w));
  };
  map<V>(x, width, sum, x, y, weight);
}

template <class V>
void gate(Epilogue activation, const float* gate_values, const float* up, float* out, std::int32_t count) {
  const auto product = [&](Floats<V> g, Floats<V> u) { return V::mul(activate<V>(activation, g), u); };
  map<V>(out, count, product, gate_values, up);
}

template <class V>
void merge_chunk(AttentionPart& state, const AttentionPart& chunk, std::int32_t head_dim) {
  const float max = state.max > chunk.max ? state.max : chunk.max;
  const Floats<V> factors = exp<V>(V::two(state.max - max, chunk.max - max));
  const float state_factor = V::first(factors);
  const float chunk_factor = V::second(factors);
  state.max = max;
  state.sum = V::first(V::fma(V::set(chunk.sum), V::set(chunk_factor), V::set(state.sum * state_factor)));
  const auto sum = [&](Floats<V> added, Floats<V> old) {
    return V::fma(added, V::set(chunk_factor), V::mul(old, V::set(state_factor)));
  };
  map<V>(state.out, head_dim, sum, chunk.out, state.out);
}

template <class V>
void finish_attention(AttentionPart& state, std::int32_t head_dim) {
  const Floats<V> inverse = V::set(1.0f / state.sum);
  map<V>(
      state.out, head_dim, [&](Floats<V> value) { return V::mul(value, inverse); }, state.out);
}

template <class V>
void rotate_head(float* head, const float* table, std::int32_t rotated, bool interleaved) {
  const auto turn = [](Floats<V>& a, Floats<V>& b, Floats<V> cosine, Floats<V> sine) {
    const Floats<V> first = V::fma(a, cosine, V::negate(V::mul(b, sine)));
    b = V::fma(a, sine, V::mul(b, cosine));
    a = first;
  };
  const std::int32_t pairs = rotated / 2;
  for_vectors<V>(
      pairs,
      [&](std::int64_t i) {
        Floats<V> cosine, sine, a, b;
        V::load_pairs(table + 2 * i, cosine, sine);
        if (interleaved) {
          V::load_pairs(head + 2 * i, a, b);
          turn(a, b, cosine, sine);
          V::store_pairs(head + 2 * i, a, b);
        } else {
          a = V::load(head + i);
          b = V::load(head + i + pairs);
          turn(a, b, cosine, sine);
          V::store(head + i, a);
          V::store(head + i + pairs, b);
        }
      },
      [&](std::int64_t i, int rest) {
        for (std::int64_t k = i; k < i + rest; ++k) {
          float* first = head + (interleaved ? 2 * k : k);
          float* second = head + (interleaved ? 2 * k + 1 : k + pairs);
          Floats<V> a = V::set(*first);
          Floats<V> b = V::set(*second);
          turn(a, b, V::set(table[2 * k]), V::set(table[2 * k + 1]));
          *first = V::first(a);
          *second = V::first(b);
        }
      });
}

// ---- attention over one chunk ----

// part.out for kColumns vectors of values from element `begin` on, the last one `rest` elements wide.
template <class V, int kColumns>
inline void weigh_values(const ChunkJob& job, const float* weights, std::int32_t begin, int rest, float* out) {
  Floats<V> partials[4][kColumns];
  for (auto& row : partials)
    for (Floats<V>& p : row) p = V::zero();
  const auto load = [&](const float* from, int column) {
    return column + 1 < kColumns || rest == V::kLanes ? V::load(from + column * V::kLanes)
                                                      : V::load_part(from + column * V::kLanes, rest);
  };
  for (std::int32_t base = job.first / 4 * 4; base < job.last; base += 4) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const std::int32_t j = base + r;
      if (j < job.first || j >= job.last) continue;
      const Floats<V> weight = V::set(weights[j]);
      const float* values = job.values + std::int64_t{j} * job.head_dim + begin;
#pragma GCC unroll 4
      for (int column = 0; column < kColumns; ++column)
        partials[r][column] = V::fma(weight, load(values, column), partials[r][column]);
    }
  }
#pragma GCC unroll 4
  for (int column = 0; column < kColumns; ++column) {
    const Floats<V> sum =
        V::add(V::add(partials[0][column], partials[2][column]), V::add(partials[1][column], partials[3][column]));
    float* to = out + begin + column * V::kLanes;
    if (column + 1 < kColumns || rest == V::kLanes)
      V::store(to, sum);
    else
      V::store_part(to, sum, rest);
  }
}

template <class V>
void attend_chunk(const ChunkJob& job, AttentionPart& part) {
  constexpr int kLanes = V::kLanes;
  constexpr int kVectors = kChunkPositions / kLanes;
  alignas(64) float weights[kChunkPositions];
  Floats<V> scores[kVectors];
  Floats<V> largest = V::set(-__builtin_inff());
  for (int v = 0; v < kVectors; ++v) {
    scores[v] = V::zero();
    if ((v + 1) * kLanes <= job.first || v * kLanes >= job.last) continue;
    Floats<V> score = V::mul(V::set(job.scale), V::dots8(job.query, job.keys + v * kLanes * 8, job.head_dim));
    if (job.soft_cap != 0.0f) score = soft_cap<V>(score, job.soft_cap);
    scores[v] = score;
    const Floats<V> visible = V::keep_range(score, job.first - v * kLanes, job.last - v * kLanes, -__builtin_inff());
    largest = V::max(visible, largest);  // the second operand where the first is NaN
  }
  part.max = V::largest(largest);
  for (int v = 0; v < kVectors; ++v) {
    const Floats<V> e = exp<V>(V::sub(scores[v], V::set(part.max)));
    scores[v] = V::keep_range(e, job.first - v * kLanes, job.last - v * kLanes, 0.0f);
    V::store(weights + v * kLanes, scores[v]);
  }
  constexpr int kColumns = V::kValueColumns;
  std::int32_t i = 0;
  for (; i + kColumns * kLanes <= job.head_dim; i += kColumns * kLanes)
    weigh_values<V, kColumns>(job, weights, i, kLanes, part.out);
  for (; i < job.head_dim; i += kLanes)
    weigh_values<V, 1>(job, weights, i, job.head_dim - i < kLanes ? job.head_dim - i : kLanes, part.out);
  for (int stride = kVectors / 2; stride >= 1; stride /= 2)
    for (int v = 0; v < stride; ++v) scores[v] = V::add(scores[v], scores[v + stride]);
  part.sum = V::tree(scores[0]);
}

// ---- float weights ----

// Elements of one row in one tile, as float lanes.
template <class V, DType kDType>
inline Floats<V> load_weights(const std::byte* row, int element) {
  if constexpr (kDType == DType::F32)
    return V::load(reinterpret_cast<const float*>(row) + element);
  else if constexpr (kDType == DType::F16)
    return V::load_halves(reinterpret_cast<const std::uint16_t*>(row) + element);
  else
    return V::load_bfloats(reinterpret_cast<const std::uint16_t*>(row) + element);
}

template <class V, DType kDType>
inline float float_dot(const std::byte* strip, int g, const float* x, std::int64_t tile_count) {
  constexpr int kElementBytes = kDType == DType::F32 ? 4 : 2;
  constexpr int kTileBytes = kElementBytes * kStripRows * kTileWidth;
  constexpr int kTileVectors = kTileWidth / V::kLanes;
  Partials256<V> partials;
  for (Floats<V>& p : partials.p) p = V::zero();
  const std::byte* row = strip + g * kTileWidth * kElementBytes;
  for (std::int64_t t = 0; t < tile_count; t += 2)
    for (int parity = 0; parity < 2; ++parity) {
      if (t + parity >= tile_count) break;
      const std::byte* tile = row + (t + parity) * kTileBytes;
      const float* input = x + (t + parity) * kTileWidth;
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) {
        Floats<V>& p = partials.p[parity * kTileVectors + v];
        p = V::fma(load_weights<V, kDType>(tile, v * V::kLanes), V::load(input + v * V::kLanes), p);
      }
    }
  return partials.tree();
}

// ---- epilogue ----

// Finishes `count` (at most kLanes) neighbouring rows of weights for activation row m; not for gated epilogues.
template <class V>
inline void finish_row(const MatmulJob& job, std::int32_t m, std::int64_t first_row, int count, Floats<V> y) {
  float* out = job.out + m * job.out_stride + first_row;
  if (job.bias != nullptr) y = V::add(y, V::load_part(job.bias + first_row, count));
  if (job.epilogue == Epilogue::add) y = V::add(V::load_part(out, count), y);
  if (job.soft_cap != 0.0f) y = soft_cap<V>(y, job.soft_cap);
  V::store_part(out, y, count);
}

// The same for gated epilogues and activation rows m and m + 1 together: even lanes hold gates, the lane behind each
// its up, so two rows make one full vector of gates. `has_second`: row m + 1 exists.
template <class V>
inline void finish_gated_rows(const MatmulJob& job, std::int32_t m, bool has_second, std::int64_t first_row, int count,
                              Floats<V> first, Floats<V> second) {
  if (job.bias != nullptr) {
    const Floats<V> bias = V::load_part(job.bias + first_row, count);
    first = V::add(first, bias);
    second = V::add(second, bias);
  }
  Floats<V> gates, ups;
  V::split_pairs(first, second, gates, ups);
  Floats<V> y = V::mul(activate<V>(job.epilogue, gates), ups);
  if (job.soft_cap != 0.0f) y = soft_cap<V>(y, job.soft_cap);
  float* out = job.out + m * job.out_stride + first_row / 2;
  V::store_part(out, y, count / 2);
  if (has_second) V::store_part(out + job.out_stride, V::high_half(y), count / 2);
}

// Finishes `count` rows of weights for activation rows m .. m + m_count - 1, whose products are y[0 .. m_count).
template <class V>
inline void finish_rows(const MatmulJob& job, std::int32_t m, int m_count, std::int64_t first_row, int count,
                        const Floats<V>* y) {
  if (job.epilogue != Epilogue::gated_silu && job.epilogue != Epilogue::gated_gelu) {
    for (int r = 0; r < m_count; ++r) finish_row<V>(job, m + r, first_row, count, y[r]);
    return;
  }
  for (int r = 0; r < m_count; r += 2) {
    const bool has_second = r + 1 < m_count;
    finish_gated_rows<V>(job, m + r, has_second, first_row, count, y[r], has_second ? y[r + 1] : y[r]);
  }
}

template <class V, DType kDType>
void matmul_float(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count) {
  constexpr int kElementBytes = kDType == DType::F32 ? 4 : 2;
  const std::int64_t tile_count = (job.matrix.cols + kTileWidth - 1) / kTileWidth;
  const std::int64_t bytes_each = tile_count * (kElementBytes * kStripRows * kTileWidth);
  for (std::int64_t strip = first_strip; strip < first_strip + strip_count; ++strip) {
    const std::byte* packed = job.matrix.data + strip * bytes_each;
    const std::int64_t first_row = strip * kStripRows;
    const int row_count =
        static_cast<int>(job.matrix.rows - first_row < kStripRows ? job.matrix.rows - first_row : kStripRows);
    for (std::int32_t m = 0; m < job.row_count; ++m) {
      const auto* x = reinterpret_cast<const float*>(job.input + m * job.input_stride_bytes);
      alignas(64) float y[V::kLanes] = {};
      for (int g = 0; g < row_count; ++g) y[g] = float_dot<V, kDType>(packed, g, x, tile_count);
      const Floats<V> product = V::load(y);
      finish_rows<V>(job, m, 1, first_row, row_count, &product);
    }
  }
}

// ---- logits ----

struct LaneBest {
  float value;
  std::int32_t index;
};

// The highest of one candidate a lane, the lowest index among equals; an index of -1 is no candidate.
template <class V>
inline LaneBest best_lane(const float (&values)[V::kLanes], const std::int32_t (&indices)[V::kLanes]) {
  LaneBest best{-__builtin_inff(), -1};
  for (int lane = 0; lane < V::kLanes; ++lane) {
    if (indices[lane] < 0) continue;
    const bool better =
        best.index < 0 || values[lane] > best.value || (values[lane] == best.value && indices[lane] < best.index);
    if (better) best = {values[lane], indices[lane]};
  }
  return best;
}

}  // namespace genai::vector
