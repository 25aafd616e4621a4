// Rotation, the cache and attention on the scalar host, against float64 loops over positions.
#include <cmath>
#include <limits>

#include "engine/host/math.h"
#include "tests/catch.h"
#include "tests/host_path_device.h"
#include "tests/kernel_cases.h"

using namespace genai;
using namespace genai::test;

namespace {

constexpr double kRounding = 1.0 / (1 << 24);

HostPathDevice& scalar_device() {
  static HostPathDevice device(kScalarMath, 1);
  return device;
}

std::vector<double> turned(const float* head, const std::vector<float>* norm, const RotateCase& shape,
                           const RotateData& data, std::int32_t position) {
  const std::int32_t head_dim = shape.cache.head_dim;
  std::vector<double> x(head, head + head_dim);
  if (norm != nullptr) {
    double sum = 0.0;
    for (const double value : x) sum += value * value;
    for (std::int32_t i = 0; i < head_dim; ++i)
      x[i] = x[i] / std::sqrt(sum / head_dim + double{data.norm_epsilon}) * (*norm)[i];
  }
  std::vector<double> y = x;
  for (std::int32_t pair = 0; pair < shape.rotated / 2; ++pair) {
    const double cosine = data.table[std::int64_t{position} * shape.rotated + 2 * pair];
    const double sine = data.table[std::int64_t{position} * shape.rotated + 2 * pair + 1];
    const std::int32_t a = shape.interleaved ? 2 * pair : pair;
    const std::int32_t b = shape.interleaved ? 2 * pair + 1 : pair + shape.rotated / 2;
    y[a] = x[a] * cosine - x[b] * sine;
    y[b] = x[a] * sine + x[b] * cosine;
  }
  return y;
}

double largest_of(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

std::vector<RotateCase> rotate_cases() {
  std::vector<RotateCase> cases;
  std::uint64_t seed = 1;
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t head_dim : {8, 40, 64, 256})
      for (const std::int32_t rotated : {head_dim, head_dim / 2, 0})
        for (const bool interleaved : {false, true})
          for (const bool norms : {false, true}) {
            RotateCase shape;
            shape.cache = {.type = type, .kv_heads = 2, .head_dim = head_dim, .sequences = 2};
            shape.heads = 6;
            shape.rotated = rotated;
            shape.interleaved = interleaved;
            shape.norms = norms;
            shape.seed = seed++;
            shape.rows = {{0, 0, 0, 0}, {0, 63, 1, 0}, {0, 64, 0, 0}, {0, 200, 1, 0}, {0, 255, 0, 0}};
            cases.push_back(shape);
          }
  return cases;
}

}  // namespace

TEST_CASE("rotate turns q in place and puts k and v where the cache layout says, and nowhere else") {
  for (const RotateCase& shape : rotate_cases()) {
    const RotateData data = rotate_data(shape);
    const RotateResult result = run_rotate(scalar_device(), shape, data);
    const CacheShapeCase& cache = shape.cache;
    std::vector<bool> written(result.cache.size(), false);
    const double cache_rounding = cache.type == CacheType::f16 ? 1.0 / (1 << 11) : kRounding;
    std::int64_t wrong = 0;
    for (std::size_t m = 0; m < shape.rows.size(); ++m) {
      const StepRow& row = shape.rows[m];
      for (std::int32_t head = 0; head < shape.heads; ++head) {
        const std::int64_t begin = static_cast<std::int64_t>(m * shape.heads + head) * cache.head_dim;
        const auto expected =
            turned(data.q.data() + begin, shape.norms ? &data.q_norm : nullptr, shape, data, row.position);
        const double error = 16.0 * kRounding * largest_of(expected);
        for (std::int32_t i = 0; i < cache.head_dim; ++i)
          wrong += !(std::fabs(result.q[begin + i] - expected[i]) <= error);
      }
      for (std::int32_t head = 0; head < cache.kv_heads; ++head) {
        const std::int64_t begin = static_cast<std::int64_t>(m * cache.kv_heads + head) * cache.head_dim;
        const auto expected =
            turned(data.k.data() + begin, shape.norms ? &data.k_norm : nullptr, shape, data, row.position);
        const double error = 16.0 * kRounding * largest_of(expected);
        for (std::int32_t i = 0; i < cache.head_dim; ++i) {
          const std::int64_t key_at = cache.key_offset(row.sequence, row.position, head, i);
          const std::int64_t value_at = cache.value_offset(row.sequence, row.position, head, i);
          const float key = cache_element(result.cache, cache, key_at);
          const float value = cache_element(result.cache, cache, value_at);
          wrong += !(std::fabs(key - expected[i]) <= error + cache_rounding * std::fabs(expected[i]));
          wrong += !(std::fabs(value - data.v[begin + i]) <= cache_rounding * std::fabs(data.v[begin + i]));
          for (std::int64_t byte = 0; byte < cache.element_bytes(); ++byte)
            written[key_at + byte] = written[value_at + byte] = true;
        }
      }
    }
    for (std::size_t i = 0; i < written.size(); ++i) wrong += !written[i] && result.cache[i] != std::byte{0xcb};
    INFO("seed " << shape.seed);
    CHECK(wrong == 0);
  }
}

TEST_CASE("one, two and three threads rotate to equal bits") {
  for (const RotateCase& shape : rotate_cases()) {
    const RotateData data = rotate_data(shape);
    const RotateResult expected = run_rotate(scalar_device(), shape, data);
    for (const int threads : {2, 3}) {
      HostPathDevice device(kScalarMath, threads);
      const RotateResult result = run_rotate(device, shape, data);
      CHECK(first_difference(result.q, expected.q) == -1);
      CHECK(result.cache == expected.cache);
    }
  }
}

TEST_CASE("attention is within its bound of float64 softmax at chunk edges, with windows, caps and shared heads") {
  for (const AttentionCase& shape : attention_cases()) {
    const AttentionData data = attention_data(shape);
    const std::vector<float> results = run_attention(scalar_device(), shape, data);
    const CacheShapeCase& cache = shape.cache;
    std::int64_t wrong = 0;
    for (std::size_t m = 0; m < shape.rows.size(); ++m) {
      const StepRow& row = shape.rows[m];
      const std::int32_t first = shape.window > 0 ? std::max(0, row.position - shape.window + 1) : 0;
      for (std::int32_t head = 0; head < shape.heads; ++head) {
        const std::int32_t kv_head = head / (shape.heads / cache.kv_heads);
        const std::int64_t begin = static_cast<std::int64_t>(m * shape.heads + head) * cache.head_dim;
        std::vector<double> scores;
        double largest = -1e300;
        double largest_dot = 0.0;
        for (std::int32_t position = first; position <= row.position; ++position) {
          double dot = 0.0, magnitude = 0.0;
          for (std::int32_t i = 0; i < cache.head_dim; ++i) {
            const double k = cache_element(data.cache, cache, cache.key_offset(row.sequence, position, kv_head, i));
            dot += data.q[begin + i] * k;
            magnitude += std::fabs(data.q[begin + i] * k);
          }
          largest_dot = std::max(largest_dot, shape.scale * magnitude);
          double score = shape.scale * dot;
          if (shape.soft_cap != 0.0f) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
          scores.push_back(score);
          largest = std::max(largest, score);
        }
        double sum = 0.0;
        for (const double score : scores) sum += std::exp(score - largest);
        for (std::int32_t i = 0; i < cache.head_dim; ++i) {
          double expected = 0.0, magnitude = 0.0;
          for (std::size_t p = 0; p < scores.size(); ++p) {
            const std::int32_t position = first + static_cast<std::int32_t>(p);
            const double v = cache_element(data.cache, cache, cache.value_offset(row.sequence, position, kv_head, i));
            const double share = std::exp(scores[p] - largest) / sum;
            expected += share * v;
            magnitude += share * std::fabs(v);
          }
          // A score off by a few roundings of its terms moves every share by as much, twice (numerator and sum).
          const double error = (8.0 * largest_dot + 64.0 + 8.0 * shape.soft_cap) * kRounding * 2.0 * magnitude;
          wrong += !(std::fabs(results[begin + i] - expected) <= error);
        }
      }
    }
    INFO("seed " << shape.seed);
    CHECK(wrong == 0);
  }
}

// (m, l, o) of engine/README.md, "Attention".
struct Merged {
  float max;
  float sum;
  std::vector<float> out;

  void add(const Merged& next) {
    const float now = std::max(max, next.max);
    const float a = exact_exp(max - now);
    const float b = exact_exp(next.max - now);
    max = now;
    sum = exact_fma(next.sum, b, sum * a);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = exact_fma(next.out[i], b, out[i] * a);
  }
};

// What one chunk gives a head of a case's first row, which sees positions from `first` on.
Merged attend_chunk(const AttentionCase& shape, const AttentionData& data, std::int32_t first, std::int32_t head,
                    std::int32_t chunk) {
  const CacheShapeCase& cache = shape.cache;
  const std::int32_t head_dim = cache.head_dim;
  std::vector<float> keys(static_cast<std::size_t>(kChunkPositions) * head_dim);
  std::vector<float> values = keys;
  ChunkJob job{};
  job.query = data.q.data() + std::int64_t{head} * head_dim;
  job.keys = keys.data();
  job.values = values.data();
  job.first = std::max(0, first - chunk * kChunkPositions);
  job.last = std::min(kChunkPositions, shape.rows[0].position + 1 - chunk * kChunkPositions);
  job.head_dim = head_dim;
  job.scale = shape.scale;
  job.soft_cap = shape.soft_cap;
  const std::int32_t kv_head = head / (shape.heads / cache.kv_heads);
  for (std::int32_t j = job.first; j < job.last; ++j)
    for (std::int32_t i = 0; i < head_dim; ++i) {
      const std::int32_t position = chunk * kChunkPositions + j;
      keys[(std::int64_t{i} / 8 * kChunkPositions + j) * 8 + i % 8] =
          cache_element(data.cache, cache, cache.key_offset(0, position, kv_head, i));
      values[std::int64_t{j} * head_dim + i] =
          cache_element(data.cache, cache, cache.value_offset(0, position, kv_head, i));
    }
  Merged part{0.0f, 0.0f, std::vector<float>(static_cast<std::size_t>(head_dim))};
  AttentionPart result{0.0f, 0.0f, part.out.data()};
  kScalarMath.attend_chunk(job, result);
  part.max = result.max;
  part.sum = result.sum;
  return part;
}

TEST_CASE("attention merges chunks in ascending order, bit for bit") {
  for (const AttentionCase& shape : attention_cases()) {
    if (shape.rows.size() != 1 || shape.cache.type != CacheType::f32) continue;
    const AttentionData data = attention_data(shape);
    const std::int32_t own = shape.rows[0].position;
    const std::int32_t first = shape.window > 0 ? std::max(0, own - shape.window + 1) : 0;
    std::vector<float> expected;
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      Merged all{-std::numeric_limits<float>::infinity(), 0.0f,
                 std::vector<float>(static_cast<std::size_t>(shape.cache.head_dim))};
      for (std::int32_t chunk = first / kChunkPositions; chunk <= own / kChunkPositions; ++chunk)
        all.add(attend_chunk(shape, data, first, head, chunk));
      for (const float value : all.out) expected.push_back(value * (1.0f / all.sum));
    }
    INFO("seed " << shape.seed);
    CHECK(first_difference(run_attention(scalar_device(), shape, data), expected) == -1);
  }
}

TEST_CASE("rows of an attention pass equal passes of one row, bit for bit") {
  for (const AttentionCase& shape : attention_cases()) {
    if (shape.rows.size() == 1 || shape.seed % 3 == 0) continue;
    const AttentionData data = attention_data(shape);
    const std::vector<float> together = run_attention(scalar_device(), shape, data);
    const std::int64_t width = std::int64_t{shape.heads} * shape.cache.head_dim;
    for (std::size_t m = 0; m < shape.rows.size(); ++m) {
      AttentionCase one = shape;
      one.rows = {shape.rows[m]};
      const auto row_of = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + static_cast<std::int64_t>(m) * width,
                                  all.begin() + static_cast<std::int64_t>(m + 1) * width);
      };
      CHECK(first_difference(run_attention(scalar_device(), one, {row_of(data.q), data.cache}), row_of(together)) ==
            -1);
    }
  }
}

TEST_CASE("positions behind the row's own or before its window have no influence, even if they are NaN") {
  for (const std::int32_t window : {0, 8, 64}) {
    AttentionCase shape;
    shape.cache = {.kv_heads = 1, .head_dim = 16};
    shape.heads = 2;
    shape.window = window;
    shape.rows = {{0, 70, 0, 0}};
    AttentionData data = attention_data(shape);  // NaN behind position 70
    const std::vector<float> clean = run_attention(scalar_device(), shape, data);
    for (const float x : clean) CHECK(std::isfinite(x));
    const float nan = std::nanf("");
    if (window > 0) {
      for (std::int32_t position = 0; position <= 70 - window; ++position)
        for (std::int32_t i = 0; i < 16; ++i) {
          put_cache_element(data.cache, shape.cache, shape.cache.key_offset(0, position, 0, i), nan);
          put_cache_element(data.cache, shape.cache, shape.cache.value_offset(0, position, 0, i), nan);
        }
      CHECK(first_difference(run_attention(scalar_device(), shape, data), clean) == -1);
    }
    put_cache_element(data.cache, shape.cache, shape.cache.key_offset(0, 68, 0, 3), nan);
    if (window != 1)
      for (const float x : run_attention(scalar_device(), shape, data)) CHECK(std::isnan(x));
  }
}
