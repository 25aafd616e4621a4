// main_cuda.cpp - the test program for the CUDA backend. Without a device it says why and returns 77, which ctest
// reports as skipped. Alone in its file: with Catch2 version 2 the whole framework is compiled here.
#define CATCH_CONFIG_RUNNER
#include <cstdio>

#include "cuda/cuda_device.h"
#include "tests/catch.h"

int main(int argument_count, char** arguments) {
  constexpr int kSkipped = 77;
  const genai::cuda::OpenedDevice opened = genai::cuda::open_cuda_device(0);
  if (opened.device == nullptr) {
    std::fprintf(stderr, "SKIPPED: %s\n", opened.problem.c_str());
    return kSkipped;
  }
  std::printf("device: %s, compute capability %d.%d, %d multiprocessors, driver %d.%d\n", opened.device->name().c_str(),
              opened.traits.compute_capability / 10, opened.traits.compute_capability % 10, opened.traits.sm_count,
              opened.traits.driver_version / 1000, opened.traits.driver_version % 1000 / 10);
  std::fflush(stdout);
  return Catch::Session().run(argument_count, arguments);
}
