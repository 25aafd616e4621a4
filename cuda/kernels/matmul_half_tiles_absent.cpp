// matmul_half_tiles_absent.cpp - what stands for matmul_half_tiles.cu in a build for devices that cannot have it.
#include "cuda/launch.h"
#include "engine/error.h"

namespace genai::cuda {

bool prepare_matmul_half_tiles() { return false; }
bool matmul_half_tiles_serves(const DeviceTraits&, const MatmulArgs&) { return false; }
std::int64_t matmul_half_tiles_cost(const DeviceTraits&, const MatmulArgs&) { return 0; }
void launch_matmul_half_tiles(const LaunchTarget&, const MatmulArgs&) {
  GENAI_EXPECT(false, "this build has no kernels of half products");
}

}  // namespace genai::cuda
