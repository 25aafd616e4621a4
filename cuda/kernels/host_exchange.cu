// host_exchange.cu - rows of activations to the host cores, and their results back (engine/device/kernels.h).
// Shapes   ask_host: input (M, K) f32 to host memory. take_answer: up to three results (M, width) f32 from host memory.
// Mapping  ask_host: one block, so that one fence stands between all of its words and the number of the request.
//          take_answer: 256 threads a block, an element each; one thread a block watches for the answer.
// Bound    the link: 4*M*K bytes out, 4*M*width in, and one trip each way for the numbers.
// Twin     engine/host/host_exchange.cpp.
#include <algorithm>

#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kAskThreads = 1024;
constexpr int kTakeThreads = 256;

__device__ __forceinline__ void store_released(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
__device__ __forceinline__ std::uint64_t load_acquired(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__global__ void __launch_bounds__(kAskThreads) ask_host_kernel(const AskHostArgs args) {
  start_in_order();
  for (int m = 0; m < args.row_count; ++m) {
    const float* from = raw(args.input) + static_cast<std::int64_t>(m) * args.input_stride;
    float* to = raw(args.host_input) + static_cast<std::int64_t>(m) * args.width;
    for (int i = static_cast<int>(threadIdx.x); i < args.width; i += kAskThreads) to[i] = from[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  HostExchange* exchange = raw(args.exchange);
  exchange->job = args.job;
  exchange->row_count = args.row_count;
  const std::uint64_t number = *raw(args.count) + 1;
  *raw(args.count) = number;
  store_released(&exchange->asked, number);
}

__global__ void __launch_bounds__(kTakeThreads) take_answer_kernel(const TakeAnswerArgs args) {
  start_in_order();
  if (threadIdx.x == 0) {
    const std::uint64_t number = *raw(args.count);
    while (load_acquired(&raw(args.exchange)->answered) < number) {
    }
  }
  __syncthreads();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTakeThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kTakeThreads;
  for (int i = 0; i < args.output_count; ++i) {
    const TakeAnswerArgs::Output& output = args.outputs[i];
    for (std::int64_t index = first; index < static_cast<std::int64_t>(args.row_count) * output.width; index += step) {
      const std::int64_t m = index / output.width;
      const float result = raw(output.result)[index];
      float* out = raw(output.out) + m * output.out_stride + (index - m * output.width);
      *out = args.add ? *out + result : result;
    }
  }
}

}  // namespace

void launch_ask_host(const LaunchTarget& target, const AskHostArgs& args) {
  launch_kernel("ask_host_kernel", ask_host_kernel, {dim3(1), dim3(kAskThreads)}, target, args);
}

void launch_take_answer(const LaunchTarget& target, const TakeAnswerArgs& args) {
  std::int64_t widest = 1;
  for (int i = 0; i < args.output_count; ++i)
    widest = std::max(widest, static_cast<std::int64_t>(args.row_count) * args.outputs[i].width);
  const std::int64_t blocks =
      std::min<std::int64_t>((widest + kTakeThreads - 1) / kTakeThreads, target.traits.sm_count);
  launch_kernel("take_answer_kernel", take_answer_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kTakeThreads)},
                target, args);
}

}  // namespace genai::cuda
