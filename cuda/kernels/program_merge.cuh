// program_merge.cuh - what chunks left behind (program_partials.cuh), merged in ascending order: the end of attention
// as an operation of a program. An item is a slice of the dimensions of one head; two groups of warps have one at a
// time, and such halves of a block never meet. One warp computes the chunks' weights, four bring their outputs to
// shared memory, some batches ahead, and one has the two sums, a dimension a lane.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/program_attention.cuh"

namespace genai::cuda {

inline constexpr int kMergeBatch = 32;  // chunks
inline constexpr int kBatchesAhead = 3;
inline constexpr int kWeightBatches = 2;  // whose weights are computed at once
inline constexpr int kWeightGroup = kWeightBatches * kMergeBatch;
inline constexpr int kLoadingWarps = 4;
inline constexpr int kMergingWarps = kLoadingWarps + 2;
inline constexpr int kLoadedChunks = kMergeBatch / kLoadingWarps;  // of a batch, by one warp
inline constexpr int kAddedChunks = 16;                            // by straight code
inline constexpr int kProgramHalves = kProgramGroups / 2;
inline constexpr int kHalfWarps = 2 * kProgramGroupWarps;
static_assert(kSliceDims == kWarpLanes && kMergingWarps <= kHalfWarps);

// Of all warps of a half, and of those that have work.
__device__ __forceinline__ void half_barrier(int half) {
  numbered_barrier<kHalfWarps * kWarpLanes>(2 + kProgramGroups + half);
}
__device__ __forceinline__ void merging_barrier(int half) {
  numbered_barrier<kMergingWarps * kWarpLanes>(2 + kProgramGroups + half);
}

// A half's shared memory. Batches and groups of weights alternate between two places: between two barriers one is
// written and the other one read.
struct MergePlaces {
  float* outputs;   // [2][kMergeBatch][kSliceDims]
  float4* weights;  // [2][kWeightGroup]
  int half;
  static constexpr int kHalfBytes = 2 * kGroupAreaBytes;
  static constexpr int kWeights = 2 * kMergeBatch * kSliceDims * 4;
  static_assert(kWeights + 2 * kWeightGroup * 16 <= kHalfBytes);

  __device__ __forceinline__ MergePlaces(unsigned char* area, int of_half)
      : outputs(reinterpret_cast<float*>(area + of_half * kHalfBytes)),
        weights(reinterpret_cast<float4*>(area + of_half * kHalfBytes + kWeights)),
        half(of_half) {}
};

__device__ __forceinline__ int merge_batches(int chunk_count) { return (chunk_count + kMergeBatch - 1) / kMergeBatch; }

// oc of all chunks at the lane's dimension; the first one of the warp lies at `source`. Only `active` lanes have one.
__device__ __forceinline__ void bring_outputs(const Cell* source, int chunk_count, int first_chunk, bool active,
                                              unsigned tag, const MergePlaces& places) {
  CellWord ahead[kBatchesAhead][kLoadedChunks];
  const auto ask = [&](int batch, CellWord(&words)[kLoadedChunks]) {
    const int left = active ? chunk_count - first_chunk - batch * kMergeBatch : 0;
#pragma unroll
    for (int k = 0; k < kLoadedChunks; ++k) {
      words[k] = cell_word(0.0f, tag);
      look_again(words[k], source + (batch * kMergeBatch + k) * kSliceDims, k < left);
    }
  };
#pragma unroll
  for (int i = 0; i < kBatchesAhead; ++i) ask(i, ahead[i]);
  float* place = places.outputs + first_chunk * kSliceDims + own_lane();
  const int batches = merge_batches(chunk_count);
#pragma unroll 1
  for (int first = 0; first < batches; first += kBatchesAhead) {
#pragma unroll
    for (int i = 0; i < kBatchesAhead; ++i) {
      const int batch = first + i;
      if (batch >= batches) break;
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int k = 0; k < kLoadedChunks; ++k) {
          const bool again = tag_of(ahead[i][k]) != tag;
          missing |= again;
          look_again(ahead[i][k], source + (batch * kMergeBatch + k) * kSliceDims, again);
        }
      } while (missing);
#pragma unroll
      for (int k = 0; k < kLoadedChunks; ++k) place[(batch % 2 * kMergeBatch + k) * kSliceDims] = value_of(ahead[i][k]);
      if (batch + kBatchesAhead < batches) ask(batch + kBatchesAhead, ahead[i]);
      merging_barrier(places.half);
    }
  }
}

// The weights of all chunks, a group of them before its first batch.
__device__ __forceinline__ void bring_weights(const Cell* sums, int chunk_count, unsigned tag,
                                              const MergePlaces& places) {
  constexpr int kCount = kWeightGroup / kWarpLanes;  // chunks of a lane
  const int own_first = own_lane() * kCount;
  const float lowest = bits_float(0xff800000u);
  SumWords ahead[kCount];
  const auto ask = [&](int first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int chunk = first + own_first + i;
      ahead[i] = {cell_word(lowest, tag), cell_word(0.0f, tag)};
      ahead[i].look_again(sums + chunk * kSumCells, chunk < chunk_count);
    }
  };
  float before = lowest;
  const auto weigh = [&](int first) {
    ChunkSum own_sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      while (!ahead[i].have(tag)) ahead[i].look_again(sums + (first + own_first + i) * kSumCells, true);
      own_sums[i] = ahead[i].sum();
    }
    __syncwarp();
    merge_weights(own_sums, before, places.weights + first / kWeightGroup % 2 * kWeightGroup);
    ask(first + kWeightGroup);
  };
  ask(0);
  weigh(0);
  const int batches = merge_batches(chunk_count);
#pragma unroll 1
  for (int batch = 0; batch < batches; ++batch) {
    merging_barrier(places.half);
    // The place of the next group's weights is free, since this group's have begun.
    const int next = (batch / kWeightBatches + 1) * kWeightGroup;
    if (batch % kWeightBatches == 0 && next < chunk_count) weigh(next);
  }
}

// The output at the lane's dimension.
__device__ __forceinline__ float add_chunks(int chunk_count, const MergePlaces& places) {
  const float* own = places.outputs + own_lane();
  MergeState state = {0.0f, 0.0f};
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kAddedChunks) {
    if (first % kMergeBatch == 0) merging_barrier(places.half);
    float outputs[kAddedChunks];
#pragma unroll
    for (int k = 0; k < kAddedChunks; ++k) outputs[k] = own[(first % (2 * kMergeBatch) + k) * kSliceDims];
    merge_batch(state, outputs, places.weights + first % (2 * kWeightGroup), chunk_count - first);
  }
  return state.output * (1.0f / state.total);
}

// All threads that consume, behind attend(). Leaves the area to a barrier of all of them.
__device__ __forceinline__ void merge_chunks(const ProgramAttention& op, const AttentionStep& step) {
  const int half = own_warp() / kHalfWarps;
  const int warp = own_warp() % kHalfWarps;
  const int lane = own_lane();
  const int head_dim = op.cache.head_dim;
  const MergePlaces places(step.area, half);
  const ChunkCells cells(op, step.handover);
  const int chunk_count = chunk_span(step.row.position, op.window).count;
  const unsigned tag = step.tag();
  const int item_count = op.head_count * cells.slices;
  half_barrier(half);  // both groups have left the area
  if (warp >= kMergingWarps) return;
  // The last half has had the fewest items of attend().
  int item = static_cast<int>(blockIdx.x) + (kProgramHalves - 1 - half) * static_cast<int>(gridDim.x);
#pragma unroll 1
  for (; item < item_count; item += kProgramHalves * static_cast<int>(gridDim.x)) {
    const int head = item / cells.slices;
    const int slice = item - head * cells.slices;
    const int dim = slice * kSliceDims + lane;
    if (warp == 0) {
      const float out = add_chunks(chunk_count, places);
      if (dim < head_dim) {
        store_output(op.output, step.words(), op.out, head * head_dim + dim, out);
      }
    } else if (warp == 1) {
      bring_weights(cells.sum(head, 0), chunk_count, tag, places);
    } else {
      const int first_chunk = (warp - 2) * kLoadedChunks;
      bring_outputs(cells.output(head, slice, first_chunk) + lane, chunk_count, first_chunk, dim < head_dim, tag,
                    places);
    }
    merging_barrier(half);  // the next item's first batch may take the place of this one's last
  }
}

}  // namespace genai::cuda
