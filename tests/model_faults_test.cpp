// Whatever call for memory fails while a model is loaded and generates: the failure is told by its type, what was taken
// is given back, and a model that could be loaded goes on to give its bits.
#include <new>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/failing_heap.h"
#include "tests/faulty_device.h"
#include "tests/generation_cases.h"
#include "tests/model_support.h"

namespace genai {
namespace {

using namespace test;
using Call = FaultyMemory::Call;

constexpr SyntheticShape kShape{.width = 128, .head_count = 2, .quantised = true};

HostDeviceOptions device_options() {
  HostDeviceOptions options;
  options.granule_bytes = std::size_t{16} << 10;
  options.capacity_bytes = std::uint64_t{4} << 20;
  options.threads = 1;
  return options;
}

struct Arm {
  OffloadMode mode;
  Allocator allocator = Allocator::arena;
  bool can_pin = true;
};

ModelOptions options_of(const Arm& arm, Device& host) {
  ModelOptions options;
  options.context = 192;
  options.max_rows = 16;
  options.offload = arm.mode;
  options.allocator = arm.allocator;
  options.host_device = &host;
  if (arm.mode != OffloadMode::off) options.forced_cold = {"ffn", "attn_k"};
  return options;
}

// The cache grows while the prompt is read, and while steps are replayed.
std::vector<std::uint64_t> hashes_of(DeviceModel& model) { return model.generate(prompt_of(61, 96), 7).step_hashes; }

}  // namespace

TEST_CASE("whichever memory call of a model fails, nothing leaks and what can go on gives the same bits", "[faults]") {
  const GgufImage image = synthetic_model(kShape).build();
  HostDevice host(device_options());
  HostDevice resident_device(device_options());
  DeviceModel resident(resident_device, image, options_of({OffloadMode::off}, host));
  const std::vector<std::uint64_t> expected = hashes_of(resident);

  for (const Arm& arm : {Arm{OffloadMode::off}, Arm{OffloadMode::stream}, Arm{OffloadMode::split},
                         Arm{OffloadMode::zero_copy, Allocator::arena, false}, Arm{OffloadMode::off, Allocator::plain},
                         Arm{OffloadMode::split, Allocator::plain}}) {
    if (kSanitized && arm.mode != OffloadMode::split && arm.can_pin) continue;
    for (const Call call :
         {Call::create_device, Call::create_host, Call::create_pageable, Call::map, Call::reserve, Call::allocate}) {
      std::uint64_t calls = 0;
      for (bool has_failed = true; has_failed; ++calls) {
        INFO("mode " << offload_mode_name(arm.mode) << ", " << allocator_name(arm.allocator) << ", call "
                     << static_cast<int>(call) << ", time " << calls);
        HostDeviceOptions faulty_options = device_options();
        if (!arm.can_pin) faulty_options.pinned_capacity_bytes = 0;
        FaultyDevice device(faulty_options);
        device.memory().fail(call, calls);
        std::optional<DeviceModel> model;
        try {
          model.emplace(device, image, options_of(arm, host));
          const std::vector<std::uint64_t> hashes = hashes_of(*model);
          CHECK(hashes == expected);  // also where memory could not be locked, and there was another way
        } catch (const DeviceError&) {
          REQUIRE_FALSE(device.memory().will_fail(call));
          if (model) CHECK(hashes_of(*model) == expected);
        }
        has_failed = !device.memory().will_fail(call);
        if (model && arm.allocator == Allocator::arena)
          CHECK(model->model->arena().committed_device_bytes() + model->model->arena().committed_host_bytes() +
                    model->model->arena().committed_pageable_bytes() ==
                static_cast<std::uint64_t>(device.memory().live_granules()) * device.memory().granule_bytes());
        model.reset();
        CHECK(device.memory().holds_nothing());
      }
      // Each arm makes these calls; that each of them was made to fail, the loop has seen.
      const bool plain = arm.allocator == Allocator::plain;
      const bool is_made = call == Call::allocate          ? plain
                           : plain                         ? false
                           : call == Call::create_host     ? arm.mode != OffloadMode::off
                           : call == Call::create_pageable ? !arm.can_pin
                                                           : true;
      CHECK((calls > 1) == is_made);
    }
  }
}

TEST_CASE("a heap without memory ends a load as what it is, and leaves no granule behind", "[faults]") {
  if (kSanitized) return;
  const GgufImage image = synthetic_model(kShape).build();
  HostDevice host(device_options());
  HostDevice device(device_options());
  const std::uint64_t free_bytes = device.memory().info().free_bytes.value();
  const Arm arm{OffloadMode::stream};
  int failures = 0;
  for (long call = 0;; ++call) {
    bool has_failed = false;
    INFO("allocation " << call);
    try {
      const ModelOptions options = options_of(arm, host);
      const GgufFile file(image.bytes, "synthetic");
      const ModelConfig config = read_model_config(file);
      set_allocations_left(call);
      DeviceModel model(device, file, config, options);
      hashes_of(model);
      has_failed = allocations_left() < 0;
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
    set_allocations_left(-1);
    CHECK(device.memory().info().free_bytes == free_bytes);
    if (!has_failed) break;
    ++failures;
  }
  CHECK(failures > 500);
}

}  // namespace genai
