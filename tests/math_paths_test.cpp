// Every instruction set of the host gives the bits of the scalar one, for every type and shape. A path that this
// processor lacks is reported as not run.
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "engine/host/math.h"
#include "tests/catch.h"
#include "tests/host_path_device.h"
#include "tests/kernel_cases.h"

using namespace genai;
using namespace genai::test;

namespace {

// The vector paths that this build and processor can run; says aloud which they cannot.
std::vector<const HostMath*> vector_paths() {
  std::vector<const HostMath*> paths;
  constexpr std::pair<InstructionSet, const char*> kSets[] = {
      {InstructionSet::avx2, "AVX2"}, {InstructionSet::avx512, "AVX-512 VNNI"}, {InstructionSet::amx, "AMX"}};
  for (const auto& [set, name] : kSets) {
    if (const HostMath* math = find_host_math(set))
      paths.push_back(math);
    else
      WARN("NOT RUN: this processor or system lacks " << name);
  }
  return paths;
}

HostPathDevice& scalar_device() {
  static HostPathDevice device(kScalarMath, 1);
  return device;
}

// Values that reach the odd corners of every operation.
std::vector<float> awkward_values(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  const float corners[] = {0.0f, -0.0f, 1e-42f, -1e-42f, 1e30f, -1e30f, 88.4f, -88.4f, 88.376f, -87.3f, 3e38f, 0.5f};
  std::vector<float> values = random.values(count);
  for (float& x : values)
    if (random.next() % 16 == 0) x = corners[random.next() % std::size(corners)];
  return values;
}

// Bytes, but for NaNs, which are all equal.
bool same_tiles(const std::vector<ActivationTile>& left, const std::vector<ActivationTile>& right) {
  for (std::size_t t = 0; t < left.size(); ++t) {
    if (std::memcmp(left[t].q, right[t].q, sizeof left[t].q) != 0) return false;
    if (std::memcmp(left[t].half_sum, right[t].half_sum, sizeof left[t].half_sum) != 0) return false;
    const auto floats = [](const float(&from)[kTileBlocks]) { return std::vector<float>(from, from + kTileBlocks); };
    if (first_difference(floats(left[t].scale), floats(right[t].scale)) != -1) return false;
    if (first_difference(floats(left[t].sum), floats(right[t].sum)) != -1) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("each path says which it is, and the fastest one is chosen") {
  CHECK(find_host_math(InstructionSet::scalar) == &kScalarMath);
  const HostMath* expected = &kScalarMath;
  for (const HostMath* math : vector_paths()) {
    expected = math;
    CHECK(find_host_math(math->instruction_set) == math);
    const bool is_avx2 = math->instruction_set == InstructionSet::avx2;
    CHECK(std::string(math->name) == (is_avx2                                        ? "avx2"
                                      : math->instruction_set == InstructionSet::amx ? "amx"
                                                                                     : "avx512"));
    CHECK(math->matmul != kScalarMath.matmul);
    CHECK(math->attend_chunk != kScalarMath.attend_chunk);
  }
  CHECK(&best_host_math() == expected);
}

TEST_CASE("every path multiplies to the bits of the scalar one") {
  std::vector<std::unique_ptr<HostPathDevice>> devices;  // one thread and two of each path
  for (const HostMath* math : vector_paths())
    for (const int threads : {1, 2}) devices.push_back(std::make_unique<HostPathDevice>(*math, threads));
  for (const MatmulCase& shape : matmul_cases()) {
    const MatmulData data = matmul_data(shape);
    const auto expected = run_matmul(scalar_device(), shape, data);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (i % 2 != (shape.seed % 3 == 0)) continue;
      const auto results = run_matmul(*devices[i], shape, data);
      INFO(devices[i]->name() << ": " << describe(shape));
      for (std::size_t output = 0; output < results.size(); ++output)
        CHECK(first_difference(results[output], expected[output]) == -1);
    }
  }
}

TEST_CASE("every path treats non-finite scales, weights and activations like the scalar one") {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  for (const HostMath* math : vector_paths()) {
    HostPathDevice device(*math, 1);
    for (const DType dtype : kAllDTypes)
      for (const std::int32_t row_count : {1, 9}) {
        const MatmulCase shape{.dtypes = {dtype}, .rows = 19, .cols = 512, .row_count = row_count, .seed = 77};
        MatmulData data = matmul_data(shape);
        for (int i = 0; i < 3; ++i) data.input[i % row_count * shape.input_stride() + 100 * i + 5] = kBad[i];
        for (int i = 0; i < 3;
             ++i) {  // an f16 pattern of the first block of three rows, which is a scale for most types
          const std::uint16_t half = float_to_half(kBad[i]);
          std::memcpy(data.matrices[0]->bytes.data() + (3 + i) * file_row_bytes(data.matrices[0]->matrix) +
                          (dtype == DType::Q6_K ? 208 : 0),
                      &half, sizeof half);
        }
        INFO(math->name << ": " << describe(shape));
        CHECK(first_difference(run_matmul(device, shape, data)[0], run_matmul(scalar_device(), shape, data)[0]) == -1);
      }
  }
}

TEST_CASE("every path accumulates extreme integers and scales to the bits of the scalar one") {
  for (const HostMath* math : vector_paths()) {
    HostPathDevice device(*math, 1);
    for (const DType dtype : kAllDTypes) {
      if (is_float(dtype)) continue;
      for (const int pattern : {0x00, 0x7f, 0x80, 0xff})
        for (const std::int32_t row_count : {1, 8}) {
          const MatmulCase shape{.dtypes = {dtype}, .rows = 16, .cols = 512, .row_count = row_count, .seed = 78};
          MatmulData data = matmul_data(shape);
          const DTypeInfo& info = dtype_info(dtype);
          for (std::size_t begin = 0; begin < data.matrices[0]->bytes.size(); begin += info.block_bytes) {
            std::byte* block = data.matrices[0]->bytes.data() + begin;
            const std::size_t first = dtype == DType::Q6_K ? 0 : has_minimum(dtype) ? 4 : 2;
            const std::size_t last = dtype == DType::Q6_K ? 208 : info.block_bytes;
            std::fill(block + first, block + last, static_cast<std::byte>(pattern));
          }
          for (std::size_t i = 0; i < data.input.size(); ++i) data.input[i] = i % 64 < 32 ? 3.0f : -3.0f;
          INFO(math->name << ": " << describe(shape) << " pattern " << pattern);
          CHECK(first_difference(run_matmul(device, shape, data)[0], run_matmul(scalar_device(), shape, data)[0]) ==
                -1);
        }
    }
  }
}

TEST_CASE("every path quantises to the bits of the scalar one") {
  for (const HostMath* math : vector_paths())
    for (const std::int32_t width : {1, 31, 32, 33, 100, 128, 257, 640, 1536}) {
      std::vector<float> x = awkward_values(width, static_cast<std::uint64_t>(width));
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (i / 32 % 5 == 1) x[i] = 0.0f;
        if (i / 32 % 5 == 2) x[i] *= 1e-30f;
        if (i / 32 % 5 == 3) x[i] = static_cast<float>(static_cast<int>(i % 32) - 16) * 0.5f;
      }
      if (width > 300) x[290] = std::numeric_limits<float>::infinity();
      if (width > 600) x[520] = std::numeric_limits<float>::quiet_NaN();
      std::vector<ActivationTile> expected(static_cast<std::size_t>(padded_width(width) / kTileWidth)),
          tiles = expected;
      kScalarMath.quantize_row(x.data(), width, expected.data());
      math->quantize_row(x.data(), width, tiles.data());
      INFO(math->name << " width " << width);
      CHECK(same_tiles(tiles, expected));
    }
}

TEST_CASE("every path normalises, gates, rotates and converts to the bits of the scalar one") {
  for (const HostMath* math : vector_paths())
    for (const std::int32_t width : {1, 7, 8, 15, 16, 17, 64, 255, 256, 257, 300, 576, 1600}) {
      INFO(math->name << " width " << width);
      const std::vector<float> x = awkward_values(width, 1), y = awkward_values(width, 2), w = awkward_values(width, 3);
      const auto both = [&](const auto& run) {
        std::vector<float> expected(static_cast<std::size_t>(width) + 1, 7.0f), result = expected;
        run(kScalarMath, expected);
        run(*math, result);
        CHECK(first_difference(result, expected) == -1);
      };
      both([&](const HostMath& path, std::vector<float>& out) {
        path.rms_norm(y.data(), w.data(), 1e-5f, width, out.data());
      });
      both([&](const HostMath& path, std::vector<float>& out) {
        std::copy(x.begin(), x.end(), out.begin());
        path.rms_norm_add(out.data(), y.data(), w.data(), 1e-5f, width);
      });
      for (const Epilogue activation : {Epilogue::gated_silu, Epilogue::gated_gelu})
        both([&](const HostMath& path, std::vector<float>& out) {
          path.gate(activation, x.data(), y.data(), out.data(), width);
        });
      for (const bool interleaved : {false, true})
        for (const std::int32_t rotated : {width / 2 * 2, width / 4 * 2})
          both([&](const HostMath& path, std::vector<float>& out) {
            std::copy(x.begin(), x.end(), out.begin());
            path.rotate_head(out.data(), w.data(), rotated, interleaved);
          });
      both([&](const HostMath& path, std::vector<float>& out) {
        std::vector<std::uint16_t> halves(static_cast<std::size_t>(width) + 1, 0x1234);
        path.narrow(x.data(), halves.data(), width);
        path.widen(halves.data(), out.data(), width);
        CHECK(halves[width] == 0x1234);
      });
    }
}

TEST_CASE("every path converts every half, and every kind of float, like the scalar one") {
  for (const HostMath* math : vector_paths()) {
    std::vector<std::uint16_t> halves;
    for (int half = 0; half < 0x10000; ++half) halves.push_back(static_cast<std::uint16_t>(half));
    std::vector<float> expected(halves.size()), result(halves.size());
    kScalarMath.widen(halves.data(), expected.data(), 0x10000);
    math->widen(halves.data(), result.data(), 0x10000);
    CHECK(first_difference(result, expected) == -1);
    std::vector<float> floats;
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 8191)
      floats.push_back(bits_float(static_cast<std::uint32_t>(bits)));
    std::vector<std::uint16_t> expected_halves(floats.size()), result_halves(floats.size());
    kScalarMath.narrow(floats.data(), expected_halves.data(), static_cast<std::int64_t>(floats.size()));
    math->narrow(floats.data(), result_halves.data(), static_cast<std::int64_t>(floats.size()));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < floats.size(); ++i)
      wrong += std::isnan(floats[i]) ? (result_halves[i] & 0x7fff) <= 0x7c00 : result_halves[i] != expected_halves[i];
    CHECK(wrong == 0);
  }
}

TEST_CASE("every path has the exponential of the scalar one for every kind of float") {
  // Through the gate with up = 1: silu is x / (1 + exp(-x)), so its bits follow those of exp.
  for (const HostMath* math : vector_paths()) {
    std::vector<float> x;
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4093)
      x.push_back(bits_float(static_cast<std::uint32_t>(bits)));
    const std::vector<float> ones(x.size(), 1.0f);
    std::vector<float> expected(x.size()), result(x.size());
    for (const Epilogue activation : {Epilogue::gated_silu, Epilogue::gated_gelu}) {
      kScalarMath.gate(activation, x.data(), ones.data(), expected.data(), static_cast<std::int32_t>(x.size()));
      math->gate(activation, x.data(), ones.data(), result.data(), static_cast<std::int32_t>(x.size()));
      CHECK(first_difference(result, expected) == -1);
    }
  }
}

TEST_CASE("every path attends to the bits of the scalar one") {
  std::vector<std::unique_ptr<HostPathDevice>> devices;
  for (const HostMath* math : vector_paths())
    for (const int threads : {1, 2}) devices.push_back(std::make_unique<HostPathDevice>(*math, threads));
  for (const AttentionCase& shape : attention_cases()) {
    const AttentionData data = attention_data(shape);
    const std::vector<float> expected = run_attention(scalar_device(), shape, data);
    for (const auto& device : devices) {
      INFO(device->name() << " seed " << shape.seed);
      CHECK(first_difference(run_attention(*device, shape, data), expected) == -1);
    }
  }
}

TEST_CASE("every path scans logits like the scalar one") {
  for (const HostMath* math : vector_paths())
    for (const std::int32_t width : {1, 3, 8, 15, 16, 17, 31, 33, 100, 1000}) {
      for (int variant = 0; variant < 6; ++variant) {
        std::vector<float> logits = awkward_values(width, static_cast<std::uint64_t>(width + variant));
        const float nan = std::numeric_limits<float>::quiet_NaN();
        if (variant == 1) std::fill(logits.begin(), logits.end(), nan);
        if (variant == 2) std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
        if (variant == 3) std::fill(logits.begin(), logits.end(), 2.0f);
        if (variant == 4)
          for (std::int32_t i = 0; i < width; ++i) logits[i] = i % 3 == 0 ? nan : static_cast<float>(i * 7 % 13);
        if (variant == 5) logits[width / 2] = -nan;
        for (const std::int32_t begin : {0, width / 3}) {
          const LogitScan expected = kScalarMath.scan_logits(logits.data(), begin, width, 12345);
          const LogitScan scan = math->scan_logits(logits.data(), begin, width, 12345);
          INFO(math->name << " width " << width << " variant " << variant);
          CHECK(scan.index == expected.index);
          CHECK(scan.hash == expected.hash);
          CHECK(scan.nonfinite == expected.nonfinite);
          if (scan.index >= 0) CHECK(scan.best == expected.best);
        }
      }
    }
}

TEST_CASE("every path multiplies few rows to the bits of the scalar one, turned ahead or not") {
  constexpr std::int32_t kCols = 1536;
  constexpr std::int32_t kRows = 21;
  Random random(5);
  std::vector<ActivationTile> input(static_cast<std::size_t>(kMostTurnedRows * (kCols / kTileWidth)));
  for (std::int32_t m = 0; m < kMostTurnedRows; ++m)
    kScalarMath.quantize_row(random.values(kCols).data(), kCols,
                             &input[static_cast<std::size_t>(m * (kCols / kTileWidth))]);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(static_cast<std::size_t>(matmul_workspace_bytes(kCols) / 64));
  for (const DType dtype : kAllDTypes) {
    if (is_float(dtype)) continue;
    const auto file = random_file_matrix(dtype, kRows, kCols, random);
    const std::vector<std::byte> weights = packed({file->matrix, {}});
    for (std::int32_t row_count = 2; row_count <= kMostTurnedRows; ++row_count) {
      const auto product = [&](const HostMath& math, const TurnedTile* turned) {
        std::vector<float> out(static_cast<std::size_t>(row_count * kRows), 7.0f);
        math.matmul({.matrix = {.data = weights.data(), .dtype = dtype, .rows = kRows, .cols = kCols},
                     .input = reinterpret_cast<const std::byte*>(input.data()),
                     .input_stride_bytes = kCols / kTileWidth * static_cast<std::int64_t>(sizeof(ActivationTile)),
                     .row_count = row_count,
                     .turned = turned,
                     .bias = nullptr,
                     .out = out.data(),
                     .out_stride = kRows,
                     .epilogue = Epilogue::store,
                     .soft_cap = 0.0f},
                    0, strip_count(kRows), workspace.data()->bytes);
        return out;
      };
      const std::vector<float> expected = product(kScalarMath, nullptr);
      for (const HostMath* math : vector_paths()) {
        INFO(math->name << " " << dtype_info(dtype).name << " rows " << row_count);
        CHECK(first_difference(product(*math, nullptr), expected) == -1);
        if (math->turn_row == nullptr) continue;
        std::vector<TurnedTile> turned(static_cast<std::size_t>(row_count * (kCols / kTileWidth)));
        for (std::int32_t m = 0; m < row_count; ++m)
          math->turn_row(&input[static_cast<std::size_t>(m * (kCols / kTileWidth))], kCols,
                         &turned[static_cast<std::size_t>(m)], row_count);
        CHECK(first_difference(product(*math, turned.data()), expected) == -1);
      }
    }
  }
}
