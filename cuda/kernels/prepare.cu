// prepare.cu - the input of a product: RMS norm, then blocks of 32 to int8.   q = rint(x / d), d = amax / 127
// Shapes   input (M, K) f32; quants (M, Kp), scales and sums (M, Kp / 32), Kp = K rounded up to 128.
// Mapping  one block of 256 threads a row; a warp a block of 32.
// Bound    memory, and small: 4*M*K bytes in, M*(Kp + Kp/4) out.
// Twin     engine/host, the same operations in the same order (engine/README.md, "Quantised activations").
#include <algorithm>

#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"
#include "engine/packed_layout.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kAlignment = 256;

// Of the rows of a wide pass (prepare_tiles_kernel).
constexpr int kTileRowsPerSm = 4;
constexpr int kTilesAtOnce = 5;
constexpr int kNormLoads = 20;

__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const float* input, int input_stride, int cols, const float* norm_weight, float epsilon,
                   PreparedInput prepared) {
  start_in_order();
  __shared__ float shared[kThreads];
  const int row = static_cast<int>(blockIdx.x);
  const float* x = input + static_cast<std::int64_t>(row) * input_stride;
  float inverse = 1.0f;
  if (norm_weight != nullptr) {
    inverse = block_inverse_rms(x, cols, epsilon, shared);
    if (threadIdx.x == 0) prepared.inverse_rms[row] = inverse;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int block_count = prepared.width / kBlockWidth;
  for (int block = static_cast<int>(threadIdx.x) / kWarpLanes; block < block_count; block += kThreads / kWarpLanes) {
    const int column = block * kBlockWidth + lane;
    float value = 0.0f;
    if (column < cols) {
      value = x[column];
      if (norm_weight != nullptr) value = (value * inverse) * norm_weight[column];
    }
    unsigned amax = float_bits(value) & 0x7fffffffu;
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) amax = max(amax, __shfl_xor_sync(kFullWarp, amax, stride));
    const float scale = activation_scale(amax);
    const float inverse_scale = scale > 0.0f ? 1.0f / scale : 0.0f;
    const int quant = quantize_activation(value, inverse_scale);
    int sum = quant;
#pragma unroll
    for (int stride = 16; stride > 0; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
    prepared.quants[static_cast<std::int64_t>(row) * prepared.width + column] = static_cast<signed char>(quant);
    if (lane == 0) {
      const std::int64_t index = static_cast<std::int64_t>(row) * block_count + block;
      prepared.scales[index] = scale;
      prepared.sums[index] = scale * static_cast<float>(sum);
    }
  }
}

// The same into records (tile_input.cuh): a block a row, a warp a tile, eight lanes a block of 32. A thread has all
// loads of its first values and those of the norm on their way at once.
template <class Record>
__global__ void __launch_bounds__(kThreads, kTileRowsPerSm)
    prepare_tiles_kernel(const float* input, int input_stride, int cols, const float* norm_weight, float epsilon,
                         bool whole, TileInput prepared) {
  __shared__ float shared[kThreads];
  start_in_order();
  const int row = static_cast<int>(blockIdx.x);
  const int m = row % kRecordRows;
  const float* x = input + static_cast<std::int64_t>(row) * input_stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int block = lane / 8;
  constexpr int kStride = kThreads / kWarpLanes;  // from a warp's tile to its next one
  float4 fours[kTilesAtOnce];
  float inverse = 1.0f;
  int first = static_cast<int>(threadIdx.x) / kWarpLanes;
  do {  // also by warps without a tile, for the norm
    const int column = first * kTileWidth + lane * 4;
#pragma unroll
    for (int k = 0; k < kTilesAtOnce; ++k) fours[k] = load_four(x, column + k * kStride * kTileWidth, cols, whole);
    if (norm_weight != nullptr) {
      if (first < kStride) inverse = block_inverse_rms<kNormLoads>(x, cols, epsilon, shared);
#pragma unroll
      for (int k = 0; k < kTilesAtOnce; ++k)
        fours[k] =
            normalize_four(fours[k], inverse, load_four(norm_weight, column + k * kStride * kTileWidth, cols, whole));
    }
    QuantizedFour results[kTilesAtOnce];
    quantize_fours(fours, results);
#pragma unroll
    for (int k = 0; k < kTilesAtOnce; ++k) {
      const int tile = first + k * kStride;
      if (tile >= prepared.tile_count) break;
      unsigned char* record =
          prepared.records +
          (static_cast<std::int64_t>(row / kRecordRows) * prepared.tile_count + tile) * Record::kBytes;
      Record::store(record, lane, m, results[k].quants);
      if (lane % 8 == 0) {
        *reinterpret_cast<float*>(record + Record::scale(block, m)) = results[k].scale;
        *reinterpret_cast<float*>(record + Record::sum(block, m)) = results[k].sum;
      }
    }
    first += kTilesAtOnce * kStride;
  } while (first < prepared.tile_count);
  if (blockIdx.x == 0 && prepared.handed_flags != nullptr)
    for (int i = static_cast<int>(threadIdx.x); i < kMaxTileLaunches * kLaunchFlags; i += kThreads)
      prepared.handed_flags[i] = 0;
}

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::size_t PreparedInput::bytes(int row_count, int cols) {
  const std::size_t rows = static_cast<std::size_t>(std::max(row_count, 0));
  const std::size_t padded = static_cast<std::size_t>(padded_width(cols));
  return aligned(rows * padded) + 2 * aligned(rows * padded / kBlockWidth * sizeof(float)) +
         aligned(rows * sizeof(float));
}

PreparedInput PreparedInput::in_scratch(DevicePtr<std::byte> scratch, int row_count, int cols) {
  const std::size_t rows = static_cast<std::size_t>(row_count);
  const std::size_t padded = static_cast<std::size_t>(padded_width(cols));
  std::uint64_t address = scratch.address();
  const auto take = [&address](std::size_t bytes) {
    const std::uint64_t begin = address;
    address += aligned(bytes);
    return begin;
  };
  PreparedInput prepared = {};
  prepared.quants = reinterpret_cast<signed char*>(take(rows * padded));
  prepared.scales = reinterpret_cast<float*>(take(rows * padded / kBlockWidth * sizeof(float)));
  prepared.sums = reinterpret_cast<float*>(take(rows * padded / kBlockWidth * sizeof(float)));
  prepared.inverse_rms = reinterpret_cast<float*>(take(rows * sizeof(float)));
  prepared.width = static_cast<int>(padded);
  prepared.row_count = row_count;
  return prepared;
}

void launch_prepare_input(const LaunchTarget& target, const MatmulArgs& args, const PreparedInput& prepared) {
  launch_kernel("prepare_kernel", prepare_kernel, {dim3(static_cast<unsigned>(args.row_count)), dim3(kThreads)}, target,
                reinterpret_cast<const float*>(args.input.address()), args.input_stride, args.outputs[0].matrix.cols,
                reinterpret_cast<const float*>(args.norm_weight.address()), args.norm_epsilon, prepared);
}

namespace {

std::size_t records_bytes(int row_count, int cols, bool halves) {
  const std::size_t pairs = static_cast<std::size_t>((std::max(row_count, 0) + kRecordRows - 1) / kRecordRows);
  return aligned(pairs * static_cast<std::size_t>(padded_width(cols) / kTileWidth) *
                 (halves ? HalfRecord::kBytes : ByteRecord::kBytes));
}

constexpr std::size_t kHandedSumBytes = std::size_t{kMaxTileSms} * kHandedSums * sizeof(float);
constexpr std::size_t kHandedFlagBytes = std::size_t{kMaxTileLaunches} * kLaunchFlags * sizeof(unsigned);

}  // namespace

std::size_t tile_input_bytes(int row_count, int cols, bool halves) {
  static_assert(HalfRecord::kBytes > ByteRecord::kBytes);  // what has halves takes bytes too
  const std::size_t handed = row_count < kMinHandoverRows ? 0 : aligned(kHandedSumBytes) + aligned(kHandedFlagBytes);
  return records_bytes(row_count, cols, halves) + handed;
}

TileInput launch_prepare_tiles(const LaunchTarget& target, const MatmulArgs& args, bool halves) {
  const int cols = args.outputs[0].matrix.cols;
  TileInput prepared = {};
  prepared.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  const std::uint64_t begin = args.scratch.address();
  const std::uint64_t sums = begin + records_bytes(args.row_count, cols, halves);
  prepared.records = reinterpret_cast<unsigned char*>(begin);
  if (args.row_count >= kMinHandoverRows) {
    prepared.handed_sums = reinterpret_cast<float*>(sums);
    prepared.handed_flags = reinterpret_cast<unsigned*>(sums + aligned(kHandedSumBytes));
  }
  launch_kernel("prepare_tiles_kernel", halves ? prepare_tiles_kernel<HalfRecord> : prepare_tiles_kernel<ByteRecord>,
                {dim3(static_cast<unsigned>(args.row_count)), dim3(kThreads)}, target,
                reinterpret_cast<const float*>(args.input.address()), args.input_stride, cols,
                reinterpret_cast<const float*>(args.norm_weight.address()), args.norm_epsilon, has_whole_fours(args),
                prepared);
  return prepared;
}

int compiled_capability() {
  cudaFuncAttributes attributes = {};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, prepare_kernel));
  return attributes.ptxVersion;
}

}  // namespace genai::cuda
