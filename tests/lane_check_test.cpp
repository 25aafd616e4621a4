// A lane that returns wrong bytes is refused by its name before a weight is loaded; one that does not is not, and the
// check leaves nothing behind.
#include "engine/residency/lane_check.h"

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/faulty_device.h"
#include "tests/generation_cases.h"
#include "tests/wrapped_device.h"

namespace genai {
namespace {

using namespace test;

constexpr SyntheticShape kShape{.layer_count = 2, .width = 128, .head_count = 2, .quantised = true};

HostDeviceOptions device_options() {
  HostDeviceOptions options;
  options.granule_bytes = std::size_t{16} << 10;
  options.threads = 1;
  return options;
}

// Copies and uploads of this stream, and products and answers of these kernels, put zeros over the first bytes of what
// they make in device memory: where the bytes come from, the lie says.
class LyingStream final : public WrappedStream {
 public:
  LyingStream(std::unique_ptr<Stream> inner, const FaultyMemory& memory, Lane lie)
      : WrappedStream(std::move(inner)), memory_(memory), lie_(lie) {}
  void upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) override {
    WrappedStream::upload(destination, source, bytes);
    if (lie_ == Lane::resident) spoil(destination);
  }
  void copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) override {
    WrappedStream::copy(destination, source, bytes);
    if (lie_ == Lane::ring && memory_.placement_at(source.address()) == Placement::host) spoil(destination);
  }
  void spoil(DevicePtr<std::byte> bytes) { WrappedStream::fill_zero(bytes, 16); }

 private:
  const FaultyMemory& memory_;
  Lane lie_;
};

class LyingKernels final : public WrappedKernels {
 public:
  LyingKernels(Kernels& inner, const FaultyMemory& memory, Lane lie)
      : WrappedKernels(inner), memory_(memory), lie_(lie) {}
  void matmul(Stream& stream, const MatmulArgs& args) override {
    WrappedKernels::matmul(stream, args);
    const bool in_place = memory_.placement_at(args.outputs[0].matrix.data.address()) == Placement::host;
    if (lie_ == Lane::zero_copy && in_place) spoil(args.outputs[0].out);
  }
  void take_answer(Stream& stream, const TakeAnswerArgs& args) override {
    WrappedKernels::take_answer(stream, args);
    if (lie_ == Lane::host) spoil(args.outputs[0].out);
  }

 private:
  // Work of this device runs at once.
  static void spoil(DevicePtr<float> result) { *reinterpret_cast<float*>(result.address()) = 0.0f; }

  const FaultyMemory& memory_;
  Lane lie_;
};

class LyingDevice final : public Device {
 public:
  explicit LyingDevice(Lane lie)
      : device_(device_options()), kernels_(device_.kernels(), device_.memory(), lie), lie_(lie) {}
  std::string name() const override { return "a device that lies"; }
  FaultyMemory& memory() override { return device_.memory(); }
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<LyingStream>(device_.create_stream(), device_.memory(), lie_);
  }
  std::unique_ptr<Event> create_event() override { return device_.create_event(); }
  std::uint64_t graph_reserve_bytes(std::size_t graph_count, std::size_t operation_count) const override {
    return device_.graph_reserve_bytes(graph_count, operation_count);
  }

 private:
  FaultyDevice device_;
  LyingKernels kernels_;
  Lane lie_;
};

struct Lie {
  Lane lane;
  OffloadMode mode;
};

ModelOptions options_of(OffloadMode mode) {
  ModelOptions options;
  options.context = 64;
  options.max_rows = 16;
  options.offload = mode;
  if (mode != OffloadMode::off) options.forced_cold = {"ffn"};
  return options;
}

}  // namespace

TEST_CASE("a lane that lies is refused by its name, with nothing left behind", "[lane_check]") {
  const GgufImage image = synthetic_model(kShape).build();
  for (const Lie lie : {Lie{Lane::resident, OffloadMode::off}, Lie{Lane::resident, OffloadMode::stream},
                        Lie{Lane::ring, OffloadMode::stream}, Lie{Lane::ring, OffloadMode::split},
                        Lie{Lane::zero_copy, OffloadMode::zero_copy}, Lie{Lane::host, OffloadMode::host},
                        Lie{Lane::host, OffloadMode::split}}) {
    INFO(lane_name(lie.lane) << " in mode " << offload_mode_name(lie.mode));
    LyingDevice device(lie.lane);
    HostDevice host(device_options());
    ModelOptions options = options_of(lie.mode);
    options.host_device = &host;
    try {
      DeviceModel model(device, image, options);
      FAIL("a lying lane was not noticed");
    } catch (const DeviceError& error) {
      CHECK(std::string(error.what()).find("the " + std::string(lane_name(lie.lane)) + " lane") == 0);
      CHECK_FALSE(error.hint().empty());
    }
    CHECK(device.memory().holds_nothing());
  }
}

TEST_CASE("a lane that lies and is not used is nobody's concern", "[lane_check]") {
  const GgufImage image = synthetic_model(kShape).build();
  HostDevice honest(device_options());
  const auto expected = DeviceModel(honest, image, options_of(OffloadMode::off)).generate({1, 2, 3}, 8).step_hashes;
  LyingDevice device(Lane::zero_copy);
  CHECK(DeviceModel(device, image, options_of(OffloadMode::stream)).generate({1, 2, 3}, 8).step_hashes == expected);
}

TEST_CASE("the check of lanes takes a few granules, and gives them back", "[lane_check]") {
  for (const bool separate_host : {false, true}) {
    FaultyDevice device(device_options());
    HostDevice host(device_options());
    ResidencyPlan plan;
    plan.lane_bytes[static_cast<int>(Lane::ring)] = 1;
    plan.lane_bytes[static_cast<int>(Lane::zero_copy)] = 1;
    plan.lane_bytes[static_cast<int>(Lane::host)] = 1;
    ResidencyArena arena(device.memory());
    check_lanes(plan, device, separate_host ? &host : nullptr, arena, Placement::host);
    CHECK(arena.committed_peak_bytes() <= 2 * device.memory().granule_bytes());
    CHECK(device.memory().holds_nothing());
  }
}

}  // namespace genai
