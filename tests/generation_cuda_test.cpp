// Whole models on a CUDA device: the host's bits in every memory, and one graph over a long text.
#include <atomic>

#include "cuda/cuda_device.h"
#include "engine/host/host_device.h"
#include "engine/host/host_limits.h"
#include "engine/host/host_memory.h"
#include "tests/generation_cases.h"

using namespace genai;
using namespace genai::test;

namespace {

std::unique_ptr<HostDevice> host_device() {
  HostDeviceOptions options;
  options.threads = default_thread_count().count;
  return std::make_unique<HostDevice>(options);
}

std::unique_ptr<VirtualMemory> pageable_memory(std::size_t granule_bytes) {
  static const std::atomic<int> kNoCaptures{0};
  return std::make_unique<HostMemory>(HostMemoryOptions{.granule_bytes = granule_bytes}, kNoCaptures);
}

}  // namespace

TEST_CASE("a model on CUDA gives the host's bits in every memory, by graph and by single calls", "[cuda][generation]") {
  const auto device = cuda::open_cuda_device(0).device;
  const auto host = host_device();
  SyntheticShape shape{.layer_count = 3, .width = 128, .head_count = 6, .kv_head_count = 2, .feed_forward_width = 256};
  shape.vocabulary = 320;
  for (const bool quantised : {true, false}) {
    shape.quantised = quantised;
    check_every_memory(*device, *host, shape);
  }
  shape.arch = "gemma3";
  shape.layer_count = 6;
  shape.window = 64;
  shape.quantised = true;
  check_every_memory(*device, *host, shape);
}

TEST_CASE("a CUDA graph is captured once over 4,096 tokens, and the cache grows in place", "[cuda][generation]") {
  // Chunks of half a megabyte, so that the cache grows by many of the device's granules.
  const SyntheticShape shape{.layer_count = 8,
                             .width = 128,
                             .head_count = 8,
                             .kv_head_count = 4,
                             .feed_forward_width = 256,
                             .vocabulary = 320,
                             .quantised = true};
  const auto device = cuda::open_cuda_device(0).device;
  check_long_generation(*device, shape);
}

TEST_CASE("where CUDA refuses page-locked memory, pageable memory gives the host's bits", "[cuda][generation]") {
  const SyntheticShape shape{.layer_count = 4,
                             .width = 256,
                             .head_count = 8,
                             .kv_head_count = 4,
                             .feed_forward_width = 4096,
                             .vocabulary = 320,
                             .quantised = true};
  FaultyDevice device(cuda::open_cuda_device(0, pageable_memory).device);
  const auto host = host_device();
  check_refused_pinning(device, *host, shape);
  CHECK(device.memory().holds_nothing());
}
