// prepare_rows.cu - the input of a product with 2 to 16 rows: RMS norm, then blocks of 32 to int8, into chunks that
// matmul_rows.cu copies to shared memory as they are (rows_input.cuh).
// Shapes   input (M, K) f32; out ceil(K / 1024) chunks.
// Mapping  a warp a tile of 128 values. Blocks are many and small: they start beside two blocks of a product. Each
//          computes the norm of the whole row for itself.
// Bound    latency: one trip to the cache for the norm and the values, a sum over the block, one trip back.
// Twin     engine/host, the same operations in the same order (engine/README.md, "Quantised activations").
#include <algorithm>

#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"
#include "engine/packed_layout.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;
static_assert(kWarps == kChunkTiles, "a block has a whole chunk of its row at a time");
constexpr int kBlocksPerSm = 6;  // 40 registers a thread
constexpr int kBatch = 20;       // loads on their way at once

struct RowsSource {
  const float* values;
  const float* norm_weight;  // null: none
  float norm_epsilon;
  int stride;
  int cols;
  bool whole;  // rows and norm_weight start and end at 16-byte addresses
};

__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    prepare_rows_kernel(const RowsSource source, const RowsInput prepared) {
  __shared__ float shared[kThreads];
  allow_next_grid();
  const int m = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int block = lane / 8;
  const float* row = source.values + static_cast<std::int64_t>(m) * source.stride;
  const bool norm = source.norm_weight != nullptr;
  int tile = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  float4 weights = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (norm) weights = load_four(source.norm_weight, tile * kTileWidth + lane * 4, source.cols, source.whole);
  wait_for_previous_grid();
  float inverse = 1.0f;
  if (norm) inverse = block_inverse_rms<kBatch>(row, source.cols, source.norm_epsilon, shared);
  float4 four = load_four(row, tile * kTileWidth + lane * 4, source.cols, source.whole);
  while (tile * kTileWidth < source.cols) {
    const QuantizedFour result = quantize_four(norm ? normalize_four(four, inverse, weights) : four);
    unsigned char* chunk = prepared.chunks + tile / kChunkTiles * prepared.chunk_bytes();
    const int of_chunk = tile % kChunkTiles;
    *reinterpret_cast<unsigned*>(chunk + prepared.quant_offset(of_chunk, block, m) + lane % 4 * 16 + lane / 4 % 2 * 4) =
        result.quants;
    if (lane % 8 == 0) {
      const int place = prepared.scale_offset(of_chunk, block, m);
      *reinterpret_cast<float*>(chunk + prepared.scales() + place) = result.scale;
      *reinterpret_cast<float*>(chunk + prepared.sums() + place) = result.sum;
    }
    tile += static_cast<int>(gridDim.x) * kWarps;
    const int column = tile * kTileWidth + lane * 4;
    four = load_four(row, column, source.cols, source.whole);
    if (norm) weights = load_four(source.norm_weight, column, source.cols, source.whole);
  }
}

int tile_count_of(int cols) { return static_cast<int>(padded_width(cols) / kTileWidth); }

bool starts_at_16_bytes(DevicePtr<const float> pointer) { return pointer.address() % 16 == 0; }

}  // namespace

std::size_t rows_input_bytes(int row_count, int cols) {
  const RowsInput input = {nullptr, rows_columns(std::min(row_count, kMaxRows))};
  return static_cast<std::size_t>(chunk_count(tile_count_of(cols))) * static_cast<std::size_t>(input.chunk_bytes());
}

RowsInput launch_prepare_rows(const LaunchTarget& target, const MatmulArgs& args) {
  const int cols = args.outputs[0].matrix.cols;
  const RowsInput prepared = {reinterpret_cast<unsigned char*>(args.scratch.address()), rows_columns(args.row_count)};
  const bool whole = cols % 4 == 0 && args.input_stride % 4 == 0 && starts_at_16_bytes(args.input) &&
                     starts_at_16_bytes(args.norm_weight);
  const RowsSource source = {reinterpret_cast<const float*>(args.input.address()),
                             reinterpret_cast<const float*>(args.norm_weight.address()),
                             args.norm_epsilon,
                             args.input_stride,
                             cols,
                             whole};
  // At most one block a multiprocessor: there is room for no more beside two of a product.
  const int pieces = std::clamp(target.traits.sm_count / args.row_count, 1, chunk_count(tile_count_of(cols)));
  launch_kernel("prepare_rows_kernel", prepare_rows_kernel,
                {dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(args.row_count)), dim3(kThreads)}, target,
                source, prepared);
  return prepared;
}

}  // namespace genai::cuda
