// attention_finish.cuh - the end of attention over a few rows (attention_decode.cu): all blocks wait for each other,
// then their warps merge what chunks of positions left behind, and leave the result to the next product also as int8.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_merge_item.cuh"
#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/rounding.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

// By which the blocks of a grid that are all there at once wait for each other; zero before and behind.
struct GridCounters {
  unsigned* arrived;  // null: another kernel merges
  unsigned* left;

  __host__ __device__ static GridCounters at(unsigned* counters) { return {counters + 64, counters + 96}; }
};

struct FinishPlan {
  GridCounters counters;
  RowsInput prepared;  // of the product that reads the output; chunks null: there is none
};

// What every thread of the grid wrote is seen behind it. The last block that has left clears the counters for the next
// kernel.
__device__ __forceinline__ void wait_for_grid(const GridCounters& counters) {
  __syncthreads();
  if (threadIdx.x == 0) {
    count_up(counters.arrived);
    wait_count(counters.arrived, gridDim.x);
  }
  __syncthreads();
}
__device__ __forceinline__ void leave_grid(const GridCounters& counters) {
  if (threadIdx.x != 0 || atomicAdd(counters.left, 1u) + 1 < gridDim.x) return;
  *counters.arrived = 0;
  *counters.left = 0;
}

// A block of 32 values of row m, which begin at `column`, a value a lane.
__device__ __forceinline__ void prepare_block(const RowsInput& prepared, int m, int column, float value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const RoundingScale scale(warp_max(magnitude(value)));
  const int quant = scale.counts ? static_cast<signed char>(quant_bits(value, scale.inverse)) : 0;
  unsigned four = static_cast<unsigned>(quant) & 0xffu;
  four |= __shfl_down_sync(kFullWarp, four, 1) << 8;
  four |= __shfl_down_sync(kFullWarp, four, 2) << 16;
  int sum = sum_of_quants(four);
#pragma unroll
  for (int stride = 16; stride >= 4; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
  if (lane % 4 != 0) return;
  // Lanes 0, 4, ... have four quants, and the block's sum.
  const int quad = lane / 4;
  const int tile = column / kTileWidth;
  const int block = column % kTileWidth / kBlockWidth;
  unsigned char* chunk = prepared.chunks + tile / kChunkTiles * prepared.chunk_bytes();
  const int quants = prepared.quant_offset(tile % kChunkTiles, block, m);
  const int place = prepared.scale_offset(tile % kChunkTiles, block, m);
  *reinterpret_cast<unsigned*>(chunk + quants + quad % 4 * 16 + quad / 4 * 4) = four;
  if (quad == 0) *reinterpret_cast<float*>(chunk + prepared.scales() + place) = scale.scale;
  if (quad == 1) *reinterpret_cast<float*>(chunk + prepared.sums() + place) = scale.scale * static_cast<float>(sum);
}

struct DecodeMerge {
  static constexpr int kBatch = 8;
  static constexpr int kBatches = 4;
  static constexpr int kGuessedChunks = 0;
};

// By all warps, behind wait_for_grid(). `count_chunks` of a row of the launch; `weights` is the warp's place for
// group_chunks() of them. Turned queries lie in the place of the output until then.
template <class CountChunks>
__device__ __forceinline__ void merge_items(const AttentionArgs& args, const SplitScratch& scratch,
                                            const FinishPlan& plan, float* turned_queries, float4* weights,
                                            const CountChunks& count_chunks) {
  const int head_dim = args.cache.head_dim;
  const int items = scratch.row_count * args.head_count * scratch.slice_count;
  const int warps = static_cast<int>(gridDim.x * blockDim.x / kWarpLanes);
  int index = static_cast<int>(blockIdx.x + threadIdx.x / kWarpLanes * gridDim.x);
#pragma unroll 1
  for (; index < items; index += warps) {
    const MergeItem item = merge_item_at(scratch, args.head_count, index);
    const int m = scratch.first_row + item.row;
    const int dim = item.slice * kSliceDims + static_cast<int>(threadIdx.x) % kWarpLanes;
    const std::int64_t place = (std::int64_t{m} * args.head_count + item.head) * head_dim + dim;
    const bool exists = dim < head_dim;
    float* out = raw(args.out) + place;
    float query = 0.0f;
    if (turned_queries != nullptr && exists) query = __ldcg(out);
    const int chunk_count = count_chunks(item.row);
    const float value =
        merge_item<DecodeMerge>(scratch, args.head_count, item, weights, chunk_count, [&] { return chunk_count; });
    if (exists) *out = value;
    if (turned_queries != nullptr && exists) turned_queries[place] = query;
    if (plan.prepared.chunks != nullptr)
      prepare_block(plan.prepared, m, item.head * head_dim + item.slice * kSliceDims, value);
  }
}

}  // namespace genai::cuda
