// read_probe.cu - how fast the device reads its memory: the measure that speeds are compared with.
// Mapping  every block reads every gridDim-th piece of 32 KB in 16-byte loads, eight in flight a thread, and folds it
//          into a word that is stored only if it has one value in 2^32, so that nothing is optimised away.
// Bound    memory: `bytes`, once.
#include <algorithm>
#include <vector>

#include "cuda/cuda_stream.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* begin, std::int64_t piece_count, unsigned* never) {
  start_in_order();
  unsigned folded = 0;
  for (std::int64_t piece = blockIdx.x; piece < piece_count; piece += gridDim.x) {
    uint4 words[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) words[k] = __ldcs(begin + (piece * kLoads + k) * kThreads + threadIdx.x);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) folded ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
  }
  if (folded == 0x9e3779b9u && never != nullptr) *never = folded;
}

}  // namespace

double measure_read_gbps(Stream& stream, const DeviceTraits& traits, DevicePtr<const std::byte> begin,
                         std::size_t bytes) {
  constexpr int kRounds = 5;
  constexpr std::size_t kPieceBytes = kLoads * kThreads * sizeof(uint4);
  const LaunchTarget target{static_cast<CudaStream&>(stream).use(), traits};
  const std::int64_t pieces = static_cast<std::int64_t>(bytes / kPieceBytes);
  GENAI_EXPECT(pieces > 0, "too little memory to measure with");
  CudaEvent start(traits.ordinal);
  CudaEvent end(traits.ordinal);
  std::vector<double> rates;
  for (int round = 0; round <= kRounds; ++round) {  // the first one warms up
    stream.record(start);
    launch_kernel("read_kernel", read_kernel, {dim3(static_cast<unsigned>(8 * traits.sm_count)), dim3(kThreads)},
                  target, reinterpret_cast<const uint4*>(begin.address()), pieces, static_cast<unsigned*>(nullptr));
    stream.record(end);
    const double seconds = end.seconds_since(start);
    if (round > 0) rates.push_back(static_cast<double>(pieces) * kPieceBytes / (1e9 * seconds));
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace genai::cuda
