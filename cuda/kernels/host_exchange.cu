// host_exchange.cu - rows of activations to the host cores, and their results back (engine/exchange_words.h).
// Shapes   ask_host: input (M, K) f32 to words in host memory. take_answer: up to three results (M, width) of words.
// Mapping  ask_host: a warp a tile of 128 values; blocks are eight warps of one row, and each computes the norm of the
//          whole row for itself. take_answer: 256 threads a block, a result each.
// Bound    the link and its latency: 3*M*K bytes out, or 8*M*K of f32, 8*M*width in, a trip each way. No fence, which
//          would cost 3.6 us while a copy is on the link: words carry the number of their request.
// Twin     engine/host/host_exchange.cpp.
#include <algorithm>

#include "cuda/kernels/host_words.cuh"
#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int kBatch = 10;                 // loads on their way at once
constexpr int kFewResults = 1024;          // so few are all read again and again
constexpr unsigned kNapNanoseconds = 100;  // between looks at a word that is not there yet

__device__ __forceinline__ void store_float_tile(ExchangeWord* words, float4 four, unsigned request) {
  ExchangeWord* own = words + static_cast<int>(threadIdx.x) % kWarpLanes * 4;
  store_word(own, float_bits(four.x), request);
  store_word(own + 1, float_bits(four.y), request);
  store_word(own + 2, float_bits(four.z), request);
  store_word(own + 3, float_bits(four.w), request);
}

__global__ void __launch_bounds__(kThreads) ask_host_kernel(const AskHostArgs args, const bool whole) {
  __shared__ float shared[kThreads];
  allow_next_grid();
  const unsigned request = *raw(args.finished) + args.number;
  const int m = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const float* row = raw(args.input) + static_cast<std::int64_t>(m) * args.input_stride;
  const float* norm_weight = raw(args.norm_weight);
  wait_for_previous_grid();
  // Before the rows: the host's threads learn early which product it is.
  if (threadIdx.x == 0 && blockIdx.x == 0 && m == 0)
    store_word(raw(args.request), request_header(args.job, args.row_count), request);
  float inverse = 1.0f;
  if (norm_weight != nullptr) inverse = block_inverse_rms<kBatch>(row, args.width, args.norm_epsilon, shared);
  ExchangeWord* words = raw(args.request) + kHeaderWords + m * input_words(args.width, args.quantize);
  for (int tile = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
       tile * kTileWidth < args.width; tile += static_cast<int>(gridDim.x) * kWarps) {
    const int column = tile * kTileWidth + lane * 4;
    float4 four = load_four(row, column, args.width, whole);
    if (norm_weight != nullptr) four = normalize_four(four, inverse, load_four(norm_weight, column, args.width, whole));
    if (args.quantize)
      store_quantized_tile(words + tile * kTileWords, quantize_four(four), request);
    else
      store_float_tile(words + tile * kTileWidth, four, request);
  }
}

// Results of one output from `first` on, one a thread.
__device__ __forceinline__ void take_results(const TakeAnswerArgs::Output& output, int row_count, bool add, int first,
                                             unsigned request) {
  const int count = row_count * output.width;
  const int index = first + static_cast<int>(threadIdx.x);
  const bool is_own = index < count;
  const ExchangeWord* own = raw(output.result) + index;
  ExchangeWord word = is_own ? load_word(own) : 0;
  // Cores compute in ascending order. Of many results one thread watches the last while it is missing, so that the link
  // is free; few are all read again, which saves a trip.
  while (__syncthreads_or(is_own && request_of(word) != request)) {
    if (threadIdx.x == 0 && count > kFewResults) {
      const ExchangeWord* last = raw(output.result) + min(first + kThreads, count) - 1;
      while (request_of(load_word(last)) != request) __nanosleep(kNapNanoseconds);
    }
    __syncthreads();
    if (is_own && request_of(word) != request) word = load_word(own);
  }
  allow_next_grid();
  wait_for_previous_grid();  // the results are there, and now the place for them
  if (!is_own) return;
  const int m = index / output.width;
  float* out = raw(output.out) + static_cast<std::int64_t>(m) * output.out_stride + (index - m * output.width);
  const float value = bits_float(data_of(word));
  *out = add ? *out + value : value;
}

__host__ __device__ int part_count(const TakeAnswerArgs& args, int output) {
  return (args.row_count * args.outputs[output].width + kThreads - 1) / kThreads;
}

// Looks for results while the product with the device's own rows still runs. The next kernel may begin once they are
// there: if it could before, so could others behind it, and all that take answers would be on the link at once, which
// makes an exchange of 8 us one of 17 to 58.
__global__ void __launch_bounds__(kThreads) take_answer_kernel(const TakeAnswerArgs args) {
  const unsigned request = *raw(args.finished) + args.number;
  int part = static_cast<int>(blockIdx.x);
#pragma unroll
  for (int i = 0; i < MatmulArgs::kMaxOutputs; ++i) {
    if (i >= args.output_count) return;
    const int parts = part_count(args, i);
    for (; part < parts; part += static_cast<int>(gridDim.x))
      take_results(args.outputs[i], args.row_count, args.add, part * kThreads, request);
    part -= parts;
  }
}

// Ends before the next kernel begins: those behind it read the count before they wait.
__global__ void finish_requests_kernel(const FinishRequestsArgs args) {
  wait_for_previous_grid();
  *raw(args.finished) += args.count;
}

bool starts_at_16_bytes(DevicePtr<const float> pointer) { return pointer.address() % 16 == 0; }

}  // namespace

void launch_ask_host(const LaunchTarget& target, const AskHostArgs& args) {
  const bool whole = args.width % 4 == 0 && args.input_stride % 4 == 0 && starts_at_16_bytes(args.input) &&
                     starts_at_16_bytes(args.norm_weight);
  const auto tiles = static_cast<unsigned>(padded_width(args.width) / kTileWidth);
  launch_kernel("ask_host_kernel", ask_host_kernel,
                {dim3((tiles + kWarps - 1) / kWarps, static_cast<unsigned>(args.row_count)), dim3(kThreads)}, target,
                args, whole);
}

void launch_take_answer(const LaunchTarget& target, const TakeAnswerArgs& args) {
  int parts = 0;
  for (int i = 0; i < args.output_count; ++i) parts += part_count(args, i);
  const int blocks = std::clamp(parts, 1, target.traits.sm_count);
  launch_kernel("take_answer_kernel", take_answer_kernel, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, target,
                args);
}

void launch_finish_requests(const LaunchTarget& target, const FinishRequestsArgs& args) {
  launch_kernel("finish_requests_kernel", finish_requests_kernel, {dim3(1), dim3(1)}, target, args);
}

}  // namespace genai::cuda
