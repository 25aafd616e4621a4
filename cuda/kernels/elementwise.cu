// elementwise.cu - glue that no product could take in: norm of a branch before the residual, gate of two whole
// matrices.
//          x += norm(y) * weight            out = act(gate) * up
// Shapes   all (M, width) f32.
// Mapping  norm_add: one block of 256 threads a row, the row is read twice. gate: one thread an element.
// Bound    memory: 16*M*width bytes (norm_add), 12*M*width (gate).
// Twin     engine/host: norm_add, gate (engine/README.md, "RMS norm", "Epilogue").
#include <algorithm>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) norm_add_kernel(const NormAddArgs args) {
  start_in_order();
  __shared__ float shared[kThreads];
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.x) * args.width;
  const float* y = raw(args.y) + offset;
  float* x = raw(args.x) + offset;
  const float inverse = block_inverse_rms(y, args.width, args.epsilon, shared);
  for (int i = static_cast<int>(threadIdx.x); i < args.width; i += kThreads)
    x[i] = x[i] + (y[i] * inverse) * raw(args.weight)[i];
}

__global__ void __launch_bounds__(kThreads) gate_kernel(const GateArgs args) {
  start_in_order();
  const std::int64_t count = static_cast<std::int64_t>(args.row_count) * args.width;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step)
    raw(args.out)[i] = activate(args.activation, raw(args.gate)[i]) * raw(args.up)[i];
}

}  // namespace

void launch_norm_add(const LaunchTarget& target, const NormAddArgs& args) {
  launch_kernel("norm_add_kernel", norm_add_kernel, {dim3(static_cast<unsigned>(args.row_count)), dim3(kThreads)},
                target, args);
}

void launch_gate(const LaunchTarget& target, const GateArgs& args) {
  const std::int64_t count = static_cast<std::int64_t>(args.row_count) * args.width;
  const std::int64_t blocks = std::min<std::int64_t>((count + kThreads - 1) / kThreads, 16 * target.traits.sm_count);
  launch_kernel("gate_kernel", gate_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, target, args);
}

}  // namespace genai::cuda
