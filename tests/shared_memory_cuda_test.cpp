// Every kernel whose warps hand shared memory to each other, against the host, at the smallest sizes at which each
// place is used again: a tool that looks at each access gets through each in less than a minute (tests/README.md,
// "Sanitizers").
#include "tests/decoder_pair.h"
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;

namespace {

struct NarrowDecoder {
  DecoderCase shape;
  std::vector<std::int32_t> positions;
};

// So few rows of every product that a program has few blocks.
std::vector<NarrowDecoder> narrow_decoders() {
  return {// A group of warps has four items of an attention, both halves of a block merge, some of them twice.
          {{.heads = 20, .kv_heads = 4, .width = 128, .feed_forward = 512, .vocabulary = 320, .bias = true}, {0, 4150}},
          // All warps share a block's last strip.
          {{.dtype = DType::Q4_K,
            .second = DType::Q6_K,
            .kv_heads = 1,
            .width = 256,
            .feed_forward = 12544,
            .vocabulary = 320,
            .head_norms = true},
           {2100}},
          // Sums of chunks come to a merge more than once, outputs and weights in more than two places.
          {{.heads = 2,
            .kv_heads = 1,
            .head_dim = 128,
            .rotated = 128,
            .width = 128,
            .feed_forward = 256,
            .vocabulary = 320,
            .max_positions = 16576},
           {16500}}};
}

}  // namespace

TEST_CASE("products of long rows on CUDA equal the host's", "[cuda][race]") {
  std::uint64_t seed = 1;
  for (const DType dtype : kAllDTypes) {
    if (is_float(dtype)) continue;
    for (const std::int32_t row_count : {1, 3, 8, 16})
      check_matmul({.dtypes = {dtype},
                    .rows = 72,
                    .cols = 10240,
                    .row_count = row_count,
                    .norm = true,
                    .hands_over = true,
                    .seed = seed++},
                   fast_host_device());
  }
  // Several strips a block, a lone one behind pairs of them, and types that meet in one launch.
  for (const std::int32_t row_count : {1, 8, 16})
    check_matmul({.dtypes = {DType::Q4_K, DType::Q6_K},
                  .rows = 132 * 8 * 3,
                  .cols = 2560,
                  .row_count = row_count,
                  .bias = true,
                  .epilogue = Epilogue::add,
                  .hands_over = true,
                  .seed = seed++},
                 fast_host_device());
}

TEST_CASE("attention of few rows on CUDA equals the host's with many chunks a block", "[cuda][race]") {
  std::uint64_t seed = 100;
  for (const std::int32_t head_dim : {64, 128, 256})
    for (const std::int32_t ratio : {1, 2, 5, 8}) {
      AttentionCase shape;
      shape.cache = {.kv_heads = 8, .head_dim = head_dim, .max_positions = 1088, .layers = 1, .layer = 0};
      shape.heads = 8 * ratio;
      shape.rows = rows_of(4, 1000);
      shape.seed = seed++;
      check_attention(shape, fast_host_device());
    }
  // Several stages of a merge.
  AttentionCase shape;
  shape.cache = {.kv_heads = 1, .head_dim = 64, .max_positions = 5056, .layers = 1, .layer = 0};
  shape.heads = 2;
  shape.rows = rows_of(1, 5000);
  shape.seed = seed++;
  check_attention(shape, fast_host_device());
}

TEST_CASE("attention of many rows on CUDA equals the host's in blocks of several warps", "[cuda][race]") {
  std::uint64_t seed = 200;
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t head_dim : {64, 128, 256}) {
      AttentionCase shape;
      shape.cache = {.type = type, .kv_heads = 2, .head_dim = head_dim, .max_positions = 448};
      shape.heads = 6;
      shape.rows = rows_of(100, 280);
      shape.seed = seed++;
      check_attention(shape, fast_host_device());
    }
}

TEST_CASE("steps of a narrow decoder on CUDA equal the host's", "[cuda][race]") {
  for (const NarrowDecoder& narrow : narrow_decoders()) {
    INFO(describe(narrow.shape));
    DecoderPair decoders(narrow.shape, 1);
    decoders.check_positions(narrow.positions);
    decoders.check_guards();
  }
}
