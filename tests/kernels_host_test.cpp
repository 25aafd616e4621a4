// The scalar host against float64 loops that read the file's blocks, and the promises of the arithmetic that concern
// one device: rows do not depend on their neighbours, bits do not depend on threads, odd values do no harm.
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/host/math.h"
#include "tests/catch.h"
#include "tests/host_path_device.h"
#include "tests/kernel_cases.h"

using namespace genai;
using namespace genai::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Half an ulp of a float, relative.
constexpr double kRounding = 1.0 / (1 << 24);

HostPathDevice& scalar_device() {
  static HostPathDevice device(kScalarMath, 1);
  return device;
}

// A result that float64 gives, and how far float32 may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

std::vector<double> normalised(const float* x, const std::vector<float>& weight, float epsilon, std::int32_t width) {
  double sum = 0.0;
  for (std::int32_t i = 0; i < width; ++i) sum += double{x[i]} * x[i];
  std::vector<double> y;
  for (std::int32_t i = 0; i < width; ++i) y.push_back(x[i] / std::sqrt(sum / width + epsilon) * weight[i]);
  return y;
}

// The product of one row of weights with one row of activations. The error of a quantised product: each activation is
// off by at most half a step (1/127 of its block's largest, plus a little for a step decided by rounding), and float32
// sums round each of their terms a few times. Of a float product: only the latter.
Bounded product(const FileMatrix& matrix, std::int64_t row, const std::vector<double>& x) {
  std::vector<float> weights(static_cast<std::size_t>(matrix.cols));
  widen_row(matrix, row, weights.data());
  Bounded y;
  double magnitude = 0.0;
  for (std::int64_t begin = 0; begin < matrix.cols; begin += 32) {
    const std::int64_t end = std::min(begin + 32, matrix.cols);
    double largest = 0.0;
    double block_weights = 0.0;
    for (std::int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      block_weights += std::fabs(weights[i]);
      y.value += weights[i] * x[i];
      magnitude += std::fabs(weights[i] * x[i]);
    }
    if (!is_float(matrix.dtype)) {
      y.error += block_weights * largest / 127.0 * 0.5001;
      // What the scale and the minimum contribute cancels inside a weight but is rounded apart.
      magnitude += 64.0 * largest * block_weights / 32.0;
    }
  }
  y.error += 64.0 * kRounding * magnitude;
  return y;
}

double activated(Epilogue epilogue, double x) {
  if (epilogue == Epilogue::gated_silu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Bounds of act(a) * b for act with a slope of at most 1.13.
Bounded gated(Epilogue epilogue, const Bounded& a, const Bounded& b) {
  const double act = activated(epilogue, a.value);
  const double act_error = 1.13 * a.error + 1e-5 * (std::fabs(act) + 1e-3 * std::fabs(a.value));
  return {act * b.value, act_error * std::fabs(b.value) + b.error * (std::fabs(act) + act_error)};
}

Bounded expected_output(const MatmulCase& shape, const MatmulData& data, std::size_t output, std::int32_t m,
                        std::int32_t column) {
  const float* x = data.input.data() + std::int64_t{m} * shape.input_stride();
  const std::vector<double> input = shape.norm ? normalised(x, data.norm_weight, data.norm_epsilon, shape.cols)
                                               : std::vector<double>(x, x + shape.cols);
  const auto one = [&](std::int32_t row) {
    Bounded y = product(data.matrices[output]->matrix, row, input);
    if (shape.bias) y.value += data.biases[output][row];
    return y;
  };
  Bounded y = shape.gated() ? gated(shape.epilogue, one(2 * column), one(2 * column + 1)) : one(column);
  if (shape.epilogue == Epilogue::add)
    y.value += data.before[output][std::int64_t{m} * shape.stride_of(output) + column];
  if (shape.soft_cap != 0.0f) y.value = shape.soft_cap * std::tanh(y.value / shape.soft_cap);
  y.error += 4.0 * kRounding * std::fabs(y.value) + 1e-6 * (shape.soft_cap + 1e-3);
  return y;
}

void check_against_doubles(const MatmulCase& shape) {
  const MatmulData data = matmul_data(shape);
  const auto results = run_matmul(scalar_device(), shape, data);
  std::int64_t wrong = 0;
  for (std::size_t output = 0; output < results.size(); ++output)
    for (std::int32_t m = 0; m < shape.row_count; ++m)
      for (std::int32_t column = 0; column < shape.stride_of(output); ++column) {
        const std::int64_t at = std::int64_t{m} * shape.stride_of(output) + column;
        if (column >= shape.width_of(output)) {  // between rows nothing is written
          wrong += float_bits(results[output][at]) != float_bits(data.before[output][at]);
          continue;
        }
        const Bounded expected = expected_output(shape, data, output, m, column);
        wrong += !(std::fabs(results[output][at] - expected.value) <= expected.error);
      }
  INFO(describe(shape));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("matrix products are within their bound of float64 over the file's blocks") {
  for (const MatmulCase& shape : matmul_cases())
    if (std::int64_t{shape.rows} * shape.cols * shape.row_count < 120000 || shape.seed % 7 == 0)
      check_against_doubles(shape);
}

TEST_CASE("a quantised product is the exact product of the quantised operands but for float32 rounding") {
  // Inputs that are already on a quantised grid: the bound of the product has no half steps in it.
  Random random(3);
  for (const DType dtype : kAllDTypes) {
    MatmulCase shape{.dtypes = {dtype}, .rows = 9, .cols = 768, .row_count = 2, .seed = 99};
    MatmulData data = matmul_data(shape);
    for (std::size_t i = 0; i < data.input.size(); ++i)
      data.input[i] = 0.25f * static_cast<float>(static_cast<int>(random.next() % 255) - 127);
    for (std::int32_t m = 0; m < 2; ++m)
      for (std::int32_t begin = 0; begin < 768; begin += 32) data.input[m * shape.input_stride() + begin] = 0.25f * 127;
    const auto results = run_matmul(scalar_device(), shape, data);
    for (std::int32_t m = 0; m < 2; ++m)
      for (std::int32_t row = 0; row < 9; ++row) {
        std::vector<float> weights(768);
        widen_row(data.matrices[0]->matrix, row, weights.data());
        double sum = 0.0, magnitude = 0.0;
        for (int i = 0; i < 768; ++i) {
          const double term = double{weights[i]} * data.input[m * shape.input_stride() + i];
          sum += term;
          magnitude += std::fabs(term);
        }
        CHECK(std::fabs(results[0][m * shape.stride_of(0) + row] - sum) <= 40.0 * kRounding * magnitude);
      }
  }
}

TEST_CASE("rows of a pass equal passes of one row, bit for bit") {
  for (const MatmulCase& shape : matmul_cases()) {
    if (shape.row_count == 1 || shape.row_count > 40 || shape.rows * shape.cols > 12000 || shape.seed % 2 == 0)
      continue;
    const MatmulData data = matmul_data(shape);
    const auto together = run_matmul(scalar_device(), shape, data);
    for (std::int32_t m = 0; m < shape.row_count; ++m) {
      const auto alone = run_matmul(scalar_device(), shape, data, m, 1);
      for (std::size_t output = 0; output < alone.size(); ++output) {
        const std::int64_t stride = shape.stride_of(output);
        const std::vector<float> row(together[output].begin() + m * stride,
                                     together[output].begin() + (m + 1) * stride);
        INFO(describe(shape) << " row " << m);
        CHECK(first_difference(row, alone[output]) == -1);
      }
    }
  }
}

TEST_CASE("one, two and three threads give equal bits") {
  HostPathDevice two(kScalarMath, 2);
  HostPathDevice three(kScalarMath, 3);
  for (const MatmulCase& shape : matmul_cases()) {
    if (shape.seed % 5 != 0 || shape.rows * shape.cols * shape.row_count > 300000) continue;
    const MatmulData data = matmul_data(shape);
    const auto expected = run_matmul(scalar_device(), shape, data);
    for (HostPathDevice* device : {&two, &three}) {
      const auto results = run_matmul(*device, shape, data);
      INFO(describe(shape));
      for (std::size_t output = 0; output < results.size(); ++output)
        CHECK(first_difference(results[output], expected[output]) == -1);
    }
  }
  for (const AttentionCase& shape : attention_cases()) {
    const AttentionData data = attention_data(shape);
    const std::vector<float> expected = run_attention(scalar_device(), shape, data);
    CHECK(first_difference(run_attention(two, shape, data), expected) == -1);
    CHECK(first_difference(run_attention(three, shape, data), expected) == -1);
  }
}

TEST_CASE("a NaN or an infinity in the input spoils its own row only") {
  for (const DType dtype : kAllDTypes)
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      const MatmulCase shape{.dtypes = {dtype}, .rows = 9, .cols = 256, .row_count = 3, .seed = 5};
      MatmulData data = matmul_data(shape);
      const auto clean = run_matmul(scalar_device(), shape, data);
      data.input[shape.input_stride() + 77] = bad;
      const auto results = run_matmul(scalar_device(), shape, data);
      for (std::int32_t m = 0; m < 3; ++m)
        for (std::int32_t row = 0; row < 9; ++row) {
          const std::int64_t at = std::int64_t{m} * shape.stride_of(0) + row;
          if (m == 1)
            CHECK_FALSE(std::isfinite(results[0][at]));
          else
            CHECK(float_bits(results[0][at]) == float_bits(clean[0][at]));
        }
    }
}

TEST_CASE("activation blocks of zeros, tiny, huge and non-finite values quantise as specified") {
  std::vector<float> x(160, 0.0f);
  x[32] = std::ldexp(1.0f, -101);  // below the threshold: scale 0
  x[64] = std::ldexp(1.0f, -100);
  x[65] = -std::ldexp(1.0f, -101);
  x[96] = std::numeric_limits<float>::max();
  x[97] = -std::numeric_limits<float>::max();
  x[98] = std::ldexp(1.0f, 100);
  x[128] = kInfinity;
  x[129] = 1.0f;
  ActivationTile tiles[2];
  kScalarMath.quantize_row(x.data(), 160, tiles);
  for (int j = 0; j < 2; ++j) {
    CHECK(tiles[0].scale[j] == 0.0f);
    CHECK(tiles[0].sum[j] == 0.0f);
  }
  CHECK(tiles[0].scale[2] == std::ldexp(1.0f, -100) / 127.0f);
  CHECK(tiles[0].q[64] == 127);
  CHECK(tiles[0].q[65] == -64);  // 63.5 ties to even
  CHECK(tiles[0].sum[2] == tiles[0].scale[2] * 63.0f);
  CHECK(tiles[0].q[96] == 127);
  CHECK(tiles[0].q[97] == -127);
  CHECK(tiles[0].q[98] == 0);
  CHECK(tiles[0].half_sum[0][3] == 0);
  CHECK(std::isnan(tiles[1].scale[0]));
  CHECK(std::isnan(tiles[1].sum[0]));
  CHECK(tiles[1].q[0] == 0);
  CHECK(tiles[1].q[1] == 0);
  for (int j = 1; j < 4; ++j) CHECK(tiles[1].scale[j] == 0.0f);  // behind the row's end
  std::fill(x.begin(), x.end(), 1.0f);
  x[40] = -kNaN;
  kScalarMath.quantize_row(x.data(), 160, tiles);
  CHECK(std::isnan(tiles[0].scale[1]));
  CHECK(tiles[0].half_sum[1][0] == 16 * 127);
  CHECK(tiles[0].half_sum[1][1] == 0);
}

TEST_CASE("embedding rows are the file's rows times the scale") {
  Random random(21);
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t cols : widths_of(dtype)) {
      const auto file = random_file_matrix(dtype, 19, cols, random);
      const std::vector<StepRow> rows = {{18, 0, 0, 0}, {0, 1, 0, 0}, {7, 2, 0, 0}, {8, 3, 0, 0}};
      DeviceBuffers buffers(scalar_device());
      const DevicePtr<float> out = buffers.take<float>(4 * cols);
      scalar_device().kernels().embed(buffers.stream(),
                                      {.matrix = {buffers.put(packed({file->matrix, {}})), dtype, 19, cols},
                                       .rows = buffers.put(rows),
                                       .row_count = 4,
                                       .scale = 3.0f,
                                       .out = out});
      std::vector<float> expected;
      for (const StepRow& row : rows) {
        std::vector<float> weights(static_cast<std::size_t>(cols));
        widen_row(file->matrix, row.token, weights.data());
        for (const float w : weights) expected.push_back(w * 3.0f);
      }
      std::vector<float> results = buffers.get(out, 4 * cols);
      for (float& x : results) x = x + 0.0f;  // the sign of a zero weight is not part of the file
      for (float& x : expected) x = x + 0.0f;
      INFO(dtype_info(dtype).name << " " << cols);
      CHECK(first_difference(results, expected) == -1);
      CHECK(buffers.guards_intact());
    }
}

TEST_CASE("a token outside the vocabulary is refused") {
  DeviceBuffers buffers(scalar_device());
  const auto matrix = buffers.put(std::vector<std::byte>(packed_bytes(DType::F32, 8, 128)));
  const auto out = buffers.take<float>(128);
  for (const std::int32_t token : {-1, 8}) {
    const EmbedArgs args{.matrix = {matrix, DType::F32, 8, 128},
                         .rows = buffers.put(std::vector<StepRow>{{token, 0, 0, 0}}),
                         .row_count = 1,
                         .scale = 1.0f,
                         .out = out};
    CHECK_THROWS(scalar_device().kernels().embed(buffers.stream(), args));
  }
}

TEST_CASE("kernels run the operations of the table that they were given") {
  static int products, chunks;
  products = chunks = 0;
  HostMath counting = kScalarMath;
  counting.matmul = [](const MatmulJob& job, std::int64_t first, std::int64_t count, std::byte* workspace) {
    ++products;
    kScalarMath.matmul(job, first, count, workspace);
  };
  counting.attend_chunk = [](const ChunkJob& job, AttentionPart& part) {
    ++chunks;
    kScalarMath.attend_chunk(job, part);
  };
  HostPathDevice device(counting, 1);
  const MatmulCase product{.dtypes = {DType::Q4_0, DType::F16}, .rows = 9, .cols = 64};
  run_matmul(device, product, matmul_data(product));
  CHECK(products == 2);
  AttentionCase attention;
  attention.heads = 2;
  attention.rows = {{0, 70, 0, 0}};
  run_attention(device, attention, attention_data(attention));
  CHECK(chunks == 4);
}

TEST_CASE("products that make no sense are refused before they run") {
  DeviceBuffers buffers(scalar_device());
  MatmulArgs args{};
  args.row_count = 1;
  args.output_count = 1;
  args.outputs[0].matrix = {DevicePtr<const std::byte>(64), DType::Q4_0, 7, 64};
  MatmulArgs bad = args;
  bad.row_count = 0;
  CHECK_THROWS_AS(scalar_device().kernels().matmul(buffers.stream(), bad), Error);
  bad = args;
  bad.output_count = 4;
  CHECK_THROWS_AS(scalar_device().kernels().matmul(buffers.stream(), bad), Error);
  bad = args;
  bad.outputs[0].matrix.cols = 65;
  CHECK_THROWS_AS(scalar_device().kernels().matmul(buffers.stream(), bad), Error);
  bad = args;
  bad.epilogue = Epilogue::gated_silu;
  CHECK_THROWS_AS(scalar_device().kernels().matmul(buffers.stream(), bad), Error);
  bad = args;
  bad.output_count = 2;
  bad.outputs[1].matrix = {DevicePtr<const std::byte>(64), DType::Q4_0, 8, 96};
  CHECK_THROWS_AS(scalar_device().kernels().matmul(buffers.stream(), bad), Error);
}

TEST_CASE("norm_add adds the normalised branch") {
  Random random(31);
  for (const std::int32_t width : {1, 31, 255, 256, 257, 576, 1537}) {
    const std::vector<float> x = random.values(3 * width), y = random.values(3 * width), weight = random.values(width);
    DeviceBuffers buffers(scalar_device());
    const DevicePtr<float> sum = buffers.put(x);
    scalar_device().kernels().norm_add(buffers.stream(), {.x = sum,
                                                          .y = buffers.put(y),
                                                          .weight = buffers.put(weight),
                                                          .epsilon = 1e-6f,
                                                          .row_count = 3,
                                                          .width = width});
    const std::vector<float> results = buffers.get(sum, 3 * width);
    for (std::int32_t m = 0; m < 3; ++m) {
      const std::vector<double> branch = normalised(y.data() + m * width, weight, 1e-6f, width);
      for (std::int32_t i = 0; i < width; ++i) {
        const double expected = x[m * width + i] + branch[i];
        const double magnitude = std::fabs(x[m * width + i]) + std::fabs(branch[i]);
        CHECK(std::fabs(results[m * width + i] - expected) <= 12.0 * kRounding * magnitude);
      }
    }
    CHECK(buffers.guards_intact());
  }
}

TEST_CASE("gate multiplies the activation with the other half") {
  Random random(32);
  for (const Epilogue activation : {Epilogue::gated_silu, Epilogue::gated_gelu})
    for (const std::int32_t width : {1, 15, 1024, 4099}) {
      const std::vector<float> gate = random.values(3 * width), up = random.values(3 * width);
      DeviceBuffers buffers(scalar_device());
      const DevicePtr<float> out = buffers.take<float>(3 * width);
      scalar_device().kernels().gate(buffers.stream(), {.gate = buffers.put(gate),
                                                        .up = buffers.put(up),
                                                        .out = out,
                                                        .activation = activation,
                                                        .row_count = 3,
                                                        .width = width});
      const std::vector<float> results = buffers.get(out, 3 * width);
      for (std::size_t i = 0; i < results.size(); ++i) {
        const Bounded expected = gated(activation, {gate[i], 0.0}, {up[i], 0.0});
        CHECK(std::fabs(results[i] - expected.value) <= expected.error + 4.0 * kRounding * std::fabs(expected.value));
      }
      CHECK(buffers.guards_intact());
    }
}

TEST_CASE("advance_step takes over the token and moves every row by one position") {
  DeviceBuffers buffers(scalar_device());
  const DevicePtr<StepRow> rows = buffers.put(std::vector<StepRow>{{1, 10, 0, 0}, {2, 63, 1, 0}});
  const AdvanceArgs args{.rows = rows, .tokens = buffers.put(std::vector<std::int32_t>{77, 78}), .row_count = 2};
  scalar_device().kernels().advance_step(buffers.stream(), args);
  const std::vector<StepRow> after = buffers.get(rows, 2);
  CHECK(after[0].token == 77);
  CHECK(after[0].position == 11);
  CHECK(after[1].token == 78);
  CHECK(after[1].position == 64);
  CHECK(after[1].sequence == 1);
}

TEST_CASE("argmax takes the highest logit, the lowest index among equals, and never a NaN") {
  HostPathDevice threads(kScalarMath, 3);
  for (HostPathDevice* device : {&scalar_device(), &threads})
    for (const std::int32_t width : {1, 5, 8191, 8192, 40000}) {
      Random random(41);
      std::vector<float> logits = random.values(4 * width);
      const std::int32_t a = width / 3, b = width - 1;
      logits[a] = logits[b] = 1e6f;                                // row 0: a tie
      std::fill_n(logits.begin() + width, width, kNaN);            // row 1: nothing to choose
      std::fill_n(logits.begin() + 2 * width, width, -kInfinity);  // row 2: all equal
      logits[3 * width + a] = kInfinity;                           // row 3: infinity wins, NaN does not
      if (b != a) logits[3 * width + b] = kNaN;
      const std::vector<StepRow> rows = {{0, 3, 0, 0}, {0, 4, 0, 0}, {0, 5, 0, 0}, {0, 6, 0, 0}};
      const ArgmaxResult result = run_argmax(*device, logits, width, rows);
      CHECK(result.tokens == std::vector<std::int32_t>{a, -1, 0, a});
      CHECK(result.nonfinite == std::vector<std::int32_t>{0, width, width, b != a ? 2 : 1});
      for (std::int32_t m = 0; m < 4; ++m) {
        std::uint64_t hash = 0;
        for (std::int32_t i = 0; i < width; ++i)
          hash += logit_hash_term(static_cast<std::uint32_t>(m + 3), static_cast<std::uint32_t>(i),
                                  float_bits(logits[m * width + i]));
        CHECK(result.hashes[m] == hash);
      }
    }
}
