// cuda_bench.cpp - speed of the CUDA kernels on synthetic weights: every matrix shape of a model by itself, then whole
// dependent decode steps as one captured graph, then a prefill pass, and the same steps with one kind of operation
// only. Prints one JSON object a line; flushes each.
//   genai_cuda_bench [--model tiny|0.5b|7b|14b|32b|70b] [--type Q4_0|Q4_K_M|Q8_0] [--rows 1,2,4,8,16] [--contexts
//   1024,4096]
//                    [--prefill 512] [--skip-shapes] [--skip-parts]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_device.h"
#include "engine/device/device.h"
#include "engine/packed_layout.h"

using namespace genai;

namespace {

struct ModelShape {
  const char* name;
  int width, layers, heads, kv_heads, head_dim, feed_forward, vocabulary;
  bool bias;
};

constexpr ModelShape kModels[] = {
    {"tiny", 256, 2, 4, 2, 64, 512, 1000, true},        {"0.5b", 896, 24, 14, 2, 64, 4864, 151936, true},
    {"7b", 3584, 28, 28, 4, 128, 18944, 152064, true},  {"14b", 5120, 48, 40, 8, 128, 13824, 152064, true},
    {"32b", 5120, 64, 40, 8, 128, 27648, 152064, true}, {"70b", 8192, 80, 64, 8, 128, 28672, 128256, false}};

// Device memory that lives until the program ends.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device), stream_(device.create_stream()) {}

  DevicePtr<std::byte> take(std::size_t bytes) {
    const std::size_t granule = device_.memory().granule_bytes();
    const std::size_t rounded = (bytes + granule - 1) / granule * granule;
    const DevicePtr<std::byte> begin = device_.memory().reserve(rounded);
    for (std::size_t offset = 0; offset < rounded; offset += granule) {
      const auto id = device_.memory().create(Placement::device);
      if (!id) {
        std::fprintf(stderr, "out of device memory\n");
        std::exit(1);
      }
      device_.memory().map(begin.byte_offset(static_cast<std::int64_t>(offset)), *id);
    }
    return begin;
  }
  // Random bytes that read as finite numbers of moderate size in any format.
  DevicePtr<std::byte> take_random(std::size_t bytes) {
    const DevicePtr<std::byte> begin = take(bytes);
    if (noise_.empty()) {
      noise_.resize(std::size_t{32} << 20);
      std::uint64_t state = 12345;
      for (std::size_t i = 0; i < noise_.size(); ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        noise_[i] = static_cast<unsigned char>(state >> 56);
        if (i % 2 == 1) noise_[i] &= 0xbf;
      }
    }
    for (std::size_t offset = 0; offset < bytes; offset += noise_.size())
      stream_->upload(begin.byte_offset(static_cast<std::int64_t>(offset)), noise_.data(),
                      std::min(noise_.size(), bytes - offset));
    stream_->synchronize();
    return begin;
  }
  DevicePtr<float> floats(std::size_t count, float low, float high) {
    std::vector<float> values(count);
    std::uint64_t state = 777;
    for (float& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = low + (high - low) * static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
    }
    const DevicePtr<std::byte> begin = take(count * sizeof(float));
    stream_->upload(begin, values.data(), count * sizeof(float));
    stream_->synchronize();
    return begin.as<float>();
  }
  Stream& stream() { return *stream_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<unsigned char> noise_;
};

// Milliseconds of one launch: the median over rounds of several launches in a row.
double graph_ms(Stream& stream, Graph& graph) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int launches) {
    const auto start = Clock::now();
    for (int i = 0; i < launches; ++i) stream.launch(graph);
    stream.synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count() / launches;
  };
  run(2);
  const double once = run(2);
  const int launches = std::clamp(static_cast<int>(30.0 / once), 2, 200);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) times.push_back(run(launches));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double captured_ms(Stream& stream, const std::function<void()>& enqueue) {
  enqueue();  // loads every kernel
  stream.synchronize();
  stream.begin_capture();
  enqueue();
  const std::unique_ptr<Graph> graph = stream.end_capture();
  return graph_ms(stream, *graph);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> values;
  for (const char* at = text; *at != 0;) {
    values.push_back(std::atoi(at));
    at = std::strchr(at, ',');
    if (at == nullptr) break;
    ++at;
  }
  return values;
}

DType type_of(const std::string& mix, const char* role, int layer, int layers) {
  if (mix == "Q8_0") return DType::Q8_0;
  if (mix == "Q4_0") return DType::Q4_0;
  const bool more = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
  if (std::strcmp(role, "output") == 0) return DType::Q6_K;
  if ((std::strcmp(role, "v") == 0 || std::strcmp(role, "down") == 0) && more) return DType::Q6_K;
  return DType::Q4_K;
}

struct Layer {
  MatrixView q, k, v, o, gate_up, down;
};

class Bench {
 public:
  Bench(Device& device, const cuda::DeviceTraits& traits, const ModelShape& model, const std::string& mix, int max_rows,
        int max_positions, bool hands_over)
      : device_(device), traits_(traits), model_(model), mix_(mix), memory_(device) {
    std::size_t total = 0;
    const auto plan = [&](DType dtype, int rows, int cols) {
      MatrixView view;
      view.data = DevicePtr<const std::byte>(total);
      view.dtype = dtype;
      view.rows = rows;
      view.cols = cols;
      total += static_cast<std::size_t>(round_up(packed_bytes(dtype, rows, cols), 256));
      return view;
    };
    const int q_rows = model.heads * model.head_dim;
    const int kv_rows = model.kv_heads * model.head_dim;
    for (int i = 0; i < model.layers; ++i) {
      Layer layer;
      layer.q = plan(type_of(mix, "q", i, model.layers), q_rows, model.width);
      layer.k = plan(type_of(mix, "k", i, model.layers), kv_rows, model.width);
      layer.v = plan(type_of(mix, "v", i, model.layers), kv_rows, model.width);
      layer.o = plan(type_of(mix, "o", i, model.layers), model.width, q_rows);
      layer.gate_up = plan(type_of(mix, "gate_up", i, model.layers), 2 * model.feed_forward, model.width);
      layer.down = plan(type_of(mix, "down", i, model.layers), model.width, model.feed_forward);
      layers_.push_back(layer);
    }
    output_ = plan(type_of(mix, "output", 0, model.layers), model.vocabulary, model.width);
    weights_ = memory_.take_random(total);
    weight_bytes_ = total;
    const auto place = [&](MatrixView& view) {
      view.data = DevicePtr<const std::byte>(weights_.address() + view.data.address());
    };
    for (Layer& layer : layers_)
      for (MatrixView* view : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate_up, &layer.down}) place(*view);
    place(output_);

    const std::size_t rows = static_cast<std::size_t>(max_rows);
    norm_ = memory_.floats(static_cast<std::size_t>(std::max(model.width, model.feed_forward)), 0.5f, 1.5f);
    bias_ = memory_.floats(static_cast<std::size_t>(std::max(q_rows, model.width)), -0.1f, 0.1f);
    x_ = memory_.floats(rows * static_cast<std::size_t>(model.width), -1.0f, 1.0f);
    q_ = memory_.floats(rows * static_cast<std::size_t>(q_rows), -1.0f, 1.0f);
    k_ = memory_.floats(rows * static_cast<std::size_t>(kv_rows), -1.0f, 1.0f);
    v_ = memory_.floats(rows * static_cast<std::size_t>(kv_rows), -1.0f, 1.0f);
    attention_ = memory_.floats(rows * static_cast<std::size_t>(q_rows), -1.0f, 1.0f);
    hidden_ = memory_.floats(rows * static_cast<std::size_t>(model.feed_forward), -1.0f, 1.0f);
    logits_ = memory_.floats(16 * static_cast<std::size_t>(model.vocabulary), -1.0f, 1.0f);
    table_ =
        memory_.floats(static_cast<std::size_t>(max_positions) * static_cast<std::size_t>(model.head_dim), -1.0f, 1.0f);
    rows_ = memory_.take(rows * sizeof(StepRow)).as<StepRow>();
    tokens_ = memory_.take(16 * 4).as<std::int32_t>();
    hashes_ = memory_.take(16 * 8).as<std::uint64_t>();
    nonfinite_ = memory_.take(16 * 4).as<std::int32_t>();
    scratch_ = memory_.take(
        device.kernels().scratch_bytes({max_rows, std::max(model.feed_forward, std::max(model.width, q_rows)),
                                        model.heads, model.head_dim, max_positions}));
    max_positions_ = max_positions;
    if (!hands_over) return;
    const std::size_t bytes = device.kernels().handover_bytes(
        {1, std::max(model.feed_forward, std::max(model.width, q_rows)), model.heads, model.head_dim, max_positions});
    if (bytes == 0) return;
    handover_ = memory_.take(bytes);
    memory_.stream().fill_zero(handover_, bytes);
  }

  Memory& memory() { return memory_; }
  std::size_t weight_bytes() const { return weight_bytes_; }
  void measure_peak() {
    peak_gbps_ = cuda::measure_read_gbps(memory_.stream(), traits_, weights_, weight_bytes_);
    std::printf("{\"bench\":\"read_peak\",\"gbps\":%.0f,\"bytes\":%zu}\n", peak_gbps_, weight_bytes_);
    std::fflush(stdout);
  }

  void shapes(const std::vector<int>& row_counts) {
    const Layer& layer = layers_[static_cast<std::size_t>(model_.layers / 2)];
    for (const int rows : row_counts) {
      matrix("qkv", rows, {layer.q, layer.k, layer.v}, Epilogue::store, true);
      matrix("o", rows, {layer.o}, Epilogue::add, false);
      matrix("gate_up", rows, {layer.gate_up}, Epilogue::gated_silu, true);
      matrix("down", rows, {layer.down}, Epilogue::add, false);
      if (rows <= 16) matrix("output", rows, {output_}, Epilogue::store, true);
    }
  }

  void step(int rows, int context) {
    set_rows(rows, context, true);
    const double ms = captured_ms(memory_.stream(), [&] { enqueue_pass(rows, rows, kAll); });
    report_step("decode_step", rows, context, ms, weight_bytes_ + rows * cache_bytes(context));
  }

  // The same step with some of its operations only: where the time goes. They depend on each other as before.
  void parts(int rows, int context) {
    set_rows(rows, context, true);
    const struct {
      const char* name;
      unsigned parts;
    } cases[] = {{"matrices", kMatrices},
                 {"product_chain", kMatrices | kChain},
                 {"rotate_and_attention", kRotate | kAttention},
                 {"rotate", kRotate},
                 {"attention", kAttention},
                 {"output_and_argmax", kOutput}};
    for (const auto& part : cases) {
      const double ms = captured_ms(memory_.stream(), [&] { enqueue_pass(rows, rows, part.parts); });
      std::printf(
          "{\"bench\":\"part\",\"part\":\"%s\",\"model\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"context\":%d,"
          "\"ms\":%.4f,\"us_per_layer\":%.2f}\n",
          part.name, model_.name, mix_.c_str(), rows, context, ms, 1000.0 * ms / model_.layers);
      std::fflush(stdout);
    }
  }

  void prefill(int rows) {
    set_rows(rows, rows - 1, false);
    for (const unsigned parts : {kAll, kMatrices, kAttention}) {
      const double ms = captured_ms(memory_.stream(), [&] { enqueue_pass(rows, 1, parts); });
      std::printf(
          "{\"bench\":\"prefill\",\"part\":\"%s\",\"model\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"ms\":%.3f,"
          "\"tokens_per_second\":%.0f}\n",
          parts == kAll        ? "all"
          : parts == kMatrices ? "matrices"
                               : "attention",
          model_.name, mix_.c_str(), rows, ms, 1000.0 * rows / ms);
      std::fflush(stdout);
    }
  }

  // Two runs of the same captured steps must give the same logits: if not, something races.
  void repeat(int rows, int context) {
    std::uint64_t hashes[2] = {};
    for (std::uint64_t& hash : hashes) {
      set_rows(rows, context, true);
      reset_state();
      Stream& stream = memory_.stream();
      stream.begin_capture();
      enqueue_pass(rows, rows, kAll);
      const std::unique_ptr<Graph> graph = stream.end_capture();
      for (int i = 0; i < 20; ++i) {
        stream.launch(*graph);
        std::uint64_t part[16] = {};
        stream.download(part, hashes_.as<const std::byte>(), sizeof(std::uint64_t) * static_cast<std::size_t>(rows));
        stream.synchronize();
        for (const std::uint64_t one : part) hash = hash * 31 + one;
      }
    }
    std::printf("{\"bench\":\"repeat\",\"rows\":%d,\"context\":%d,\"equal\":%s,\"hash\":\"%016llx\"}\n", rows, context,
                hashes[0] == hashes[1] ? "true" : "false", static_cast<unsigned long long>(hashes[0]));
    std::fflush(stdout);
  }

  void allocate_cache(int sequences, int positions) {
    const int chunks = (positions + kChunkPositions - 1) / kChunkPositions;
    layer_bytes_ = 4ll * model_.kv_heads * kChunkPositions * model_.head_dim;
    chunk_bytes_ = layer_bytes_ * model_.layers;
    sequence_bytes_ = chunk_bytes_ * chunks;
    cache_ = memory_.take_random(static_cast<std::size_t>(sequence_bytes_ * sequences));
  }

 private:
  static constexpr unsigned kMatrices = 1, kRotate = 2, kAttention = 4, kOutput = 8, kAll = 15;
  // Of the projections only q, which the next product reads: every vector is handed on whole.
  static constexpr unsigned kChain = 16;

  std::size_t cache_bytes(int context) const {
    return static_cast<std::size_t>(context) * 4u * static_cast<std::size_t>(model_.kv_heads * model_.head_dim) *
           static_cast<std::size_t>(model_.layers);
  }

  void set_rows(int rows, int position, bool sequences) {
    std::vector<StepRow> values;
    for (int i = 0; i < rows; ++i)
      values.push_back({i, sequences ? position : position - rows + 1 + i, sequences ? i : 0, 0});
    memory_.stream().upload(rows_.as<std::byte>(), values.data(), values.size() * sizeof(StepRow));
    memory_.stream().synchronize();
  }

  void reset_state() {
    std::vector<float> zeros(static_cast<std::size_t>(model_.width) * 16, 0.0f);
    memory_.stream().upload(x_.as<std::byte>(), zeros.data(), zeros.size() * sizeof(float));
    memory_.stream().synchronize();
  }

  MatmulArgs product(DevicePtr<float> input, int input_width, int rows, bool norm, Epilogue epilogue) const {
    MatmulArgs args{};
    args.input = input;
    args.input_stride = input_width;
    args.row_count = rows;
    if (norm) args.norm_weight = norm_;
    args.norm_epsilon = 1e-6f;
    args.epilogue = epilogue;
    args.scratch = scratch_;
    args.handover = handover_;
    return args;
  }

  void enqueue_pass(int rows, int logit_rows, unsigned parts) {
    Kernels& kernels = device_.kernels();
    Stream& stream = memory_.stream();
    const int q_width = model_.heads * model_.head_dim;
    const int kv_width = model_.kv_heads * model_.head_dim;
    if (parts == kAll) kernels.embed(stream, {output_, rows_, rows, 1.0f, x_});
    for (int i = 0; i < model_.layers; ++i) {
      const Layer& layer = layers_[static_cast<std::size_t>(i)];
      if (parts & kMatrices) {
        MatmulArgs args = product(x_, model_.width, rows, true, Epilogue::store);
        const DevicePtr<const float> bias = model_.bias ? bias_ : DevicePtr<float>();
        args.outputs[0] = {layer.q, bias, q_, q_width};
        args.outputs[1] = {layer.k, bias, k_, kv_width};
        args.outputs[2] = {layer.v, bias, v_, kv_width};
        args.output_count = parts & kChain ? 1 : 3;
        kernels.matmul(stream, args);
      }
      const CacheView cache{cache_,         sequence_bytes_, chunk_bytes_,   layer_bytes_ * i,
                            CacheType::f16, model_.kv_heads, model_.head_dim};
      if (parts & kRotate) {
        RotateArgs args{};
        args.q = q_;
        args.k = k_;
        args.v = v_;
        args.table = table_;
        args.rotated = model_.head_dim;
        args.rows = rows_;
        args.row_count = rows;
        args.head_count = model_.heads;
        args.cache = cache;
        kernels.rotate(stream, args);
      }
      if (parts & kAttention)
        kernels.attention(stream, {q_, attention_, rows_, rows, model_.heads, 0.0883883f, 0, 0.0f, max_positions_,
                                   cache, scratch_, handover_});
      if (parts & kMatrices) {
        MatmulArgs o = product(parts & kChain ? q_ : attention_, q_width, rows, false, Epilogue::add);
        o.outputs[0] = {layer.o, {}, x_, model_.width};
        o.output_count = 1;
        kernels.matmul(stream, o);
        MatmulArgs gate_up = product(x_, model_.width, rows, true, Epilogue::gated_silu);
        gate_up.outputs[0] = {layer.gate_up, {}, hidden_, model_.feed_forward};
        gate_up.output_count = 1;
        kernels.matmul(stream, gate_up);
        MatmulArgs down = product(hidden_, model_.feed_forward, rows, false, Epilogue::add);
        down.outputs[0] = {layer.down, {}, x_, model_.width};
        down.output_count = 1;
        kernels.matmul(stream, down);
      }
    }
    if (!(parts & kOutput)) return;
    MatmulArgs last = product(x_.byte_offset(std::int64_t{4} * (rows - logit_rows) * model_.width), model_.width,
                              logit_rows, true, Epilogue::store);
    last.outputs[0] = {output_, {}, logits_, model_.vocabulary};
    last.output_count = 1;
    kernels.matmul(stream, last);
    kernels.argmax(stream, {logits_, logit_rows, model_.vocabulary, rows_, tokens_, hashes_, nonfinite_});
  }

  void report_step(const char* name, int rows, int context, double ms, std::size_t bytes) {
    const double gbps = static_cast<double>(bytes) / (1e6 * ms);
    std::printf(
        "{\"bench\":\"%s\",\"model\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"context\":%d,\"ms\":%.4f,"
        "\"steps_per_second\":%.1f,\"gbps\":%.0f,\"share_of_peak\":%.3f}\n",
        name, model_.name, mix_.c_str(), rows, context, ms, 1000.0 / ms, gbps, gbps / peak_gbps_);
    std::fflush(stdout);
  }

  // One shape again and again, over as many different places of the weights as there are, each reading what the last
  // one wrote where shapes allow.
  void matrix(const char* name, int rows, const std::vector<MatrixView>& matrices, Epilogue epilogue, bool norm) {
    std::size_t bytes = 0;
    for (const MatrixView& matrix : matrices)
      bytes += static_cast<std::size_t>(packed_bytes(matrix.dtype, matrix.rows, matrix.cols));
    const int places = static_cast<int>(std::clamp<std::size_t>(weight_bytes_ / bytes, 1, 64));
    const int cols = matrices[0].cols;
    const double ms = captured_ms(memory_.stream(),
                                  [&] {
                                    for (int i = 0; i < places; ++i) {
                                      const DevicePtr<float> input = cols == model_.width          ? x_
                                                                     : cols == model_.feed_forward ? hidden_
                                                                                                   : attention_;
                                      MatmulArgs args = product(input, cols, rows, norm, epilogue);
                                      std::uint64_t address =
                                          weights_.address() + static_cast<std::uint64_t>(i) * (bytes / 256 * 256);
                                      for (std::size_t k = 0; k < matrices.size(); ++k) {
                                        MatrixView view = matrices[k];
                                        view.data = DevicePtr<const std::byte>(address);
                                        address +=
                                            static_cast<std::uint64_t>(packed_bytes(view.dtype, view.rows, view.cols));
                                        const int width = epilogue == Epilogue::gated_silu ? view.rows / 2 : view.rows;
                                        const DevicePtr<float> out = matrices.size() > 1                ? (k == 0   ? q_
                                                                                                           : k == 1 ? k_
                                                                                                                    : v_)
                                                                     : view.rows == model_.vocabulary   ? logits_
                                                                     : epilogue == Epilogue::gated_silu ? hidden_
                                                                                                        : x_;
                                        args.outputs[k] = {view, {}, out, width};
                                      }
                                      args.output_count = static_cast<int>(matrices.size());
                                      device_.kernels().matmul(memory_.stream(), args);
                                    }
                                  }) /
                      places;
    const double gbps = static_cast<double>(bytes) / (1e6 * ms);
    std::printf(
        "{\"bench\":\"matrix\",\"name\":\"%s\",\"model\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"bytes\":%zu,"
        "\"us\":%.2f,\"gbps\":%.0f,\"share_of_peak\":%.3f}\n",
        name, model_.name, mix_.c_str(), rows, bytes, 1000.0 * ms, gbps, gbps / peak_gbps_);
    std::fflush(stdout);
  }

  Device& device_;
  const cuda::DeviceTraits traits_;
  const ModelShape model_;
  const std::string mix_;
  Memory memory_;
  std::vector<Layer> layers_;
  MatrixView output_;
  DevicePtr<std::byte> weights_;
  std::size_t weight_bytes_ = 0;
  double peak_gbps_ = 1.0;
  DevicePtr<float> norm_, bias_, x_, q_, k_, v_, attention_, hidden_, logits_, table_;
  DevicePtr<StepRow> rows_;
  DevicePtr<std::int32_t> tokens_, nonfinite_;
  DevicePtr<std::uint64_t> hashes_;
  DevicePtr<std::byte> scratch_, handover_, cache_;
  std::int64_t layer_bytes_ = 0, chunk_bytes_ = 0, sequence_bytes_ = 0;
  int max_positions_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string model_name = "14b";
  std::string mix = "Q4_0";
  std::vector<int> row_counts = {1, 2, 4, 8, 16};
  std::vector<int> contexts = {1024, 4096, 16384};
  int prefill = 512;
  bool with_shapes = true;
  bool with_parts = true;
  bool hands_over = true;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--model")
      model_name = value, ++i;
    else if (flag == "--type")
      mix = value, ++i;
    else if (flag == "--rows")
      row_counts = numbers(value), ++i;
    else if (flag == "--contexts")
      contexts = numbers(value), ++i;
    else if (flag == "--prefill")
      prefill = std::atoi(value), ++i;
    else if (flag == "--no-handover")
      hands_over = false;
    else if (flag == "--skip-shapes")
      with_shapes = false;
    else if (flag == "--skip-parts")
      with_parts = false;
    else {
      std::fprintf(stderr, "unknown option %s\n", flag.c_str());
      return 2;
    }
  }
  const auto model = std::find_if(std::begin(kModels), std::end(kModels),
                                  [&](const ModelShape& shape) { return model_name == shape.name; });
  if (model == std::end(kModels)) {
    std::fprintf(stderr, "unknown model %s\n", model_name.c_str());
    return 2;
  }
  cuda::OpenedDevice opened = cuda::open_cuda_device(0);
  if (opened.device == nullptr) {
    std::fprintf(stderr, "SKIPPED: %s\n", opened.problem.c_str());
    return 77;
  }
  const int most_rows = std::max(*std::max_element(row_counts.begin(), row_counts.end()), prefill);
  const int longest = *std::max_element(contexts.begin(), contexts.end()) + 64;
  const auto start = std::chrono::steady_clock::now();
  Bench bench(*opened.device, opened.traits, *model, mix, std::max(most_rows, 16), std::max(longest, prefill + 64),
              hands_over);
  const double load_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const int sequences = std::max(1, *std::max_element(row_counts.begin(), row_counts.end()));
  bench.allocate_cache(sequences, std::max(longest, prefill + 64));
  std::printf(
      "{\"bench\":\"setup\",\"device\":\"%s\",\"sm_count\":%d,\"driver\":%d,\"model\":\"%s\",\"type\":\"%s\","
      "\"weight_bytes\":%zu,\"fill_ms\":%.0f}\n",
      opened.device->name().c_str(), opened.traits.sm_count, opened.traits.driver_version, model->name, mix.c_str(),
      bench.weight_bytes(), load_ms);
  std::fflush(stdout);
  bench.measure_peak();
  for (const int context : contexts) bench.step(1, context);
  for (const int rows : row_counts)
    if (rows > 1) bench.step(rows, contexts.front());
  bench.repeat(1, contexts.front());
  if (row_counts.back() > 1) bench.repeat(row_counts.back(), contexts.front());
  if (prefill > 0) bench.prefill(prefill);
  if (with_parts)
    for (const int context : contexts) bench.parts(1, context);
  if (with_shapes) bench.shapes(row_counts);
  return 0;
}
