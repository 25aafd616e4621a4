// Steps of several rows of a decoder on a GPU, where one kernel serves neighbouring calls, against the host: every
// vector and every byte of the cache is equal, eagerly and in a graph.
#include "tests/decoder_pair.h"

using namespace genai;
using namespace genai::test;

namespace {

// Units of every size, one or two a key-value head, families' norms, windows and caps, outputs of whole tiles or not.
std::vector<DecoderCase> rows_cases() {
  std::vector<DecoderCase> cases;
  const auto add = [&](DecoderCase shape) {
    shape.layers = 2;
    shape.vocabulary = 320;
    shape.max_positions = 1216;
    shape.seed = cases.size() + 1;
    cases.push_back(shape);
  };
  for (const std::int32_t row_count : {2, 8, 16})
    add({.second = DType::Q6_K,
         .heads = 40,
         .head_dim = 128,
         .rotated = 128,
         .width = 768,
         .scale = 0.05f,
         .bias = true,
         .sequences = row_count / 2,
         .row_count = row_count});
  add({.dtype = DType::Q4_K,
       .second = DType::Q6_K,
       .heads = 28,
       .kv_heads = 4,
       .head_dim = 128,
       .rotated = 128,
       .bias = true,
       .sequences = 5,
       .row_count = 5});
  add({.dtype = DType::Q8_0, .second = DType::Q8_0, .heads = 14, .kv_heads = 2, .sequences = 16, .row_count = 16});
  add({.dtype = DType::Q4_1,
       .second = DType::Q4_1,
       .heads = 9,
       .kv_heads = 3,
       .width = 576,
       .interleaved = true,
       .sequences = 3,
       .row_count = 3});
  add({.head_dim = 128,
       .rotated = 128,
       .window = 100,
       .scale = 1.0f,
       .head_norms = true,
       .sequences = 2,
       .row_count = 4});
  for (const std::int32_t row_count : {1, 6})
    add({.heads = 4,
         .kv_heads = 1,
         .head_dim = 256,
         .rotated = 256,
         .window = 70,
         .soft_cap = 20.0f,
         .head_norms = true,
         .activation = Epilogue::gated_gelu,
         .sequences = row_count,
         .row_count = row_count});
  add({.heads = 16, .head_dim = 80, .rotated = 48, .window = 64, .interleaved = true, .sequences = 3, .row_count = 7});
  add({.heads = 12, .kv_heads = 1, .sequences = 4, .row_count = 16});
  add({.heads = 6, .kv_heads = 2, .head_norms = true, .sequences = 2, .row_count = 9, .cache_type = CacheType::f32});
  return cases;
}

// Wide enough for chains that have attention (NOTE [Rows attention]), of three layers.
std::vector<DecoderCase> chain_cases() {
  std::vector<DecoderCase> cases;
  const auto add = [&](DecoderCase shape, std::int32_t row_count, std::int32_t sequences) {
    shape.layers = 5;
    shape.vocabulary = 2560;
    shape.feed_forward = 1280;
    shape.max_positions = 1216;
    shape.row_count = row_count;
    shape.sequences = sequences;
    shape.seed = cases.size() + 1;
    cases.push_back(shape);
  };
  const DecoderCase wide{.second = DType::Q6_K,
                         .heads = 20,
                         .kv_heads = 4,
                         .head_dim = 128,
                         .rotated = 128,
                         .width = 2304,
                         .scale = 0.05f,
                         .bias = true};
  for (const std::int32_t row_count : {2, 3, 4})
    for (const std::int32_t sequences : {1, 2, row_count}) add(wide, row_count, sequences);
  DecoderCase other = wide;
  other.dtype = DType::Q4_K;
  other.window = 100;
  other.soft_cap = 20.0f;
  other.head_norms = true;
  add(other, 4, 3);
  other.heads = 32;
  other.kv_heads = 32;
  other.head_dim = 64;
  other.rotated = 48;
  other.interleaved = true;
  add(other, 3, 2);
  other.heads = 64;
  other.kv_heads = 4;
  other.head_dim = 32;
  other.rotated = 32;
  add(other, 4, 2);
  return cases;
}

// Rows of the sequences in turn, each sequence's in order: from `first` on, and from so many positions on in each
// sequence as it is `apart` from the one before. `backwards`: last ones first.
std::vector<StepRow> rows_from(const DecoderCase& shape, std::int32_t first, std::int32_t apart, bool backwards) {
  std::vector<StepRow> rows;
  for (std::int32_t i = 0; i < shape.row_count; ++i)
    rows.push_back({0, first + apart * (i % shape.sequences) + i / shape.sequences, i % shape.sequences, 0});
  if (backwards) std::reverse(rows.begin(), rows.end());
  return rows;
}

// Keys and values of all positions of a sequence up to before `end`.
void fill_any_cache(std::vector<std::byte>& cache, const DecoderCase& shape, std::int32_t sequence, std::int32_t end,
                    Random& random) {
  if (shape.cache_type == CacheType::f16) return fill_cache(cache, shape, sequence, 0, end, random);
  for (std::int32_t layer = 0; layer < shape.layers; ++layer)
    for (std::int32_t position = 0; position < end; ++position)
      for (std::int32_t head = 0; head < shape.kv_heads; ++head)
        for (std::int32_t i = 0; i < shape.head_dim; ++i) {
          const CacheShapeCase of_layer = shape.cache(layer);
          put_cache_element(cache, of_layer, of_layer.key_offset(sequence, position, head, i), random.value());
          put_cache_element(cache, of_layer, of_layer.value_offset(sequence, position, head, i), random.value());
        }
}

struct RowsCheck {
  std::vector<std::int32_t> firsts = {0, 16, 61, 1019};  // positions of the first sequence
  std::int32_t apart = 5;                                // positions of sequences
  int replays = DecoderPair::kReplays;
  std::size_t kernel_count = 0;  // of a step, where kernels hand over; 0: any
};

void check_rows(const std::vector<DecoderCase>& cases, const RowsCheck& check) {
  for (const DecoderCase& shape : cases) {
    INFO(describe(shape));
    DecoderPair decoders(shape, check.replays);
    if (check.kernel_count > 0 && decoders.found().hands_over())
      CHECK(decoders.graph().node_count() == check.kernel_count);
    Random random(shape.seed);
    std::vector<std::byte> cache = decoders.host().cache();
    for (const std::int32_t first : check.firsts) {
      INFO("from position " << first);
      std::fill(cache.begin(), cache.end(), std::byte{0xff});  // NaN, where nobody has written
      for (std::int32_t sequence = 0; sequence < shape.sequences; ++sequence)
        fill_any_cache(cache, shape, sequence, first + check.apart * sequence, random);
      const std::vector<float> x = random.values(std::int64_t{shape.row_count} * shape.width);
      decoders.check_step(rows_from(shape, first, check.apart, first == 61), x, cache);
      decoders.check_caches();
    }
    decoders.check_guards();
  }
}

}  // namespace

TEST_CASE("steps of a few rows on CUDA equal the host's, eagerly and in a graph", "[cuda][rows]") {
  check_rows(rows_cases(), {});
}

TEST_CASE("steps of a few rows in chains equal the host's, eagerly and in a graph", "[cuda][rows]") {
  check_rows(chain_cases(), {.kernel_count = 2});
}

// Small enough for a tool that looks at each access (tests/README.md, "Sanitizers"): a chain, and logits.
TEST_CASE("steps of a few rows in one chain equal the host's", "[cuda][race]") {
  const DecoderCase one_sequence{.heads = 32,
                                 .kv_heads = 32,
                                 .head_dim = 32,
                                 .rotated = 32,
                                 .width = 2144,
                                 .feed_forward = 1184,
                                 .vocabulary = 320,
                                 .max_positions = 1216,
                                 .row_count = 4};
  // A group of warps has four items of an attention.
  check_rows({one_sequence}, {.firsts = {830}, .replays = 1, .kernel_count = 2});
  const DecoderCase sequences{.dtype = DType::Q4_K,
                              .second = DType::Q6_K,
                              .heads = 40,
                              .head_dim = 128,
                              .rotated = 128,
                              .width = 2304,
                              .feed_forward = 1280,
                              .vocabulary = 320,
                              .window = 100,
                              .soft_cap = 20.0f,
                              .scale = 0.05f,
                              .head_norms = true,
                              .bias = true,
                              .sequences = 3,
                              .max_positions = 2112,
                              .row_count = 4};
  // Two kinds of attention; in a merge warps take part that attend, and one sequence has more chunks than a warp lanes.
  check_rows({sequences}, {.firsts = {130}, .apart = 965, .replays = 1, .kernel_count = 2});
}
