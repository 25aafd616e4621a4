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
constexpr unsigned kClusterBlocks = 8;  // what every device with clusters allows

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
  extern __shared__ __align__(16) unsigned char shared[];
  Choice* warps = reinterpret_cast<Choice*>(shared);  // [kWarps], then the block's
  start_in_order();
  const int blocks = cluster_blocks();
  const int rank = cluster_rank();
  const std::int64_t m = static_cast<int>(blockIdx.x) / blocks;
  const float* logits = raw(args.logits) + m * args.width;
  const std::uint32_t position = static_cast<std::uint32_t>(raw(args.rows)[m].position);
  Choice choice = {0.0f, -1, 0, 0};
  for (int i = rank * kThreads + static_cast<int>(threadIdx.x); i < args.width; i += blocks * kThreads) {
    const float value = logits[i];
    const std::uint32_t bits = float_bits(value);
    choice.hash += logit_hash_term(position, static_cast<std::uint32_t>(i), bits);
    choice.nonfinite += (bits & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    consider(choice, value, i);
  }
  choice = warp_choice(choice);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (lane == 0) warps[warp] = choice;
  __syncthreads();
  if (warp == 0) {
    choice = warp_choice(warps[lane]);
    if (lane == 0) warps[kWarps] = choice;
  }
  cluster_barrier();
  if (rank == 0 && warp == 0) {
    choice = {0.0f, -1, 0, 0};
    if (lane < blocks) choice = *in_block(warps + kWarps, lane);
    choice = warp_choice(choice);
    if (lane == 0) {
      raw(args.tokens)[m] = choice.index;
      raw(args.hashes)[m] = choice.hash;
      raw(args.nonfinite)[m] = choice.nonfinite;
    }
  }
  cluster_barrier();  // nobody leaves while its shared memory is read
}

__global__ void advance_step_kernel(const AdvanceArgs args) {
  start_in_order();
  const int m = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (m >= args.row_count) return;
  raw(args.rows)[m].token = raw(args.tokens)[m];
  raw(args.rows)[m].position += 1;
}

}  // namespace

void launch_argmax(const LaunchTarget& target, const ArgmaxArgs& args) {
  LaunchShape shape;
  shape.cluster_blocks = target.traits.compute_capability >= 90 ? kClusterBlocks : 1;
  shape.grid = dim3(static_cast<unsigned>(args.row_count) * shape.cluster_blocks);
  shape.block = dim3(kThreads);
  shape.shared_bytes = (kWarps + 1) * sizeof(Choice);
  launch_kernel("argmax_kernel", argmax_kernel, shape, target, args);
}

void launch_advance_step(const LaunchTarget& target, const AdvanceArgs& args) {
  constexpr unsigned kAdvanceThreads = 128;
  const unsigned blocks = (static_cast<unsigned>(args.row_count) + kAdvanceThreads - 1) / kAdvanceThreads;
  launch_kernel("advance_step_kernel", advance_step_kernel, {dim3(blocks), dim3(kAdvanceThreads)}, target, args);
}

}  // namespace genai::cuda
