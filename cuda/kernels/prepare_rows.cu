// prepare_rows.cu - the input of a product with 2 to 16 rows: RMS norm, then blocks of 32 to int8, into chunks that
// matmul_rows.cu copies to shared memory as they are (rows_input.cuh). By a kernel of its own where the blocks of the
// product have no counters to do it among themselves.
// Shapes   input (M, K) f32; out ceil(K / 1024) chunks.
// Mapping  a block a chunk of one row.
// Bound    latency: one trip to the cache for the norm and the values, a sum over the block, one trip back.
// Twin     engine/host, the same operations in the same order (engine/README.md, "Quantised activations").
#include <algorithm>

#include "cuda/kernels/rows_prepare.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

__global__ void __launch_bounds__(kPrepareThreads)
    prepare_rows_kernel(const RowsSource source, const RowsInput prepared) {
  __shared__ float shared[kPrepareThreads];
  allow_next_grid();
  const int chunk = static_cast<int>(blockIdx.x);
  const float4 weights = prepare_weights(source, chunk);
  wait_for_previous_grid();
  prepare_chunk(source, prepared, static_cast<int>(blockIdx.y), chunk, weights, shared, [] { __syncthreads(); });
}

int tile_count_of(int cols) { return static_cast<int>(padded_width(cols) / kTileWidth); }

}  // namespace

std::size_t rows_input_bytes(int row_count, int cols) {
  const RowsInput input = {nullptr, rows_columns(std::min(row_count, kMaxRows))};
  return static_cast<std::size_t>(chunk_count(tile_count_of(cols))) * static_cast<std::size_t>(input.chunk_bytes());
}

RowsSource rows_source(const MatmulArgs& args) {
  return {reinterpret_cast<const float*>(args.input.address()),
          reinterpret_cast<const float*>(args.norm_weight.address()),
          args.norm_epsilon,
          args.input_stride,
          args.outputs[0].matrix.cols,
          has_whole_fours(args)};
}

void launch_prepare_rows(const LaunchTarget& target, const RowsSource& source, const RowsInput& prepared,
                         int row_count) {
  const int chunks = chunk_count(tile_count_of(source.cols));
  launch_kernel("prepare_rows_kernel", prepare_rows_kernel,
                {dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(row_count)), dim3(kPrepareThreads)}, target,
                source, prepared);
}

}  // namespace genai::cuda
