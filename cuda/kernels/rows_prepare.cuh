// rows_prepare.cuh - one chunk of one row of a product's input (rows_input.cuh) by 256 threads: RMS norm, then blocks
// of 32 to int8. A warp has a tile of 128 values; the norm of the whole row is computed for each chunk anew. The
// arithmetic is engine/README.md, "RMS norm" and "Quantised activations".
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"
#include "engine/packed_layout.h"

namespace genai::cuda {

// Rows as they are, with stride and norm.
struct RowsSource {
  const float* values;
  const float* norm_weight;  // null: none
  float norm_epsilon;
  int stride;
  int cols;
  bool whole;  // rows and norm_weight start and end at 16-byte addresses
};

inline constexpr int kPrepareThreads = 256;
static_assert(kPrepareThreads == kChunkTiles * kWarpLanes);

// The first of a thread's four values of a chunk.
__device__ __forceinline__ int prepare_column(int chunk) {
  return chunk * kChunkTiles * kTileWidth + 4 * static_cast<int>(threadIdx.x);
}

// Those of the norm for a thread's four values: nothing that kernels write.
__device__ __forceinline__ float4 prepare_weights(const RowsSource& source, int chunk) {
  if (source.norm_weight == nullptr) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return load_four(source.norm_weight, prepare_column(chunk), source.cols, source.whole);
}

// `shared` holds 256 floats; after barrier() all threads see what each wrote there.
template <class Barrier>
__device__ __forceinline__ void prepare_chunk(const RowsSource& source, const RowsInput& prepared, int m, int chunk,
                                              const float4& weights, float* shared, const Barrier& barrier) {
  constexpr int kLoads = 20;  // on their way at once
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpLanes;
  const int tile = thread / kWarpLanes;
  const float* row = source.values + static_cast<std::int64_t>(m) * source.stride;
  float4 four = load_four(row, prepare_column(chunk), source.cols, source.whole);
  if (source.norm_weight != nullptr) {
    shared[thread] = partial_square_sum<kLoads>(row, source.cols, thread);
    barrier();
    four = normalize_four(four, inverse_rms(shared_tree_256(shared), source.cols, source.norm_epsilon), weights);
  }
  if ((chunk * kChunkTiles + tile) * kTileWidth >= source.cols) return;
  const QuantizedFour result = quantize_four(four);
  unsigned char* to = prepared.chunks + chunk * prepared.chunk_bytes();
  const int block = lane / 8;
  *reinterpret_cast<unsigned*>(to + prepared.quant_offset(tile, block, m) + lane % 4 * 16 + lane / 4 % 2 * 4) =
      result.quants;
  if (lane % 8 == 0) {
    const int place = prepared.scale_offset(tile, block, m);
    *reinterpret_cast<float*>(to + prepared.scales() + place) = result.scale;
    *reinterpret_cast<float*>(to + prepared.sums() + place) = result.sum;
  }
}

RowsSource rows_source(const MatmulArgs& args);

// By a kernel of its own.
void launch_prepare_rows(const LaunchTarget& target, const RowsSource& source, const RowsInput& prepared,
                         int row_count);

}  // namespace genai::cuda
