// CUDA kernels past the limits of a launch. A grid has at most 65,535 blocks along y and z and 2^31 - 1 along x.
//
// NOTE [Launch limits]
// Grids that grow with what a user chooses, and where they would end: rows of a pass along x in embed, norm_add, the
// preparation of inputs and argmax (two thousand million rows), rows times heads along x in rotate (the same number of
// pairs). The plain product has strips of weights along x (17 thousand million rows of a matrix) and groups of four
// rows along y, which ends at 262,140 rows: blocks take several groups there. All other grids are as large as the
// device and walk their work in a loop, or grow along x no faster than rows times heads. Elements have 64-bit numbers.
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;

namespace {

constexpr std::int32_t kPastGridY = 65535 + 4465;  // 70,000
constexpr std::int32_t kPastPlainProduct = 4 * 65535 + 5;

std::vector<StepRow> rows_in_order(std::int32_t count) {
  std::vector<StepRow> rows;
  for (std::int32_t position = 0; position < count; ++position) rows.push_back({position % 43, position, 0, 0});
  return rows;
}

CacheShapeCase long_cache(std::int32_t max_positions, std::int32_t head_dim = 8) {
  return {.type = CacheType::f16,
          .kv_heads = 1,
          .head_dim = head_dim,
          .max_positions = max_positions,
          .layers = 1,
          .layer = 0};
}

}  // namespace

TEST_CASE("CUDA product of float weights goes past the rows that one grid holds", "[cuda][matmul][limits]") {
  check_matmul({.dtypes = {DType::F16}, .rows = 9, .cols = 32, .row_count = kPastPlainProduct, .seed = 1},
               fast_host_device());
}

TEST_CASE("CUDA kernels take a pass of 70,000 rows", "[cuda][limits]") {
  for (const DType dtype : {DType::Q4_0, DType::F32})
    check_matmul({.dtypes = {dtype}, .rows = 24, .cols = 96, .row_count = kPastGridY, .norm = true, .seed = 2},
                 fast_host_device());
  Random random(3);
  const std::vector<StepRow> rows = rows_in_order(kPastGridY);
  const auto file = random_file_matrix(DType::Q8_0, 43, 32, random);
  CHECK(first_difference(run_embed(fast_host_device(), file->matrix, rows, 1.0f),
                         run_embed(cuda_device(), file->matrix, rows, 1.0f)) == -1);
  const std::vector<float> x = random.values(std::int64_t{kPastGridY} * 8);
  const std::vector<float> y = random.values(std::int64_t{kPastGridY} * 8);
  const std::vector<float> weight = random.values(8);
  CHECK(first_difference(run_norm_add(fast_host_device(), x, y, weight), run_norm_add(cuda_device(), x, y, weight)) ==
        -1);
  CHECK(first_difference(run_gate(fast_host_device(), x, y, Epilogue::gated_silu, 8),
                         run_gate(cuda_device(), x, y, Epilogue::gated_silu, 8)) == -1);
  RotateCase turned;
  turned.cache = long_cache(kPastGridY);
  turned.heads = 2;
  turned.rotated = 8;
  turned.rows = rows;
  check_rotate(turned);
  for (const std::int32_t head_dim : {8, 64}) {
    AttentionCase seen;
    seen.cache = long_cache(kPastGridY, head_dim);
    seen.heads = 2;
    seen.window = 16;
    seen.rows = rows;
    check_attention(seen, fast_host_device());
  }
}

TEST_CASE("CUDA kernels reach the end of a context of a million positions", "[cuda][limits]") {
  constexpr std::int32_t kContext = 1 << 20;
  RotateCase turned;
  turned.cache = long_cache(kContext);
  turned.heads = 2;
  turned.rotated = 8;
  turned.rows = {{0, kContext - 1, 0, 0}, {0, 0, 0, 0}};
  check_rotate(turned);
  AttentionCase seen;
  seen.cache = long_cache(kContext);
  seen.heads = 2;
  for (const std::vector<StepRow>& rows : {std::vector<StepRow>{{0, kContext - 1, 0, 0}},
                                           std::vector<StepRow>{{0, kContext - 1, 0, 0}, {0, kContext / 2, 0, 0}}}) {
    seen.rows = rows;
    check_attention(seen, fast_host_device());
  }
}

TEST_CASE("CUDA product and choice take a vocabulary of 262,144 tokens for 16 rows", "[cuda][limits]") {
  constexpr std::int32_t kVocabulary = 262144;
  check_matmul({.dtypes = {DType::Q4_0}, .rows = kVocabulary, .cols = 64, .row_count = 16, .seed = 4},
               fast_host_device());
  Random random(5);
  std::vector<StepRow> rows;
  for (std::int32_t row = 0; row < 16; ++row) rows.push_back({0, row, row, 0});
  check_argmax(random.values(std::int64_t{16} * kVocabulary), kVocabulary, rows);
}
