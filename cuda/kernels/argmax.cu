// argmax.cu - choice of a token, with the hash of the logits and the count of what is not finite; and the next step's
// rows. Shapes   logits (M, width) f32; tokens, hashes, nonfinite (M). Mapping  one block of 1024 threads a row; the
// order of comparison is total, and the hash is a sum modulo 2^64, so any
//          order of threads gives the same answer.
// Bound    memory: 4*M*width bytes.
// Twin     engine/host: argmax, advance_step (engine/README.md, "Choice of a token").
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpLanes;

struct Choice {
  float value;
  int index;  // -1: nothing but NaN so far
  unsigned long long hash;
  int nonfinite;
};

__device__ __forceinline__ void consider(Choice& choice, float value, int index) {
  if (value != value || index < 0) return;
  if (choice.index < 0 || value > choice.value || (value == choice.value && index < choice.index)) {
    choice.value = value;
    choice.index = index;
  }
}

__device__ __forceinline__ Choice warp_choice(Choice choice) {
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) {
    const float value = __shfl_xor_sync(kFullWarp, choice.value, stride);
    const int index = __shfl_xor_sync(kFullWarp, choice.index, stride);
    consider(choice, value, index);
    choice.hash += __shfl_xor_sync(kFullWarp, choice.hash, stride);
    choice.nonfinite += __shfl_xor_sync(kFullWarp, choice.nonfinite, stride);
  }
  return choice;
}

__global__ void __launch_bounds__(kThreads) argmax_kernel(const ArgmaxArgs args) {
  __shared__ Choice shared[kWarps];
  const std::int64_t m = blockIdx.x;
  const float* logits = raw(args.logits) + m * args.width;
  const std::uint32_t position = static_cast<std::uint32_t>(raw(args.rows)[m].position);
  Choice choice = {0.0f, -1, 0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < args.width; i += kThreads) {
    const float value = logits[i];
    const std::uint32_t bits = float_bits(value);
    choice.hash += logit_hash_term(position, static_cast<std::uint32_t>(i), bits);
    choice.nonfinite += (bits & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    consider(choice, value, i);
  }
  choice = warp_choice(choice);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if (lane == 0) shared[threadIdx.x / kWarpLanes] = choice;
  __syncthreads();
  if (threadIdx.x >= kWarpLanes) return;
  choice = warp_choice(shared[lane]);
  if (lane != 0) return;
  raw(args.tokens)[m] = choice.index;
  raw(args.hashes)[m] = choice.hash;
  raw(args.nonfinite)[m] = choice.nonfinite;
}

__global__ void advance_step_kernel(const AdvanceArgs args) {
  const int m = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (m >= args.row_count) return;
  raw(args.rows)[m].token = raw(args.tokens)[m];
  raw(args.rows)[m].position += 1;
}

}  // namespace

void launch_argmax_plain(const LaunchTarget& target, const ArgmaxArgs& args) {
  launch_kernel("argmax_kernel", argmax_kernel, dim3(static_cast<unsigned>(args.row_count)), dim3(kThreads), 0,
                target.stream, args);
}

void launch_advance_step(const LaunchTarget& target, const AdvanceArgs& args) {
  constexpr unsigned kAdvanceThreads = 128;
  const unsigned blocks = (static_cast<unsigned>(args.row_count) + kAdvanceThreads - 1) / kAdvanceThreads;
  launch_kernel("advance_step_kernel", advance_step_kernel, dim3(blocks), dim3(kAdvanceThreads), 0, target.stream,
                args);
}

}  // namespace genai::cuda
