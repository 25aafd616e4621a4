// decoder_case.h - a small decoder of random weights as calls on the seam of a device, one row a step or a few: what a
// model enqueues for a token, or for one of each sequence, without a model. Knows no backend.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/kernel_cases.h"

namespace genai::test {

struct DecoderCase {
  DType dtype = DType::Q4_0;
  DType second = DType::Q4_0;  // of v, down and the output matrix
  std::int32_t heads = 8;
  std::int32_t kv_heads = 8;
  std::int32_t head_dim = 64;
  std::int32_t rotated = 64;
  std::int32_t width = 512;
  std::int32_t feed_forward = 1024;
  std::int32_t vocabulary = 1003;
  std::int32_t layers = 3;
  std::int32_t window = 0;
  float soft_cap = 0.0f;  // of scores
  float scale = 0.125f;   // of scores: so that many positions count
  bool head_norms = false;
  bool bias = false;
  bool interleaved = false;
  Epilogue activation = Epilogue::gated_silu;
  std::int32_t sequences = 1;
  std::int32_t max_positions = 4160;
  std::int32_t row_count = 1;  // of a step
  CacheType cache_type = CacheType::f16;
  std::uint64_t seed = 1;

  std::int32_t query_width() const { return heads * head_dim; }
  std::int32_t kv_width() const { return kv_heads * head_dim; }
  CacheShapeCase cache(std::int32_t layer) const {
    return {.type = cache_type,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .sequences = sequences,
            .max_positions = max_positions,
            .layers = layers,
            .layer = layer};
  }
  std::int64_t chunk_offset(const StepRow& row) const {
    return row.sequence * cache(0).sequence_bytes() + row.position / kChunkPositions * cache(0).chunk_bytes();
  }
  ScratchLimits limits() const {
    return {.row_count = row_count,
            .input_width = std::max({width, feed_forward, query_width()}),
            .head_count = heads,
            .head_dim = head_dim,
            .max_positions = max_positions};
  }
};

inline std::string describe(const DecoderCase& shape) {
  std::string text(dtype_info(shape.dtype).name);
  return text.append(" ").append(dtype_info(shape.second).name) + " heads " + std::to_string(shape.heads) + " over " +
         std::to_string(shape.kv_heads) + " head_dim " + std::to_string(shape.head_dim) + " width " +
         std::to_string(shape.width) + " window " + std::to_string(shape.window) + " rows " +
         std::to_string(shape.row_count);
}

struct DecoderMatrix {
  DType dtype;
  std::int32_t rows;
  std::int32_t cols;
  std::vector<std::byte> bytes;  // packed
};

struct DecoderData {
  struct Layer {
    DecoderMatrix q, k, v, o, gate_up, down;
    std::vector<float> q_bias, k_bias, v_bias, q_norm, k_norm, attention_norm, feed_forward_norm;
  };
  std::vector<Layer> layers;
  DecoderMatrix logits;
  std::vector<float> logit_norm;
  std::vector<float> table;
};

inline DecoderData decoder_data(const DecoderCase& shape) {
  Random random(shape.seed);
  const auto matrix = [&](DType dtype, std::int32_t rows, std::int32_t cols) {
    return DecoderMatrix{dtype, rows, cols, packed({random_file_matrix(dtype, rows, cols, random)->matrix, {}})};
  };
  const auto norm = [&](std::int32_t width) {
    std::vector<float> weights(static_cast<std::size_t>(width));
    for (float& weight : weights) weight = random.uniform(0.5f, 1.5f);
    return weights;
  };
  DecoderData data;
  for (std::int32_t i = 0; i < shape.layers; ++i)
    data.layers.push_back({.q = matrix(shape.dtype, shape.query_width(), shape.width),
                           .k = matrix(shape.dtype, shape.kv_width(), shape.width),
                           .v = matrix(shape.second, shape.kv_width(), shape.width),
                           .o = matrix(shape.dtype, shape.width, shape.query_width()),
                           .gate_up = matrix(shape.dtype, 2 * shape.feed_forward, shape.width),
                           .down = matrix(shape.second, shape.width, shape.feed_forward),
                           .q_bias = random.values(shape.query_width()),
                           .k_bias = random.values(shape.kv_width()),
                           .v_bias = random.values(shape.kv_width()),
                           .q_norm = norm(shape.head_dim),
                           .k_norm = norm(shape.head_dim),
                           .attention_norm = norm(shape.width),
                           .feed_forward_norm = norm(shape.width)});
  data.logits = matrix(shape.second, shape.vocabulary, shape.width);
  data.logit_norm = norm(shape.width);
  for (std::int64_t i = 0; i < std::int64_t{shape.max_positions} * shape.rotated / 2; ++i) {
    const float angle = random.uniform(-3.2f, 3.2f);
    data.table.push_back(std::cos(angle));
    data.table.push_back(std::sin(angle));
  }
  return data;
}

// What a step leaves behind. Vectors that every layer writes are the last one's.
struct DecoderState {
  std::vector<float> x, q, k, v, attention, hidden, logits;
  std::vector<std::byte> chunk;  // of the cache, with the first row's position
};

inline void check_states(const DecoderState& expected, const DecoderState& found) {
  CHECK(first_difference(expected.x, found.x) == -1);
  CHECK(first_difference(expected.q, found.q) == -1);
  CHECK(first_difference(expected.k, found.k) == -1);
  CHECK(first_difference(expected.v, found.v) == -1);
  CHECK(first_difference(expected.attention, found.attention) == -1);
  CHECK(first_difference(expected.hidden, found.hidden) == -1);
  CHECK(first_difference(expected.logits, found.logits) == -1);
  CHECK((expected.chunk == found.chunk));
}

class Decoder {
 public:
  // `data` outlives this object.
  Decoder(Device& device, const DecoderCase& shape, const DecoderData& data)
      : kernels_(device.kernels()), shape_(shape), buffers_(device) {
    for (const DecoderData::Layer& layer : data.layers)
      layers_.push_back({put(layer.q), put(layer.k), put(layer.v), put(layer.o), put(layer.gate_up), put(layer.down),
                         put_bias(layer.q_bias), put_bias(layer.k_bias), put_bias(layer.v_bias),
                         buffers_.put(layer.q_norm), buffers_.put(layer.k_norm), buffers_.put(layer.attention_norm),
                         buffers_.put(layer.feed_forward_norm)});
    logit_matrix_ = put(data.logits);
    logit_norm_ = buffers_.put(data.logit_norm);
    table_ = buffers_.put(data.table);
    rows_ = buffers_.take<StepRow>(shape.row_count);
    x_ = take_rows(shape.width);
    q_ = take_rows(shape.query_width());
    k_ = take_rows(shape.kv_width());
    v_ = take_rows(shape.kv_width());
    attention_ = take_rows(shape.query_width());
    hidden_ = take_rows(shape.feed_forward);
    logits_ = take_rows(shape.vocabulary);
    cache_bytes_ = shape.sequences * shape.cache(0).sequence_bytes();
    cache_ = buffers_.take<std::byte>(cache_bytes_);
    scratch_ = buffers_.take<std::byte>(static_cast<std::int64_t>(kernels_.scratch_bytes(shape.limits())));
    const std::size_t handover_bytes = kernels_.handover_bytes(shape.limits());
    if (handover_bytes == 0) return;
    handover_ = buffers_.take<std::byte>(static_cast<std::int64_t>(handover_bytes));
    buffers_.stream().fill_zero(handover_, handover_bytes);
    buffers_.stream().synchronize();
  }

  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Stream& stream() { return buffers_.stream(); }
  bool hands_over() const { return static_cast<bool>(handover_); }
  bool guards_intact() { return buffers_.guards_intact(); }

  // Host memory is read until the stream has passed.
  void set_input(const StepRow& row, const std::vector<float>& x) { set_input(&row, x); }
  void set_input(const StepRow* rows, const std::vector<float>& x) {
    stream().upload(rows_.as<std::byte>(), rows, static_cast<std::size_t>(shape_.row_count) * sizeof *rows);
    stream().upload(x_.as<std::byte>(), x.data(), x.size() * sizeof(float));
  }
  void set_cache(const std::vector<std::byte>& bytes) { stream().upload(cache_, bytes.data(), bytes.size()); }

  // The calls of one step.
  virtual void enqueue() {
    for (std::int32_t i = 0; i < shape_.layers; ++i) enqueue_layer(layers_[static_cast<std::size_t>(i)], i);
    MatmulArgs args = product(x_, logit_norm_);
    args.soft_cap = 3000.0f;
    add_output(args, logit_matrix_, {}, logits_);
    multiply(args);
  }

  std::vector<std::byte> cache() { return buffers_.get(cache_, cache_bytes_); }
  DecoderState state(const StepRow& row) {
    return {get_rows(x_, shape_.width),
            get_rows(q_, shape_.query_width()),
            get_rows(k_, shape_.kv_width()),
            get_rows(v_, shape_.kv_width()),
            get_rows(attention_, shape_.query_width()),
            get_rows(hidden_, shape_.feed_forward),
            get_rows(logits_, shape_.vocabulary),
            buffers_.get(cache_.byte_offset(shape_.chunk_offset(row)), shape_.cache(0).chunk_bytes())};
  }

 protected:
  // What lies where on the device.
  struct PlacedMatrix {
    MatrixView view;
    const std::vector<std::byte>& bytes;
  };
  struct PlacedBias {
    DevicePtr<const float> place;
    const std::vector<float>& values;
  };
  const std::vector<PlacedMatrix>& matrices() const { return matrices_; }
  const std::vector<PlacedBias>& biases() const { return biases_; }

  virtual void multiply(const MatmulArgs& args) { kernels_.matmul(stream(), args); }

 private:
  struct Layer {
    MatrixView q, k, v, o, gate_up, down;
    DevicePtr<const float> q_bias, k_bias, v_bias, q_norm, k_norm, attention_norm, feed_forward_norm;
  };

  DevicePtr<float> take_rows(std::int32_t width) {
    return buffers_.take<float>(std::int64_t{shape_.row_count} * width);
  }
  std::vector<float> get_rows(DevicePtr<float> vector, std::int32_t width) {
    return buffers_.get(vector, std::int64_t{shape_.row_count} * width);
  }
  MatrixView put(const DecoderMatrix& matrix) {
    const MatrixView view{buffers_.put(matrix.bytes), matrix.dtype, matrix.rows, matrix.cols};
    matrices_.push_back({view, matrix.bytes});
    return view;
  }
  DevicePtr<const float> put_bias(const std::vector<float>& values) {
    biases_.push_back({buffers_.put(values), values});
    return biases_.back().place;
  }
  MatmulArgs product(DevicePtr<const float> input, DevicePtr<const float> norm_weight) const {
    MatmulArgs args{};
    args.input = input;
    args.row_count = shape_.row_count;
    args.norm_weight = norm_weight;
    args.norm_epsilon = 1e-5f;
    args.epilogue = Epilogue::store;
    args.scratch = scratch_;
    args.handover = handover_;
    return args;
  }
  static void add_output(MatmulArgs& args, const MatrixView& matrix, DevicePtr<const float> bias,
                         DevicePtr<float> out) {
    args.input_stride = matrix.cols;
    args.outputs[args.output_count] = {matrix, bias, out, matrix.rows};
    ++args.output_count;
  }

  void enqueue_layer(const Layer& layer, std::int32_t index) {
    const auto bias = [this](DevicePtr<const float> values) { return shape_.bias ? values : DevicePtr<const float>(); };
    MatmulArgs qkv = product(x_, layer.attention_norm);
    add_output(qkv, layer.q, bias(layer.q_bias), q_);
    add_output(qkv, layer.k, bias(layer.k_bias), k_);
    add_output(qkv, layer.v, bias(layer.v_bias), v_);
    multiply(qkv);

    RotateArgs rotate{};
    rotate.q = q_;
    rotate.k = k_;
    rotate.v = v_;
    if (shape_.head_norms) {
      rotate.q_norm = layer.q_norm;
      rotate.k_norm = layer.k_norm;
    }
    rotate.norm_epsilon = 1e-6f;
    rotate.table = table_;
    rotate.rotated = shape_.rotated;
    rotate.interleaved = shape_.interleaved;
    rotate.rows = rows_;
    rotate.row_count = shape_.row_count;
    rotate.head_count = shape_.heads;
    rotate.cache = shape_.cache(index).view(cache_);
    kernels_.rotate(stream(), rotate);

    AttentionArgs attention{};
    attention.q = q_;
    attention.out = attention_;
    attention.rows = rows_;
    attention.row_count = shape_.row_count;
    attention.head_count = shape_.heads;
    attention.scale = shape_.scale;
    attention.window = index % 2 == 0 ? shape_.window : 0;
    attention.soft_cap = shape_.soft_cap;
    attention.max_positions = shape_.max_positions;
    attention.cache = rotate.cache;
    attention.scratch = scratch_;
    attention.handover = handover_;
    kernels_.attention(stream(), attention);

    enqueue_product(layer.o, attention_, {}, Epilogue::add, x_);
    enqueue_product(layer.gate_up, x_, layer.feed_forward_norm, shape_.activation, hidden_);
    enqueue_product(layer.down, hidden_, {}, Epilogue::add, x_);
  }
  void enqueue_product(const MatrixView& matrix, DevicePtr<const float> input, DevicePtr<const float> norm_weight,
                       Epilogue epilogue, DevicePtr<float> out) {
    MatmulArgs args = product(input, norm_weight);
    args.epilogue = epilogue;
    add_output(args, matrix, {}, out);
    args.outputs[0].out_stride = output_width(args.outputs[0], epilogue);
    multiply(args);
  }

  Kernels& kernels_;
  const DecoderCase shape_;
  DeviceBuffers buffers_;
  std::vector<PlacedMatrix> matrices_;
  std::vector<PlacedBias> biases_;
  std::vector<Layer> layers_;
  MatrixView logit_matrix_;
  DevicePtr<const float> logit_norm_, table_;
  DevicePtr<StepRow> rows_;
  DevicePtr<float> x_, q_, k_, v_, attention_, hidden_, logits_;
  DevicePtr<std::byte> cache_, scratch_, handover_;
  std::int64_t cache_bytes_ = 0;
};

// Keys and values of positions that no step has written, as earlier ones would have: those of `sequence` from `first`
// up to before `end`.
inline void fill_cache(std::vector<std::byte>& cache, const DecoderCase& shape, std::int32_t sequence,
                       std::int32_t first, std::int32_t end, Random& random) {
  std::vector<std::uint16_t> pattern(65521);
  for (std::uint16_t& half : pattern) half = float_to_half(random.uniform(-2.0f, 2.0f));
  std::size_t next = 0;
  const auto put = [&](std::int64_t offset, std::size_t count) {
    for (std::size_t done = 0; done < count;) {
      const std::size_t some = std::min(count - done, pattern.size() - next);
      std::memcpy(cache.data() + offset + static_cast<std::int64_t>(2 * done), pattern.data() + next, 2 * some);
      next = (next + some) % pattern.size();
      done += some;
    }
  };
  const CacheShapeCase whole = shape.cache(0);
  while (first < end) {
    if (first % kChunkPositions == 0 && first + kChunkPositions <= end) {
      put(shape.chunk_offset({0, first, sequence, 0}), static_cast<std::size_t>(whole.chunk_bytes() / 2));
      first += kChunkPositions;
      continue;
    }
    for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
      const CacheShapeCase one = shape.cache(layer);
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
        for (std::int32_t i = 0; i < shape.head_dim; i += 8) put(one.key_offset(sequence, first, head, i), 8);
        put(one.value_offset(sequence, first, head, 0), static_cast<std::size_t>(shape.head_dim));
      }
    }
    ++first;
  }
}

}  // namespace genai::test
