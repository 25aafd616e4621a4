// Device memory comes from the arena and from nowhere else.
#include <cstddef>

#include "cuda/cuda_device.h"
#include "tests/allocation_watch_cuda.h"
#include "tests/generation_cases.h"

using namespace genai;
using namespace genai::test;

// As code elsewhere would call it.
extern "C" int allocate_from_elsewhere(void** pointer, std::size_t bytes) __asm__("cudaMalloc");

TEST_CASE("an allocation that goes round the arena is noticed", "[cuda][allocation]") {
  const std::size_t before = allocation_watch().refused_calls.size();
  void* pointer = nullptr;
  CHECK(allocate_from_elsewhere(&pointer, 256) != 0);
  CHECK(pointer == nullptr);
  REQUIRE(allocation_watch().refused_calls.size() == before + 1);
  CHECK(allocation_watch().refused_calls.back() == "cudaMalloc");
}

TEST_CASE("what a model holds on CUDA is what the arena's ledger says, to the byte", "[cuda][allocation]") {
  const AllocationWatch before = allocation_watch();
  {
    const auto device = cuda::open_cuda_device(0).device;
    CHECK(allocation_watch().live_bytes == before.live_bytes);
    ModelOptions options;
    options.context = 2048;
    options.max_rows = 64;
    options.offload = OffloadMode::stream;  // cold memory, ring, weights, cache and workspace
    options.forced_cold = {"ffn"};
    const SyntheticShape shape{.layer_count = 4,
                               .width = 256,
                               .head_count = 8,
                               .kv_head_count = 8,
                               .feed_forward_width = 1024,
                               .vocabulary = 320,
                               .quantised = true};
    DeviceModel model(*device, synthetic_model(shape).build(), options);
    const ResidencyArena& arena = model.model->arena();
    const auto held = [&] { return allocation_watch().live_bytes - before.live_bytes; };
    const std::uint64_t for_graphs = arena.committed_bytes(MemoryKind::graphs);  // which the driver takes by itself
    CHECK(held() == arena.committed_device_bytes() - for_graphs + arena.committed_host_bytes());
    const std::uint64_t loaded_bytes = held();
    model.generate(prompt_of(200, 320), 600);
    CHECK(held() == arena.committed_device_bytes() - for_graphs + arena.committed_host_bytes());
    CHECK(model.loop->graph_bytes().value_or(0) <= for_graphs);
    CHECK(held() > loaded_bytes);  // the cache has grown
    const std::uint64_t granules = allocation_watch().created_granules;
    model.generate(prompt_of(200, 320), 600);
    CHECK(allocation_watch().created_granules == granules);  // and needs nothing more
  }
  CHECK(allocation_watch().live_bytes == before.live_bytes);
  CHECK(allocation_watch().refused_calls == before.refused_calls);
}

TEST_CASE("the plain arm has the arena's bits, and takes no granule", "[cuda][allocation]") {
  const auto device = cuda::open_cuda_device(0).device;
  const SyntheticShape shape{.layer_count = 2, .width = 256, .head_count = 4, .quantised = true};
  const GgufImage image = synthetic_model(shape).build();
  ModelOptions options;
  options.context = 256;
  options.max_rows = 64;
  options.offload = OffloadMode::stream;
  options.forced_cold = {"ffn"};
  const std::vector<std::uint64_t> expected = hashes_of(*device, image, options, true, 96);
  options.allocator = Allocator::plain;
  const PlainAllocationsAllowed allowed;
  const AllocationWatch before = allocation_watch();
  CHECK(hashes_of(*device, image, options, true, 96) == expected);
  CHECK(allocation_watch().plain_allocations > before.plain_allocations);
  CHECK(allocation_watch().created_granules == before.created_granules);
}

TEST_CASE("of the driver's entry points only cuMemCreate gives memory", "[cuda][allocation]") {
  const auto device = cuda::open_cuda_device(0).device;
  bool is_create_known = false;
  for (const std::string& name : allocation_watch().looked_up) {
    INFO(name);
    is_create_known = is_create_known || name == "cuMemCreate";
    const bool allocates = name.find("Alloc") != std::string::npos || name.find("PoolCreate") != std::string::npos;
    CHECK((!allocates || name == "cuMemGetAllocationGranularity"));
  }
  CHECK(is_create_known);
}
