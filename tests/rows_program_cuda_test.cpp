// Products of a few rows of which each reads what the last one wrote, which one kernel may serve on a GPU, against the
// host: every output is equal, eagerly and in a graph, and when the number of rows changes from one to the next.
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;

namespace {

constexpr std::int32_t kMostRows = 5;
constexpr std::int32_t kMostChainRows = 4;
constexpr int kLayers = 3;

// The products of a layer behind its attention, and the first ones of the next layer.
struct ChainCase {
  DType first = DType::Q4_0;
  DType second = DType::Q6_K;
  std::int32_t query_width = 768;
  std::int32_t width = 2304;
  std::int32_t feed_forward = 1280;
  Epilogue activation = Epilogue::gated_silu;
  bool bias = false;
  float soft_cap = 0.0f;

  MatmulCase output() const { return product({first}, width, query_width, Epilogue::add, 1); }
  MatmulCase gate_up() const { return product({first}, 2 * feed_forward, width, activation, 2); }
  MatmulCase down() const { return product({second}, width, feed_forward, Epilogue::add, 3); }
  MatmulCase projections() const { return product({first, first, second}, query_width, width, Epilogue::store, 4); }

 private:
  static MatmulCase product(std::vector<DType> dtypes, std::int32_t rows, std::int32_t cols, Epilogue epilogue,
                            std::uint64_t seed) {
    return {.dtypes = std::move(dtypes),
            .rows = rows,
            .cols = cols,
            .row_count = kMostRows,
            .epilogue = epilogue,
            .seed = seed};
  }
};

class Chain {
 public:
  Chain(Device& device, const ChainCase& shape) : device_(device), shape_(shape), buffers_(device) {
    const std::int32_t widest = std::max({shape.width, shape.feed_forward, shape.query_width});
    const ScratchLimits limits{
        .row_count = kMostRows, .input_width = widest, .head_count = 1, .head_dim = 8, .max_positions = 1};
    scratch_ = buffers_.take<std::byte>(static_cast<std::int64_t>(device.kernels().scratch_bytes(limits)));
    if (const std::size_t bytes = device.kernels().handover_bytes(limits); bytes > 0) {
      handover_ = buffers_.take<std::byte>(static_cast<std::int64_t>(bytes));
      stream().fill_zero(handover_, bytes);
    }
    input_ = take(shape.query_width);
    residual_ = take(shape.width);
    gated_ = take(shape.feed_forward);
    for (std::size_t i = 0; i < projections_.size(); ++i) projections_[i] = take(shape.projections().width_of(i));
    add(shape.output(), input_, {residual_}, false);
    add(shape.gate_up(), residual_, {gated_}, true);
    add(shape.down(), gated_, {residual_}, false);
    add(shape.projections(), residual_, {projections_.begin(), projections_.end()}, true);
  }

  Stream& stream() { return buffers_.stream(); }
  bool hands_over() const { return static_cast<bool>(handover_); }

  void set(std::uint64_t seed) {
    Random random(seed);
    put(input_, random);
    put(residual_, random);
    stream().synchronize();
  }
  void enqueue(std::int32_t row_count) {
    for (int layer = 0; layer < kLayers; ++layer)
      for (MatmulArgs args : products_) {
        args.row_count = row_count;
        device_.kernels().matmul(stream(), args);
      }
  }
  // All that products write.
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> vectors = {get(residual_), get(gated_)};
    for (const Rows& rows : projections_) vectors.push_back(get(rows));
    REQUIRE(buffers_.guards_intact());
    return vectors;
  }

 private:
  struct Rows {
    DevicePtr<float> values;
    std::int32_t width;
    std::int32_t stride() const { return width + 3; }
    std::int64_t count() const { return std::int64_t{kMostRows} * stride(); }
  };

  Rows take(std::int32_t width) {
    Rows rows{{}, width};
    rows.values = buffers_.put(std::vector<float>(static_cast<std::size_t>(rows.count())));
    return rows;
  }
  void put(const Rows& rows, Random& random) {
    const std::vector<float> values = random.values(rows.count());
    stream().upload(rows.values.as<std::byte>(), values.data(), values.size() * sizeof(float));
    stream().synchronize();
  }
  std::vector<float> get(const Rows& rows) { return buffers_.get(rows.values, rows.count()); }

  void add(const MatmulCase& product, const Rows& input, const std::vector<Rows>& outputs, bool norm) {
    const MatmulData data = matmul_data(product);
    MatmulArgs args{};
    args.input = input.values;
    args.input_stride = input.stride();
    if (norm) args.norm_weight = buffers_.put(data.norm_weight);
    args.norm_epsilon = data.norm_epsilon;
    args.output_count = static_cast<std::int32_t>(outputs.size());
    args.epilogue = product.epilogue;
    args.soft_cap = shape_.soft_cap;
    args.scratch = scratch_;
    args.handover = handover_;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      MatmulOutput& output = args.outputs[i];
      output.matrix = {buffers_.put(packed({data.matrices[i]->matrix, {}})), product.dtypes[i], product.rows_of(i),
                       product.cols};
      if (shape_.bias) output.bias = buffers_.put(data.biases[i]);
      output.out = outputs[i].values;
      output.out_stride = outputs[i].stride();
    }
    products_.push_back(args);
  }

  Device& device_;
  const ChainCase shape_;
  DeviceBuffers buffers_;
  DevicePtr<std::byte> scratch_;
  DevicePtr<std::byte> handover_;
  Rows input_{};
  Rows residual_{};
  Rows gated_{};
  std::array<Rows, 3> projections_{};
  std::vector<MatmulArgs> products_;
};

void check_states(const std::vector<std::vector<float>>& expected, const std::vector<std::vector<float>>& found) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("vector " << i);
    CHECK(first_difference(expected[i], found[i]) == -1);
  }
}

std::string describe(const ChainCase& shape) {
  return std::string(dtype_info(shape.first).name) + " " + std::string(dtype_info(shape.second).name) + " width " +
         std::to_string(shape.width) + " feed forward " + std::to_string(shape.feed_forward);
}

// `in_chains`: on a GPU that can, a layer is one kernel.
void check_chain(const ChainCase& shape, const std::vector<std::int32_t>& row_counts, bool in_chains = true) {
  INFO(describe(shape));
  Chain reference(fast_host_device(), shape);
  Chain found(cuda_device(), shape);
  std::uint64_t seed = 100;
  for (const std::int32_t row_count : row_counts) {
    INFO(row_count << " rows");
    reference.set(++seed);
    reference.enqueue(row_count);
    const std::vector<std::vector<float>> expected = reference.state();
    found.set(seed);
    found.enqueue(row_count);
    check_states(expected, found.state());

    found.stream().begin_capture();
    found.enqueue(row_count);
    const std::unique_ptr<Graph> graph = found.stream().end_capture();
    if (in_chains && found.hands_over() && row_count > 1 && row_count <= kMostChainRows)
      CHECK(graph->node_count() == kLayers);
    for (int replay = 0; replay < 3; ++replay) {
      found.set(seed);
      found.stream().launch(*graph);
    }
    check_states(expected, found.state());
  }
}

}  // namespace

TEST_CASE("products of a few rows that follow each other equal the host's", "[cuda][program]") {
  check_chain({.bias = true}, {4, 1, 2, 3, 1, 5, 4});
  check_chain({.first = DType::Q4_K, .query_width = 1024, .feed_forward = 2304}, {3, 2});
  check_chain({.first = DType::Q4_1,
               .second = DType::Q4_1,
               .query_width = 704,
               .width = 2144,
               .feed_forward = 1184,
               .soft_cap = 30.0f},
              {2, 4});
  check_chain({.first = DType::Q8_0, .second = DType::Q8_0, .query_width = 896, .width = 2176, .feed_forward = 4864},
              {4, 3});
  // Wider than a batch of a row's squares.
  check_chain({.width = 5376, .activation = Epilogue::gated_gelu}, {3});
  // Three strips a half, and an odd number of chunks of which the last one has a tile for some warps only.
  check_chain({.second = DType::Q4_0, .width = 6336, .feed_forward = 2432}, {4});
  // An input that leaves little room for weights, and more strips than a pass has.
  check_chain({.second = DType::Q4_0, .query_width = 704, .width = 2144, .feed_forward = 13824}, {4, 2});
}

TEST_CASE("products of a few rows that follow each other equal the host's at one size", "[cuda][race]") {
  check_chain({.second = DType::Q4_0, .query_width = 704, .width = 2144, .feed_forward = 1184}, {4});
}

TEST_CASE("products of a few rows that are narrow equal the host's", "[cuda][program]") {
  check_chain({.query_width = 256, .width = 256, .feed_forward = 512}, {4, 2}, false);
}
