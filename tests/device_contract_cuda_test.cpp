// The CUDA backend keeps the device contract.
#include "cuda/cuda_device.h"
#include "engine/host/host_memory.h"
#include "tests/allocation_watch_cuda.h"
#include "tests/device_contract.h"

using namespace genai;
using namespace genai::test;

TEST_CASE("CUDA device keeps the device contract", "[device_contract]") {
  static const std::atomic<int> no_captures{0};
  const PlainAllocationsAllowed allowed;
  check_device_contract([] {
    return cuda::open_cuda_device(0,
                                  [](std::size_t granule_bytes) {
                                    return std::make_unique<HostMemory>(
                                        HostMemoryOptions{.granule_bytes = granule_bytes}, no_captures);
                                  })
        .device;
  });
}

TEST_CASE("an absent CUDA device is an answer with a reason", "[cuda_device]") {
  for (const int ordinal : {-1, 4096}) {
    const cuda::OpenedDevice opened = cuda::open_cuda_device(ordinal);
    REQUIRE(opened.device == nullptr);
    REQUIRE(opened.problem.find("no CUDA device") != std::string::npos);
  }
}

TEST_CASE("CUDA device describes itself", "[cuda_device]") {
  const cuda::OpenedDevice opened = cuda::open_cuda_device(0);
  REQUIRE(opened.problem.empty());
  REQUIRE_FALSE(opened.device->name().empty());
  REQUIRE(opened.traits.compute_capability >= 75);
  REQUIRE(opened.traits.sm_count > 0);
  REQUIRE(opened.traits.shared_bytes_per_sm >= opened.traits.shared_bytes_per_block);
}
