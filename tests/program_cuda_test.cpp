// Steps of a decoder on a GPU, which one kernel may serve from end to end, against the host: every vector and every
// byte of the cache is equal, eagerly and in a graph.
#include "tests/decoder_pair.h"

using namespace genai;
using namespace genai::test;

namespace {

std::vector<DecoderCase> decoder_cases() {
  std::vector<DecoderCase> cases;
  const auto add = [&](DecoderCase shape) {
    shape.seed = cases.size() + 1;
    cases.push_back(shape);
  };
  add({.dtype = DType::Q4_0,
       .second = DType::Q6_K,
       .heads = 40,
       .kv_heads = 8,
       .head_dim = 128,
       .rotated = 128,
       .width = 768,
       .feed_forward = 1536,
       .scale = 0.05f,
       .bias = true});
  add({.dtype = DType::Q4_K,
       .second = DType::Q6_K,
       .heads = 28,
       .kv_heads = 4,
       .head_dim = 128,
       .rotated = 128,
       .width = 512,
       .feed_forward = 2304,
       .scale = 0.002f,
       .bias = true});
  add({.dtype = DType::Q8_0,
       .second = DType::Q8_0,
       .heads = 14,
       .kv_heads = 2,
       .width = 896,
       .scale = 0.004f,
       .bias = true});
  add({.dtype = DType::Q4_1,
       .second = DType::Q4_1,
       .heads = 9,
       .kv_heads = 3,
       .width = 576,
       .feed_forward = 1536,
       .interleaved = true});
  add({.dtype = DType::Q4_K,
       .second = DType::Q4_K,
       .head_dim = 128,
       .rotated = 128,
       .width = 1024,
       .window = 100,
       .scale = 1.0f,
       .head_norms = true});
  add({.dtype = DType::Q4_0,
       .heads = 64,
       .head_dim = 128,
       .rotated = 128,
       .width = 256,
       .window = 1500,
       .scale = 1.0f,
       .head_norms = true,
       .activation = Epilogue::gated_gelu});
  add({.dtype = DType::Q4_0, .second = DType::Q6_K, .rotated = 32, .soft_cap = 20.0f, .sequences = 2});
  add({.dtype = DType::Q8_0,
       .second = DType::Q8_0,
       .heads = 12,
       .kv_heads = 1,
       .width = 1120,
       .vocabulary = 20001,
       .scale = 0.004f});
  add({.dtype = DType::Q4_1,
       .second = DType::Q6_K,
       .heads = 16,
       .kv_heads = 8,
       .head_dim = 80,
       .rotated = 48,
       .window = 64});
  // Strips so long that all warps share a block's last one, with and without a lone tile at the end.
  add({.dtype = DType::Q4_0, .second = DType::Q6_K, .heads = 7, .kv_heads = 1, .width = 256, .feed_forward = 12544});
  add({.dtype = DType::Q4_K, .second = DType::Q4_K, .heads = 8, .kv_heads = 1, .width = 256, .feed_forward = 12544});
  add({.dtype = DType::Q4_1, .second = DType::Q4_1, .heads = 7, .kv_heads = 1, .width = 256, .feed_forward = 12416});
  add({.dtype = DType::Q8_0, .second = DType::Q8_0, .heads = 7, .kv_heads = 1, .width = 256, .feed_forward = 12416});
  // Narrower than a norm has partial sums, and than the blocks of a grid have rows.
  add({.heads = 6, .kv_heads = 2, .width = 128, .feed_forward = 256, .vocabulary = 320, .interleaved = true});
  return cases;
}

}  // namespace

TEST_CASE("steps of a decoder on CUDA equal the host's, eagerly and in a graph", "[cuda][program]") {
  for (const DecoderCase& shape : decoder_cases()) {
    INFO(describe(shape));
    DecoderPair decoders(shape);
    CHECK((!decoders.found().hands_over() || decoders.graph().node_count() <= 2));

    decoders.check_positions({0, 1, 63, 64, 65, 1000, 4097});
    decoders.check_caches();
    decoders.check_guards();
  }
}

TEST_CASE("programs over many chunks a block equal the host", "[cuda][program]") {
  struct LongCase {
    DecoderCase shape;
    std::vector<std::int32_t> positions;
  };
  const DecoderCase narrow{.heads = 64, .kv_heads = 64, .head_dim = 32, .rotated = 32, .width = 256, .seed = 91};
  DecoderCase windowed = narrow;
  windowed.window = 2304;
  const DecoderCase wide{.heads = 40,
                         .kv_heads = 8,
                         .head_dim = 128,
                         .rotated = 128,
                         .width = 256,
                         .scale = 0.02f,
                         .max_positions = 20480,
                         .seed = 92};
  DecoderCase pairs = wide;  // of heads
  pairs.heads = 16;
  pairs.window = 9000;
  pairs.soft_cap = 20.0f;
  pairs.head_norms = true;
  DecoderCase sevens = wide;  // cut into units, and whole
  sevens.heads = 28;
  sevens.kv_heads = 4;
  DecoderCase eights = wide;
  eights.heads = 64;
  for (const LongCase& tried : {LongCase{narrow, {1030, 2047, 2111, 2700, 4096}}, LongCase{windowed, {4095, 4150}},
                                LongCase{wide, {15900, 16383, 16384, 20000}}, LongCase{pairs, {450, 9001, 12345}},
                                LongCase{sevens, {500, 2000, 2300, 9000}}, LongCase{eights, {448, 4100, 8200}}}) {
    INFO(describe(tried.shape));
    DecoderPair decoders(tried.shape);
    decoders.check_positions(tried.positions);
    decoders.check_guards();
  }
}

TEST_CASE("steps of a decoder on CUDA follow each other without a pause", "[cuda][program]") {
  const DecoderCase shape{.heads = 14, .kv_heads = 2, .width = 896, .layers = 4, .max_positions = 256, .seed = 77};
  DecoderPair decoders(shape);
  Random random(78);
  constexpr std::int32_t kSteps = 200;
  std::vector<StepRow> rows;
  std::vector<std::vector<float>> inputs;
  for (std::int32_t step = 0; step < kSteps; ++step) {
    rows.push_back({0, step, 0, 0});
    inputs.push_back(random.values(shape.width));
  }
  for (std::size_t step = 0; step < rows.size(); ++step) {
    decoders.host().set_input(rows[step], inputs[step]);
    decoders.host().enqueue();
    decoders.found().set_input(rows[step], inputs[step]);
    decoders.found().stream().launch(decoders.graph());
  }
  check_states(decoders.host().state(rows.back()), decoders.found().state(rows.back()));
  decoders.check_caches();
}
