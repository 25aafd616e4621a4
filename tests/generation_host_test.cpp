// Long generations on the host device.
#include "engine/host/host_device.h"
#include "tests/generation_cases.h"
#include "tests/model_support.h"

using namespace genai;
using namespace genai::test;

namespace {

HostDeviceOptions small_device(std::size_t granule_bytes) {
  HostDeviceOptions options;
  options.granule_bytes = granule_bytes;
  options.threads = 1;
  return options;
}

}  // namespace

TEST_CASE("a graph is captured once over 4,096 tokens, and the cache grows in place", "[generation]") {
  for (const std::size_t granule_bytes : {std::size_t{16} << 10, std::size_t{64} << 10}) {
    if (kSanitized && granule_bytes > (std::size_t{16} << 10)) break;
    HostDevice device(small_device(granule_bytes));
    check_long_generation(device, {.layer_count = 2, .width = 32, .head_count = 2, .head_dim = 16, .quantised = true});
  }
}

TEST_CASE("time and bytes of steps on the device are counted for each step", "[generation]") {
  HostDevice device(small_device(std::size_t{64} << 10));
  // Every sixth layer of this architecture sees all, the others a window.
  const SyntheticShape shape{.arch = "gemma3", .layer_count = 6, .head_dim = 32, .window = 8};
  ModelOptions options;
  options.context = 64;
  options.max_rows = 16;
  options.cache_type = CacheType::f32;
  for (const bool graph : {true, false}) {
    DeviceModel model(device, synthetic_model(shape).build(), options, graph);
    for (int round = 0; round < 2; ++round) {  // nothing is left over for the second
      model.generate(prompt_of(5, 96), 11);
      const DecodeCounters& counters = model.loop->counters();
      REQUIRE(counters.decode_steps == 10);
      CHECK(counters.device_time.steps == 10);
      CHECK(counters.device_time.seconds > 0.0);
      CHECK(counters.device_time.seconds <= *counters.decode_seconds);
      // Steps stand at positions 5 to 14 and see 6 to 15 positions; keys and values of one in one layer are 2 * 32 * 4.
      const std::uint64_t all = (6 + 15) * 10 / 2;
      const std::uint64_t in_window = 6 + 7 + 8 * 8;
      const std::uint64_t weights = counters.decode_traffic.read_bytes[static_cast<std::size_t>(Lane::resident)];
      CHECK(weights > 0);
      CHECK(counters.device_time.read_bytes == weights + (5 * in_window + all) * 2 * 32 * 4);
    }
    model.generate(prompt_of(5, 96), 1);  // no step
    CHECK(model.loop->counters().device_time.steps == 0);
  }
}

TEST_CASE("rows that the host computes are none that the device reads from its memory", "[generation]") {
  HostDevice device(small_device(std::size_t{64} << 10));
  ModelOptions options;
  options.context = 64;
  options.max_rows = 16;
  options.forced_cold = {"ffn"};
  for (const OffloadMode mode : {OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host}) {
    options.offload = mode;
    DeviceModel model(device, synthetic_model({}).build(), options);
    model.generate(prompt_of(1, 96), 2);
    const DecodeCounters& counters = model.loop->counters();
    const auto read = [&](Lane lane) { return counters.decode_traffic.read_bytes[static_cast<std::size_t>(lane)]; };
    const std::uint64_t cache_bytes = 2 * 2 * 64 * 2;  // two positions of one layer, f16
    CHECK(counters.device_time.read_bytes == read(Lane::resident) + read(Lane::ring) + cache_bytes);
    CHECK((read(Lane::ring) > 0) == (mode == OffloadMode::stream));
  }
}

TEST_CASE("where page-locked memory is refused after some granules, pageable memory gives the same bits",
          "[generation]") {
  FaultyDevice device(small_device(4096));
  HostDevice reference(small_device(4096));
  check_refused_pinning(device, reference,
                        {.width = 64, .head_count = 4, .feed_forward_width = 256, .quantised = true});
  CHECK(device.memory().holds_nothing());
}
