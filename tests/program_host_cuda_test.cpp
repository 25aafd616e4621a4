// Steps of a decoder on a GPU of which host cores compute the last rows of every product, inside the kernel that runs
// the step: every vector and every byte of the cache is that of the host alone.
#include <map>

#include "engine/host/host_device.h"
#include "engine/residency/host_lane.h"
#include "engine/residency/residency_arena.h"
#include "tests/decoder_case.h"
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;

namespace {

// A quarter of the strips of each matrix are computed by `host`.
class SharedDecoder final : public Decoder {
 public:
  SharedDecoder(Device& device, Device& host, const DecoderCase& shape, const DecoderData& data)
      : Decoder(device, shape, data), device_(device), arena_(device.memory()) {
    std::size_t cold_bytes = 0;
    for (const PlacedMatrix& matrix : matrices()) cold_bytes += host_bytes(matrix);
    cold_ = arena_.reserve(MemoryKind::cold, cold_bytes, Placement::host);
    cold_.commit(0, cold_bytes);
    finished_ = arena_.reserve(MemoryKind::workspace, sizeof(std::uint32_t));
    finished_.commit(0, sizeof(std::uint32_t));
    const std::int32_t widest = std::max({shape.width, shape.feed_forward, shape.query_width()});
    lane_ = std::make_unique<HostLane>(device, host, arena_, finished_.base().as<std::uint32_t>(),
                                       HostLaneLimits{.input_width = widest,
                                                      .result_width = std::max(3 * widest, shape.vocabulary),
                                                      .max_products = static_cast<std::int32_t>(matrices().size())});
    for (const PlacedBias& bias : biases()) lane_->keep_copy(bias.place, bias.values);
    std::int64_t offset = 0;
    for (const PlacedMatrix& matrix : matrices()) {
      const DevicePtr<std::byte> place = cold_.base().byte_offset(offset);
      const std::size_t bytes = host_bytes(matrix);
      stream().upload(place, matrix.bytes.data() + matrix.bytes.size() - bytes, bytes);
      host_rows_[matrix.view.data.address()] = place;
      offset += static_cast<std::int64_t>(bytes);
    }
    stream().synchronize();
  }

  void enqueue() override {
    Decoder::enqueue();
    lane_->end_pass(stream());
  }
  void rethrow_failure() { lane_->rethrow_failure(); }
  std::uint32_t request_count() const { return lane_->request_count(); }

 private:
  static std::int64_t host_strips(const MatrixView& matrix) { return strip_count(matrix.rows) / 4; }
  static std::size_t host_bytes(const PlacedMatrix& matrix) {
    return static_cast<std::size_t>(host_strips(matrix.view) * strip_bytes(matrix.view.dtype, matrix.view.cols));
  }

  void multiply(const MatmulArgs& args) override {
    MatmulArgs own = args;
    MatmulArgs host = args;
    for (int i = 0; i < args.output_count; ++i) {
      const MatmulOutput& output = args.outputs[i];
      const std::int64_t strips = strip_count(output.matrix.rows) - host_strips(output.matrix);
      const auto rows = static_cast<std::int32_t>(strips * kStripRows);
      own.outputs[i].matrix.rows = rows;
      host.outputs[i].matrix.rows = output.matrix.rows - rows;
      host.outputs[i].matrix.data = host_rows_.at(output.matrix.data.address());
      if (output.bias) host.outputs[i].bias = output.bias + rows;
      host.outputs[i].out = output.out + output_width(own.outputs[i], args.epilogue);
    }
    lane_->ask(stream(), reinterpret_cast<const void*>(args.outputs[0].matrix.data.address()), host);
    device_.kernels().matmul(stream(), own);
    lane_->take(stream());
  }

  Device& device_;
  ResidencyArena arena_;
  MemoryRange cold_, finished_;
  std::map<std::uint64_t, DevicePtr<const std::byte>> host_rows_;  // by the matrix on the device
  std::unique_ptr<HostLane> lane_;
};

std::vector<DecoderCase> shared_cases() {
  return {
      {.dtype = DType::Q4_0, .second = DType::Q6_K, .heads = 14, .kv_heads = 2, .width = 768, .bias = true, .seed = 1},
      {.dtype = DType::Q4_K, .second = DType::Q4_K, .width = 1024, .head_norms = true, .seed = 2},
      {.dtype = DType::Q8_0, .second = DType::Q8_0, .width = 640, .layers = 4, .bias = true, .seed = 3},
      {.dtype = DType::Q4_1,
       .second = DType::Q4_1,
       .heads = 9,
       .kv_heads = 3,
       .width = 576,
       .feed_forward = 1536,
       .activation = Epilogue::gated_gelu,
       .seed = 4},
      {.heads = 6, .kv_heads = 2, .width = 128, .feed_forward = 256, .vocabulary = 320, .seed = 5}};
}

// `steps` steps of `shape`, of which host cores compute a part.
void check_shared(Device& device, DecoderCase shape, std::int32_t steps) {
  shape.max_positions = 256;
  INFO(describe(shape));
  HostDeviceOptions options;
  options.threads = 3;
  HostDevice host(options);
  const DecoderData data = decoder_data(shape);
  Decoder reference(fast_host_device(), shape, data);
  SharedDecoder found(device, host, shape, data);
  found.stream().begin_capture();
  found.enqueue();
  const std::unique_ptr<Graph> graph = found.stream().end_capture();
  // The program, and the count of its requests.
  CHECK((!found.hands_over() || graph->node_count() == 2));

  Random random(shape.seed);
  const std::vector<std::byte> empty(reference.cache().size());
  reference.set_cache(empty);
  found.set_cache(empty);
  for (std::int32_t position = 0; position < steps; ++position) {
    const StepRow row = {0, position, 0, 0};
    const std::vector<float> x = random.values(shape.width);
    reference.set_input(row, x);
    reference.enqueue();
    found.set_input(row, x);
    if (position % 8 == 7)
      found.enqueue();
    else
      found.stream().launch(*graph);
    found.stream().synchronize();  // x is read until then
    if (position != 0 && position + 1 != steps) continue;
    INFO("position " << position);
    check_states(reference.state(row), found.state(row));
  }
  found.rethrow_failure();
  CHECK(found.request_count() ==
        static_cast<std::uint32_t>(steps) * (4 * static_cast<std::uint32_t>(shape.layers) + 1));
  CHECK((reference.cache() == found.cache()));
  CHECK(found.guards_intact());
}

}  // namespace

TEST_CASE("host cores compute rows inside a CUDA program, in every product of a decoder", "[cuda][program]") {
  const std::unique_ptr<Device> device = cuda::open_cuda_device(0).device;
  for (const DecoderCase& shape : shared_cases()) check_shared(*device, shape, 70);
}

TEST_CASE("host cores compute rows inside a CUDA program of a narrow decoder", "[cuda][race]") {
  const std::unique_ptr<Device> device = cuda::open_cuda_device(0).device;
  check_shared(*device, shared_cases().back(), 4);
}
