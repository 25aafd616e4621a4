// CUDA kernels against the scalar host kernels: every bit is equal, for every type, shape and number of rows.
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;

TEST_CASE("CUDA product equals the scalar product in every case", "[cuda][matmul]") {
  for (const MatmulCase& shape : matmul_cases()) check_matmul(shape, host_device());
}

TEST_CASE("CUDA product equals the host's at the sizes of real layers", "[cuda][matmul][large]") {
  std::uint64_t seed = 1000;
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t row_count : {1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 130}) {
      const bool small = row_count > 16 && is_float(dtype);
      check_matmul({.dtypes = {dtype},
                    .rows = small ? 264 : 1032,
                    .cols = small ? 1024 : 4864,
                    .row_count = row_count,
                    .norm = true,
                    .bias = row_count % 2 == 0,
                    .epilogue = row_count % 3 == 0 ? Epilogue::gated_silu : Epilogue::store,
                    .hands_over = true,
                    .seed = seed++},
                   fast_host_device());
    }
  for (const std::int32_t row_count : {1, 4, 40}) {
    check_matmul({.dtypes = {DType::Q4_0, DType::Q4_0, DType::Q4_0},
                  .rows = 1024,
                  .cols = 5120,
                  .row_count = row_count,
                  .norm = true,
                  .bias = true,
                  .seed = seed++},
                 fast_host_device());
    check_matmul({.dtypes = {DType::Q4_K, DType::Q4_K, DType::Q6_K},
                  .rows = 520,
                  .cols = 3584,
                  .row_count = row_count,
                  .norm = true,
                  .seed = seed++},
                 fast_host_device());
    check_matmul({.dtypes = {DType::Q4_0},
                  .rows = 640,
                  .cols = 29568,
                  .row_count = row_count,
                  .epilogue = Epilogue::add,
                  .seed = seed++},
                 fast_host_device());
    check_matmul({.dtypes = {DType::Q6_K},
                  .rows = 20001,
                  .cols = 1024,
                  .row_count = row_count,
                  .norm = true,
                  .soft_cap = 30.0f,
                  .seed = seed++},
                 fast_host_device());
  }
}

TEST_CASE("one row of a CUDA product does not depend on the others", "[cuda][matmul]") {
  for (const DType dtype : kAllDTypes) {
    const MatmulCase shape{.dtypes = {dtype}, .rows = 72, .cols = 1536, .row_count = 33, .norm = true, .seed = 77};
    const MatmulData data = matmul_data(shape);
    const std::vector<float> together = run_matmul(cuda_device(), shape, data)[0];
    std::int32_t first = 0;
    for (const std::int32_t count : {1, 2, 3, 4, 6, 8, 9}) {
      const std::vector<float> apart = run_matmul(cuda_device(), shape, data, first, count)[0];
      const std::vector<float> expected(together.begin() + std::int64_t{first} * shape.stride_of(0),
                                        together.begin() + std::int64_t{first + count} * shape.stride_of(0));
      INFO(dtype_info(dtype).name << " rows " << first << " + " << count);
      CHECK(first_difference(expected, apart) == -1);
      first += count;
    }
  }
}

TEST_CASE("CUDA product carries what is not finite, and the smallest numbers", "[cuda][matmul]") {
  for (const DType dtype : {DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::F16})
    for (const std::int32_t row_count : {1, 4, 20}) {
      const MatmulCase shape{.dtypes = {dtype}, .rows = 40, .cols = 1024, .row_count = row_count, .seed = 5};
      MatmulData data = matmul_data(shape);
      for (int i = 0; i < 32; ++i) data.input[static_cast<std::size_t>(64 + i)] = 1e-38f;
      for (int i = 0; i < 32; ++i) data.input[static_cast<std::size_t>(96 + i)] = 1e-32f;
      if (row_count > 1) {
        data.input[static_cast<std::size_t>(shape.input_stride() + 40)] = std::nanf("");
        data.input[static_cast<std::size_t>(2 * shape.input_stride() + 700)] = -std::numeric_limits<float>::infinity();
      }
      INFO(describe(shape));
      CHECK(first_difference(run_matmul(host_device(), shape, data)[0], run_matmul(cuda_device(), shape, data)[0]) ==
            -1);
    }
}

TEST_CASE("CUDA embedding equals the scalar one for every type", "[cuda][embed]") {
  Random random(9);
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t cols : widths_of(dtype)) {
      const auto file = random_file_matrix(dtype, 43, cols, random);
      const std::vector<StepRow> rows = rows_of_tokens({0, 42, 7, 8, 8, 31});
      for (const float scale : {1.0f, 39.191835f}) {
        INFO(dtype_info(dtype).name << " cols " << cols);
        CHECK(first_difference(run_embed(host_device(), file->matrix, rows, scale),
                               run_embed(cuda_device(), file->matrix, rows, scale)) == -1);
      }
    }
}

TEST_CASE("CUDA norm and gate equal the scalar ones", "[cuda][elementwise]") {
  Random random(10);
  for (const std::int32_t width : {8, 96, 255, 256, 257, 5120})
    for (const std::int32_t row_count : {1, 3, 40}) {
      const std::vector<float> x = random.values(std::int64_t{width} * row_count);
      const std::vector<float> y = random.values(std::int64_t{width} * row_count);
      const std::vector<float> weight = random.values(width);
      INFO("width " << width << " rows " << row_count);
      CHECK(first_difference(run_norm_add(host_device(), x, y, weight), run_norm_add(cuda_device(), x, y, weight)) ==
            -1);
      for (const Epilogue activation : {Epilogue::gated_silu, Epilogue::gated_gelu})
        CHECK(first_difference(run_gate(host_device(), x, y, activation, width),
                               run_gate(cuda_device(), x, y, activation, width)) == -1);
    }
}

TEST_CASE("CUDA rotation equals the scalar one", "[cuda][rotate]") {
  std::uint64_t seed = 1;
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t head_dim : {8, 64, 80, 128, 256})
      for (const bool interleaved : {false, true})
        for (const bool norms : {false, true}) {
          RotateCase shape;
          shape.cache = {.type = type, .kv_heads = 2, .head_dim = head_dim, .sequences = 3};
          shape.heads = 6;
          shape.interleaved = interleaved;
          shape.norms = norms;
          shape.rotated = head_dim == 80 ? 32 : head_dim;
          shape.rows = {{0, 0, 0, 0}, {0, 63, 0, 0}, {0, 64, 0, 0}, {0, 200, 2, 0}, {0, 17, 1, 0}};
          shape.seed = seed++;
          check_rotate(shape);
        }
}

TEST_CASE("CUDA attention equals the scalar one in every case", "[cuda][attention]") {
  for (const AttentionCase& shape : attention_cases()) check_attention(shape, host_device());
}

TEST_CASE("CUDA product equals the host's where its work does not divide evenly", "[cuda][matmul][large]") {
  std::uint64_t seed = 3000;
  // Rows that leave one or two strips a multiprocessor over, in more pieces than a ring has slots.
  for (const std::int32_t strips : {5, 6, 9})
    check_matmul({.dtypes = {DType::Q4_0}, .rows = 132 * 8 * strips, .cols = 6144, .norm = true, .seed = seed++},
                 fast_host_device());
  check_matmul({.dtypes = {DType::Q4_K, DType::Q6_K}, .rows = 132 * 8 * 5 / 2, .cols = 6144, .seed = seed++},
               fast_host_device());
  // Several rows, more strips in a block than one pass takes, activations that stay and that do not.
  for (const std::int32_t row_count : {2, 7, 8, 12, 16}) {
    check_matmul({.dtypes = {DType::Q4_0},
                  .rows = 132 * 8 * 11,
                  .cols = 1120,
                  .row_count = row_count,
                  .bias = true,
                  .epilogue = Epilogue::add,
                  .hands_over = true,
                  .seed = seed++},
                 fast_host_device());
    check_matmul({.dtypes = {DType::Q4_K, DType::Q6_K},
                  .rows = 132 * 8 * 5 + 2,
                  .cols = 5120,
                  .row_count = row_count,
                  .norm = true,
                  .epilogue = Epilogue::gated_silu,
                  .hands_over = true,
                  .seed = seed++},
                 fast_host_device());
  }
  // More tiles than multiprocessors, so that some are cut along K.
  for (const DType dtype : {DType::Q4_0, DType::Q4_K, DType::Q6_K})
    for (const Epilogue epilogue : {Epilogue::store, Epilogue::gated_silu})
      check_matmul(
          {.dtypes = {dtype}, .rows = 4112, .cols = 1280, .row_count = 300, .epilogue = epilogue, .seed = seed++},
          fast_host_device());
}

TEST_CASE("CUDA attention equals the host's over long contexts and many rows", "[cuda][attention][large]") {
  std::uint64_t seed = 500;
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t head_dim : {64, 128}) {
      AttentionCase shape;
      shape.cache = {.type = type,
                     .kv_heads = 2,
                     .head_dim = head_dim,
                     .sequences = 2,
                     .max_positions = 8192,
                     .layers = 1,
                     .layer = 0};
      for (const std::int32_t ratio : {1, 5, 7, 12}) {
        shape.heads = 2 * ratio;
        for (const std::int32_t window : {0, 1500}) {
          shape.window = window;
          shape.rows = {{0, 5000, 0, 0}};
          shape.seed = seed++;
          check_attention(shape, fast_host_device());
          shape.rows = {{0, 1023, 0, 0}, {0, 1024, 0, 0}, {0, 1025, 0, 0}, {0, 4097, 1, 0}, {0, 31, 1, 0}};
          shape.seed = seed++;
          check_attention(shape, fast_host_device());
        }
      }
      shape.heads = 6;
      for (const std::int32_t first : {0, 1000}) {
        shape.rows = rows_of(150, first);
        shape.window = first == 0 ? 0 : 300;
        shape.seed = seed++;
        check_attention(shape, fast_host_device());
      }
    }
}

TEST_CASE("CUDA attention equals the host's for units of every size and groups of rows", "[cuda][attention][large]") {
  std::uint64_t seed = 900;
  for (const std::int32_t head_dim : {64, 80, 128, 256})
    for (std::int32_t ratio = 1; ratio <= 8; ++ratio) {
      AttentionCase shape;
      shape.cache = {.kv_heads = 1, .head_dim = head_dim, .sequences = 2, .max_positions = 1088};
      shape.heads = ratio;
      shape.window = ratio % 3 == 0 ? 70 : 0;
      shape.rows = {{0, 1000, 0, 0}, {0, 63, 1, 0}, {0, 64, 1, 0}};
      shape.seed = seed++;
      check_attention(shape, fast_host_device());
    }
  AttentionCase shape;
  shape.cache = {.kv_heads = 2, .head_dim = 64, .sequences = 3, .max_positions = 512};
  shape.heads = 10;
  for (const std::int32_t row_count : {16, 17, 33, 64, 100}) {
    shape.rows.clear();
    for (std::int32_t i = 0; i < row_count; ++i) shape.rows.push_back({0, i * 37 % 500, i % 3, 0});
    shape.seed = seed++;
    check_attention(shape, fast_host_device());
  }
  // Several stages of a merge.
  shape.cache = {.kv_heads = 1, .head_dim = 64, .max_positions = 16640, .layers = 1, .layer = 0};
  shape.heads = 2;
  for (const std::int32_t window : {0, 9000}) {
    shape.window = window;
    shape.rows = {{0, 16500, 0, 0}};
    shape.seed = seed++;
    check_attention(shape, fast_host_device());
  }
  // So much scratch a row that the rows of a pass do not fit at once.
  shape.cache = {.kv_heads = 2, .head_dim = 64, .max_positions = 32768, .layers = 1, .layer = 0};
  shape.heads = 64;
  shape.window = 0;
  shape.rows.clear();
  for (std::int32_t i = 0; i < 16; ++i) shape.rows.push_back({0, 100 + 13 * i, 0, 0});
  shape.seed = seed++;
  check_attention(shape, fast_host_device());
}

TEST_CASE("CUDA attention equals the host's for tiles of rows of any shape", "[cuda][attention][large]") {
  std::uint64_t seed = 1200;
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t head_dim : {8, 64, 80, 128, 136, 256})
      for (const std::int32_t ratio : {1, 3, 5, 8, 12}) {
        AttentionCase shape;
        shape.cache = {.type = type, .kv_heads = 2, .head_dim = head_dim, .sequences = 3, .max_positions = 768};
        shape.heads = 2 * ratio;
        shape.soft_cap = ratio == 3 ? 5.0f : 0.0f;
        for (const std::int32_t window : {0, 5, 150}) {
          shape.window = window;
          shape.rows = rows_of(100, 595, 2);
          shape.seed = seed++;
          check_attention(shape, fast_host_device());
        }
        // Rows of several sequences in one tile, in blocks and mixed, and positions in no order.
        shape.rows = rows_of(19, 0, 0);
        for (const StepRow& row : rows_of(80, 301, 1)) shape.rows.push_back(row);
        shape.seed = seed++;
        check_attention(shape, fast_host_device());
        shape.window = 0;
        shape.rows.clear();
        for (std::int32_t i = 0; i < 100; ++i) shape.rows.push_back({0, i * 277 % 700, i % 3, 0});
        shape.seed = seed++;
        check_attention(shape, fast_host_device());
      }
  // So many rows that the blocks are of every size.
  for (const std::int32_t row_count : {96, 130, 512}) {
    AttentionCase shape;
    shape.cache = {.kv_heads = 8, .head_dim = 128, .max_positions = 768, .layers = 1, .layer = 0};
    shape.heads = 40;
    shape.rows = rows_of(row_count, 200, 0);
    shape.seed = seed++;
    check_attention(shape, fast_host_device());
  }
}

TEST_CASE("CUDA choice of a token equals the scalar one", "[cuda][argmax]") {
  Random random(11);
  for (const std::int32_t width : {1, 2, 31, 1024, 1025, 32000, 151936}) {
    std::vector<float> logits = random.values(std::int64_t{width} * 3);
    if (width > 2) {
      logits[static_cast<std::size_t>(width / 2)] = 1e6f;  // a tie: the lower index wins
      logits[static_cast<std::size_t>(width - 1)] = 1e6f;
      logits[static_cast<std::size_t>(width + 1)] = std::nanf("");
      logits[static_cast<std::size_t>(2 * width)] = std::numeric_limits<float>::infinity();
      logits[static_cast<std::size_t>(2 * width + 1)] = -std::numeric_limits<float>::infinity();
    }
    INFO("width " << width);
    check_argmax(logits, width, {{0, 0, 0, 0}, {5, 4097, 0, 0}, {0, 77, 1, 0}});
  }
  check_argmax(std::vector<float>(100, std::nanf("")), 100, {{0, 1, 0, 0}});
  check_argmax({-0.0f, 0.0f, -0.0f}, 3, {{0, 1, 0, 0}});
}

TEST_CASE("a captured CUDA pass computes what the same calls compute eagerly", "[cuda][graph]") {
  Device& device = cuda_device();
  constexpr std::int32_t kWidth = 1280;
  for (const std::int32_t row_count : {1, 5, 16}) {
    const MatmulCase shape{
        .dtypes = {DType::Q4_0}, .rows = kWidth, .cols = kWidth, .row_count = row_count, .norm = true, .seed = 3};
    const MatmulData data = matmul_data(shape);
    DeviceBuffers buffers(device);
    Stream& stream = buffers.stream();
    const DevicePtr<float> first = buffers.put(data.input);
    const DevicePtr<float> second = buffers.put(data.before[0]);
    const ScratchLimits limits{
        .row_count = row_count, .input_width = kWidth, .head_count = 1, .head_dim = 8, .max_positions = 1};
    MatmulArgs args{};
    args.input_stride = kWidth;
    args.row_count = row_count;
    args.norm_weight = buffers.put(data.norm_weight);
    args.norm_epsilon = data.norm_epsilon;
    args.output_count = 1;
    args.scratch = buffers.take<std::byte>(static_cast<std::int64_t>(device.kernels().scratch_bytes(limits)));
    const std::size_t handover_bytes = row_count > 1 ? device.kernels().handover_bytes(limits) : 0;
    if (handover_bytes > 0) {
      args.handover = buffers.take<std::byte>(static_cast<std::int64_t>(handover_bytes));
      stream.fill_zero(args.handover, handover_bytes);
    }
    args.outputs[0].matrix = {buffers.put(packed({data.matrices[0]->matrix, {}})), DType::Q4_0, kWidth, kWidth};
    args.outputs[0].out_stride = kWidth;
    args.epilogue = Epilogue::add;
    constexpr int kProducts = 12;
    const auto enqueue = [&] {  // each product reads what the last one wrote, and adds to what the last one read
      for (int i = 0; i < kProducts; ++i) {
        args.input = i % 2 == 0 ? first : second;
        args.outputs[0].out = i % 2 == 0 ? second : first;
        device.kernels().matmul(stream, args);
      }
    };
    enqueue();
    const std::vector<float> eager = buffers.get(first, std::int64_t{row_count} * kWidth);
    stream.upload(first.as<std::byte>(), data.input.data(), data.input.size() * sizeof(float));
    stream.upload(second.as<std::byte>(), data.before[0].data(), data.before[0].size() * sizeof(float));
    stream.synchronize();
    stream.begin_capture();
    enqueue();
    const std::unique_ptr<Graph> graph = stream.end_capture();
    REQUIRE(graph->node_count() >= kProducts);
    stream.launch(*graph);
    INFO(row_count << " rows");
    CHECK(first_difference(eager, buffers.get(first, std::int64_t{row_count} * kWidth)) == -1);
  }
}
