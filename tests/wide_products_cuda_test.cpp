// Products of many rows by integer products and by half products, each forced for every number of rows: equal bits with
// the host, nothing written beside the outputs.
#include "tests/kernels_cuda_support.h"

using namespace genai;
using namespace genai::test;
using cuda::WideProducts;

namespace {

// Null where the device or this build has none.
Device* device_of(WideProducts kind) {
  const auto open = [](WideProducts wide_products) -> PooledDevice* {
    cuda::OpenedDevice opened = cuda::open_cuda_device(0, {}, wide_products);
    if (wide_products == WideProducts::by_halves && !opened.traits.has_half_tiles) return nullptr;
    return new PooledDevice(std::move(opened.device), kPoolBytes);  // as cuda_device()
  };
  static PooledDevice* const bytes = open(WideProducts::by_bytes);
  static PooledDevice* const halves = open(WideProducts::by_halves);
  return kind == WideProducts::by_bytes ? bytes : halves;
}

void check_both(const MatmulCase& shape) {
  const MatmulData data = matmul_data(shape);
  const std::vector<std::vector<float>> expected = run_matmul(fast_host_device(), shape, data);
  for (const WideProducts kind : {WideProducts::by_bytes, WideProducts::by_halves}) {
    Device* device = device_of(kind);
    if (device == nullptr) continue;
    const std::vector<std::vector<float>> found = run_matmul(*device, shape, data);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO(describe(shape) << (kind == WideProducts::by_bytes ? " bytes" : " halves") << " output " << i);
      CHECK(first_difference(expected[i], found[i]) == -1);
    }
  }
}

std::vector<DType> quantised_types() {
  std::vector<DType> types;
  for (const DType dtype : kAllDTypes)
    if (!is_float(dtype)) types.push_back(dtype);
  return types;
}

}  // namespace

TEST_CASE("half products are there on devices of compute capability 9.0", "[cuda][matmul]") {
  const cuda::DeviceTraits traits = cuda::open_cuda_device(0).traits;
  CHECK(traits.has_half_tiles == (traits.compute_capability == 90));
  if (!traits.has_half_tiles) WARN("SKIPPED: no half products on this device, integer products alone are compared");
}

TEST_CASE("integer and half products equal the host's for every type and odd sizes", "[cuda][matmul][large]") {
  std::uint64_t seed = 7000;
  for (const DType dtype : quantised_types()) {
    for (const std::int32_t row_count : {1, 64, 513})
      check_both({.dtypes = {dtype},
                  .rows = 1021,
                  .cols = 1280,
                  .row_count = row_count,
                  .norm = true,
                  .bias = true,
                  .seed = seed++});
    check_both({.dtypes = {dtype},
                .rows = 390,
                .cols = 256,  // some partials have no tile
                .row_count = 65,
                .epilogue = Epilogue::gated_silu,
                .seed = seed++});
    check_both(
        {.dtypes = {dtype}, .rows = 33, .cols = 2304, .row_count = 127, .epilogue = Epilogue::add, .seed = seed++});
  }
  check_both({.dtypes = {DType::Q4_K, DType::Q4_K, DType::Q6_K},
              .rows = 520,
              .cols = 2560,
              .row_count = 200,
              .norm = true,
              .seed = seed++});
  check_both({.dtypes = {DType::Q8_0},
              .rows = 260,
              .cols = 1024,
              .row_count = 40,
              .epilogue = Epilogue::gated_gelu,
              .soft_cap = 5.0f,
              .seed = seed++});
}

TEST_CASE("integer and half products of long rows equal the host's for every type", "[cuda][race]") {
  std::uint64_t seed = 7300;
  for (const DType dtype : quantised_types())
    check_both({.dtypes = {dtype}, .rows = 72, .cols = 10240, .row_count = 40, .norm = true, .seed = seed++});
}

TEST_CASE("integer and half products equal the host's for any number of rows", "[cuda][matmul][large]") {
  std::uint64_t seed = 7500;
  for (std::int32_t row_count = 1; row_count <= 130; ++row_count)
    check_both({.dtypes = {DType::Q4_0}, .rows = 136, .cols = 1152, .row_count = row_count, .seed = seed++});
}

TEST_CASE("integer and half products equal the host's however their items are cut", "[cuda][matmul][large]") {
  std::uint64_t seed = 7800;
  // One, two and eight whole items a multiprocessor, and a few or many left over.
  for (const DType dtype : {DType::Q4_0, DType::Q6_K}) {
    check_both({.dtypes = {dtype}, .rows = 128 * 136, .cols = 1280, .row_count = 64, .seed = seed++});
    check_both({.dtypes = {dtype}, .rows = 20001, .cols = 1536, .row_count = 65, .bias = true, .seed = seed++});
  }
  check_both({.dtypes = {DType::Q4_0},
              .rows = 128 * 134,
              .cols = 1280,
              .row_count = 512,
              .epilogue = Epilogue::gated_silu,
              .seed = seed++});
}
