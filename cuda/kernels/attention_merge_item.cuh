// attention_merge_item.cuh - what chunks of positions left behind (SplitScratch), merged by one warp for a slice of the
// dimensions of one head of a row, a dimension a lane. The largest score so far is a running maximum, which needs no
// order, so the weights of a group of chunks are computed at once, a chunk or two a lane; only the two sums are a
// chain. What a lane needs of oc is on its way to registers some batches of chunks ahead.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {

inline constexpr int kGroupBatches = 4;
static_assert(kSliceDims == kWarpLanes);

// A Size has kBatch, the chunks of a batch; kBatches, those on their way; and kGuessedChunks, asked for before it is
// known how many there are.
template <class Size>
constexpr int group_chunks() {
  return kGroupBatches * Size::kBatch;
}

struct MergeItem {
  int row;  // of the launch
  int head;
  int slice;
};

__device__ __forceinline__ MergeItem merge_item_at(const SplitScratch& scratch, int head_count, int index) {
  return {index / scratch.slice_count / head_count, index / scratch.slice_count % head_count,
          index % scratch.slice_count};
}

// oc of a batch of chunks, of which the first lies at `source`, at the lane's dimension.
template <int kChunks>
__device__ __forceinline__ void load_batch(const float* source, float (&outputs)[kChunks]) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) outputs[k] = __ldcg(source + k * kSliceDims);
}

// Sums of a lane's chunks of a group, which follow each other.
template <int kCount>
__device__ __forceinline__ void load_sums(const ChunkSum* sums, int chunk_count, ChunkSum (&lane_sums)[kCount]) {
  const int first = static_cast<int>(threadIdx.x) % kWarpLanes * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    lane_sums[i] = {bits_float(0xff800000u), 0.0f};
    if (first + i >= chunk_count) continue;
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(sums + first + i));
    lane_sums[i] = {pair.x, pair.y};
  }
}

// out at the lane's dimension, if there is that one. `weights` is the warp's, for group_chunks() of them; the sums of
// `known_chunks` may be read before count_chunks() says how many there are.
template <class Size, class CountChunks>
__device__ __forceinline__ float merge_item(const SplitScratch& scratch, int head_count, const MergeItem& item,
                                            float4* weights, int known_chunks, const CountChunks& count_chunks) {
  constexpr int kBatch = Size::kBatch;
  constexpr int kBatches = Size::kBatches;
  constexpr int kGroup = group_chunks<Size>();
  static_assert(4 * std::max(Size::kGuessedChunks, kBatch) * kSliceDims <= kScratchSlackBytes);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const float* source = scratch.output(item.row, head_count, item.head, 0, item.slice * kSliceDims) + lane;
  const ChunkSum* sums = scratch.sums + scratch.cell(item.row, head_count, item.head, 0);

  float batches[kBatches][kBatch];
  ChunkSum lane_sums[kGroup / kWarpLanes];
#pragma unroll
  for (int i = 0; i * kBatch < Size::kGuessedChunks; ++i) load_batch(source + i * kBatch * kSliceDims, batches[i]);
  load_sums(sums, known_chunks, lane_sums);
  const int chunk_count = count_chunks();
#pragma unroll
  for (int i = Size::kGuessedChunks / kBatch; i < kBatches; ++i)
    if (i * kBatch < chunk_count) load_batch(source + i * kBatch * kSliceDims, batches[i]);
  source += kBatches * kBatch * kSliceDims;

  float before = bits_float(0xff800000u);
  MergeState state = {0.0f, 0.0f};
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kGroup) {
    merge_weights(lane_sums, before, weights);
    load_sums(sums + first + kGroup, chunk_count - first - kGroup, lane_sums);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kGroupBatches; ++i) {
      const int left = chunk_count - first - i * kBatch;
      merge_batch(state, batches[i % kBatches], weights + i * kBatch, left);
      if (left > kBatches * kBatch) load_batch(source + i * kBatch * kSliceDims, batches[i % kBatches]);
    }
    source += kGroup * kSliceDims;
    __syncwarp();
  }
  return state.output * (1.0f / state.total);
}

}  // namespace genai::cuda
