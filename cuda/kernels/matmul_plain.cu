// matmul_plain.cu - matrix products for every weight type and any number of rows, on any device.   y = W x
// Shapes   W packed (N, K); x prepared (M, K); out (M, N) or (M, N/2).
// Mapping  one block a strip of 8 weight rows, one warp a weight row. Quantised: one lane a partial (block b belongs to
//          lane b mod 32). Float: eight partials a lane (element i belongs to partial i mod 256). kRowsAtOnce rows of
//          activations share a pass over the weights.
// Bound    memory at M = 1, in 4-byte loads; the tensor-core kernels replace it where they exist.
// Twin     engine/host, the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = kStripRows * kWarpLanes;
constexpr int kRowsAtOnce = 4;

struct PlainProduct {
  const TileBytes* weights;
  const float* bias;  // null: none
  float* out;
  int rows;  // N
  int out_stride;
  int tile_count;  // along K
  const float* input;
  int input_stride;
  int cols;
  const float* norm_weight;  // null: none
  PreparedInput prepared;
  Epilogue epilogue;
  float soft_cap;
};

// partials[m] += the products of one block with kRowsAtOnce rows of activations, from first_row on.
template <DType kType>
__device__ __forceinline__ void accumulate_block(const PlainProduct& product, const TileBytes* tile, int strip_row,
                                                 int tile_block, std::int64_t block, int first_row,
                                                 float (&partials)[kRowsAtOnce]) {
  int words[8];
  load_block<kType>(tile, strip_row, tile_block, words);
  const BlockScale scale = load_block_scale<kType>(tile, strip_row, tile_block);
  const std::int64_t block_count = product.prepared.width / kBlockWidth;
#pragma unroll
  for (int m = 0; m < kRowsAtOnce; ++m) {
    const std::int64_t row = first_row + m;
    if (row >= product.prepared.row_count) break;
    const int4* quants =
        reinterpret_cast<const int4*>(product.prepared.quants + row * product.prepared.width + block * kBlockWidth);
    const int4 low = quants[0];
    const int4 high = quants[1];
    const int dot_low =
        __dp4a(words[0], low.x, __dp4a(words[1], low.y, __dp4a(words[2], low.z, __dp4a(words[3], low.w, 0))));
    const int dot_high =
        __dp4a(words[4], high.x, __dp4a(words[5], high.y, __dp4a(words[6], high.z, __dp4a(words[7], high.w, 0))));
    const int dot = dot_low * scale.sub[0] + dot_high * scale.sub[1];
    const float input_scale = product.prepared.scales[row * block_count + block];
    partials[m] = exact_fma(static_cast<float>(dot), scale.scale * input_scale, partials[m]);
    if constexpr (has_minimum(kType))
      partials[m] = exact_fma(scale.minimum, product.prepared.sums[row * block_count + block], partials[m]);
  }
}

template <DType kType>
__device__ __forceinline__ void quantised_products(const PlainProduct& product, const TileBytes* strip, int strip_row,
                                                   int first_row, float (&y)[kRowsAtOnce]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float partials[kRowsAtOnce] = {};
  for (int tile = lane / kTileBlocks; tile < product.tile_count; tile += kWarpLanes / kTileBlocks)
    accumulate_block<kType>(product, strip + static_cast<std::int64_t>(tile) * tile_layout(kType).tile_bytes, strip_row,
                            lane % kTileBlocks, static_cast<std::int64_t>(tile) * kTileBlocks + lane % kTileBlocks,
                            first_row, partials);
#pragma unroll
  for (int m = 0; m < kRowsAtOnce; ++m) y[m] = warp_chain(partials[m]);
}

template <DType kType>
__device__ __forceinline__ void float_products(const PlainProduct& product, const TileBytes* strip, int strip_row,
                                               int first_row, float (&y)[kRowsAtOnce]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float partials[kRowsAtOnce][8] = {};
  float inverse[kRowsAtOnce];
#pragma unroll
  for (int m = 0; m < kRowsAtOnce; ++m)
    inverse[m] = product.norm_weight != nullptr && first_row + m < product.prepared.row_count
                     ? product.prepared.inverse_rms[first_row + m]
                     : 1.0f;
  for (int base = 0; base < product.prepared.width; base += 256) {  // zeros behind cols are part of the sum
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int i = base + kWarpLanes * k + lane;
      if (i >= product.prepared.width) continue;
      const float weight = load_float_weight<kType>(
          strip + static_cast<std::int64_t>(i / kTileWidth) * tile_layout(kType).tile_bytes, strip_row, i % kTileWidth);
      const float norm = product.norm_weight != nullptr && i < product.cols ? product.norm_weight[i] : 1.0f;
#pragma unroll
      for (int m = 0; m < kRowsAtOnce; ++m) {
        if (first_row + m >= product.prepared.row_count) continue;
        float x = 0.0f;
        if (i < product.cols) x = product.input[static_cast<std::int64_t>(first_row + m) * product.input_stride + i];
        if (product.norm_weight != nullptr) x = (x * inverse[m]) * norm;
        partials[m][k] = exact_fma(weight, x, partials[m][k]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRowsAtOnce; ++m) y[m] = warp_tree_256(partials[m]);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) matmul_plain_kernel(const PlainProduct product) {
  start_in_order();
  __shared__ float results[kRowsAtOnce][kStripRows];
  const int strip_row = static_cast<int>(threadIdx.x) / kWarpLanes;
  const std::int64_t strip_bytes = static_cast<std::int64_t>(product.tile_count) * tile_layout(kType).tile_bytes;
  const TileBytes* strip = product.weights + blockIdx.x * strip_bytes;
  const int first_output = static_cast<int>(blockIdx.x) * kStripRows;

  const int row_step = static_cast<int>(gridDim.y) * kRowsAtOnce;
  for (int first_row = static_cast<int>(blockIdx.y) * kRowsAtOnce; first_row < product.prepared.row_count;
       first_row += row_step) {
    float y[kRowsAtOnce];
    if constexpr (is_float(kType))
      float_products<kType>(product, strip, strip_row, first_row, y);
    else
      quantised_products<kType>(product, strip, strip_row, first_row, y);
    if (threadIdx.x % kWarpLanes == 0) {
      const bool has_bias = product.bias != nullptr && first_output + strip_row < product.rows;
#pragma unroll
      for (int m = 0; m < kRowsAtOnce; ++m)
        results[m][strip_row] = has_bias ? y[m] + product.bias[first_output + strip_row] : y[m];
    }
    __syncthreads();
    const int m = static_cast<int>(threadIdx.x) / kStripRows;
    const int output = first_output + static_cast<int>(threadIdx.x) % kStripRows;
    if (m < kRowsAtOnce && first_row + m < product.prepared.row_count && output < product.rows) {
      float* out = product.out + static_cast<std::int64_t>(first_row + m) * product.out_stride;
      if (!is_gated(product.epilogue))
        store_output(product.epilogue, product.soft_cap, results[m][output % kStripRows], out + output);
      else if (output % 2 == 0)
        store_gated(product.epilogue, product.soft_cap, results[m][output % kStripRows],
                    results[m][output % kStripRows + 1], out + output / 2);
    }
    __syncthreads();
  }
}

using PlainKernel = void (*)(PlainProduct);

PlainKernel plain_kernel(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return matmul_plain_kernel<DType::F32>;
    case DType::F16:
      return matmul_plain_kernel<DType::F16>;
    case DType::BF16:
      return matmul_plain_kernel<DType::BF16>;
    case DType::Q4_0:
      return matmul_plain_kernel<DType::Q4_0>;
    case DType::Q4_1:
      return matmul_plain_kernel<DType::Q4_1>;
    case DType::Q5_0:
      return matmul_plain_kernel<DType::Q5_0>;
    case DType::Q5_1:
      return matmul_plain_kernel<DType::Q5_1>;
    case DType::Q8_0:
      return matmul_plain_kernel<DType::Q8_0>;
    case DType::Q4_K:
      return matmul_plain_kernel<DType::Q4_K>;
    case DType::Q5_K:
      return matmul_plain_kernel<DType::Q5_K>;
    case DType::Q6_K:
      return matmul_plain_kernel<DType::Q6_K>;
  }
  throw Error("no product kernel for a weight type", "this is a bug in genai: please report it");
}

}  // namespace

void launch_matmul_plain(const LaunchTarget& target, const MatmulArgs& args, const PreparedInput& prepared) {
  for (int index = 0; index < args.output_count; ++index) {
    const MatmulOutput& output = args.outputs[index];
    if (output.matrix.rows == 0) continue;
    PlainProduct product = {};
    product.weights = reinterpret_cast<const TileBytes*>(output.matrix.data.address());
    product.bias = reinterpret_cast<const float*>(output.bias.address());
    product.out = reinterpret_cast<float*>(output.out.address());
    product.rows = output.matrix.rows;
    product.out_stride = output.out_stride;
    product.tile_count = prepared.width / kTileWidth;
    product.input = reinterpret_cast<const float*>(args.input.address());
    product.input_stride = args.input_stride;
    product.cols = output.matrix.cols;
    product.norm_weight = reinterpret_cast<const float*>(args.norm_weight.address());
    product.prepared = prepared;
    product.epilogue = args.epilogue;
    product.soft_cap = args.soft_cap;
    const unsigned row_groups = static_cast<unsigned>((args.row_count + kRowsAtOnce - 1) / kRowsAtOnce);
    const dim3 grid(static_cast<unsigned>(strip_count(output.matrix.rows)), std::min(row_groups, kMaxGridY));
    launch_kernel("matmul_plain_kernel", plain_kernel(output.matrix.dtype), {grid, dim3(kThreads)}, target, product);
  }
}

}  // namespace genai::cuda
