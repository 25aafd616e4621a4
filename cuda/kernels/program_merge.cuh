// program_merge.cuh - what chunks left behind (program_partials.cuh), merged in ascending order: the end of attention
// as an operation of a program. An item is a slice of the dimensions of one head; two groups of warps have one at a
// time, and such halves of a block never meet. One warp computes the chunks' weights, four bring their outputs to
// shared memory, some batches ahead, and one has the two sums, a dimension a lane.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/program_attention.cuh"
#include "cuda/kernels/program_quants.cuh"

namespace genai::cuda {

inline constexpr int kMergeBatch = 32;  // chunks
inline constexpr int kBatchesAhead = 6;
inline constexpr int kWeightBatches = 2;  // whose weights are computed at once
inline constexpr int kWeightGroup = kWeightBatches * kMergeBatch;
inline constexpr int kStagedChunks = 256;  // whose sums are brought at once
inline constexpr int kLoadingWarps = 4;
inline constexpr int kMergingWarps = kLoadingWarps + 2;
inline constexpr int kLaneDims = 4;                                      // by one load
inline constexpr int kLoadChunks = kWarpLanes * kLaneDims / kSliceDims;  // by one load of a warp
inline constexpr int kBatchLoads = kMergeBatch / kLoadingWarps / kLoadChunks;
inline constexpr int kAddedChunks = 16;  // by straight code
inline constexpr int kProgramHalves = kProgramGroups / 2;
inline constexpr int kHalfWarps = 2 * kProgramGroupWarps;
static_assert(kSliceDims == kWarpLanes && kMergingWarps <= kHalfWarps);

// Of all warps of a half, and of those that have work.
__device__ __forceinline__ void half_barrier(int half) {
  numbered_barrier<kHalfWarps * kWarpLanes>(2 + kProgramGroups + half);
}
__device__ __forceinline__ void merging_barrier(int half) {
  numbered_barrier<kMergingWarps * kWarpLanes>(2 + kProgramGroups + kProgramHalves + half);
}

// Of all barriers by number.
__device__ __forceinline__ int program_barrier_threads(int id) {
  const int warps = id < 2                                     ? kConsumerWarps
                    : id < 2 + kProgramGroups                  ? kProgramGroupWarps
                    : id < 2 + kProgramGroups + kProgramHalves ? kHalfWarps
                                                               : kMergingWarps;
  return warps * kWarpLanes;
}

// A half's shared memory. Batches and groups of weights alternate between two places: between two barriers one is
// written and the other one read.
struct MergePlaces {
  float* outputs;   // [2][kMergeBatch][kSliceDims]
  float4* weights;  // [2][kWeightGroup]
  ChunkSum* sums;   // [kStagedChunks]
  int half;
  static constexpr int kHalfBytes = 2 * kGroupAreaBytes;
  static constexpr int kWeights = 2 * kMergeBatch * kSliceDims * 4;
  static constexpr int kSums = kWeights + 2 * kWeightGroup * 16;
  static_assert(kSums + kStagedChunks * 8 <= kHalfBytes);

  __device__ __forceinline__ MergePlaces(unsigned char* area, int of_half)
      : outputs(reinterpret_cast<float*>(area + of_half * kHalfBytes)),
        weights(reinterpret_cast<float4*>(area + of_half * kHalfBytes + kWeights)),
        sums(reinterpret_cast<ChunkSum*>(area + of_half * kHalfBytes + kSums)),
        half(of_half) {}
};

__device__ __forceinline__ int merge_batches(int chunk_count) { return (chunk_count + kMergeBatch - 1) / kMergeBatch; }

// oc of all chunks, of which the first lies at `source`; `dims` of the slice exist.
__device__ __forceinline__ void bring_outputs(unsigned* source, int chunk_count, int dims, const MergePlaces& places) {
  constexpr int kDimLanes = kSliceDims / kLaneDims;
  const int dim = own_lane() % kDimLanes * kLaneDims;
  const int chunk = (own_warp() % kHalfWarps - 2) * kBatchLoads * kLoadChunks + own_lane() / kDimLanes;  // of a batch
  unsigned* own = source + chunk * kSliceDims + dim;
  float* place = places.outputs + chunk * kSliceDims + dim;
  const int own_count = dim < dims ? chunk_count - chunk : 0;
  const auto offset = [](int batch, int load) { return batch * kMergeBatch + load * kLoadChunks; };  // chunks
  uint4 ahead[kBatchesAhead][kBatchLoads];
  const auto ask = [&](int batch, uint4(&fours)[kBatchLoads]) {
#pragma unroll
    for (int load = 0; load < kBatchLoads; ++load) {
      fours[load] = make_uint4(kZeroWord, kZeroWord, kZeroWord, kZeroWord);
      look_at_four(fours[load], own + offset(batch, load) * kSliceDims, offset(batch, load) < own_count);
    }
  };
#pragma unroll
  for (int i = 0; i < kBatchesAhead; ++i) ask(i, ahead[i]);
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
        for (int load = 0; load < kBatchLoads; ++load) {
          const bool again = !has_all(ahead[i][load]);
          missing |= again;
          look_at_four(ahead[i][load], own + offset(batch, load) * kSliceDims, again);
        }
      } while (missing);
#pragma unroll
      for (int load = 0; load < kBatchLoads; ++load) {
        *reinterpret_cast<float4*>(place + offset(batch % 2, load) * kSliceDims) = four_values(ahead[i][load]);
        if (offset(batch, load) < own_count)
          store_four(own + offset(batch, load) * kSliceDims, make_uint4(kNoWord, kNoWord, kNoWord, kNoWord));
      }
      ask(batch + kBatchesAhead, ahead[i]);
      merging_barrier(places.half);
    }
  }
}

// The weights of all chunks, a group of them before its first batch. The first chunk's sum lies at `source`.
__device__ __forceinline__ void bring_weights(unsigned* source, int chunk_count, const MergePlaces& places) {
  constexpr int kAhead = kStagedChunks / kWarpLanes;
  const int lane = own_lane();
  unsigned* own = source + lane * kSumWords;
  const auto offset = [](int index) { return index * kWarpLanes; };  // chunks
  const float lowest = bits_float(0xff800000u);
  uint2 ahead[kAhead];
  const auto ask = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = make_uint2(value_word(lowest), kZeroWord);
      look_at_two(ahead[i], own + (first + offset(i)) * kSumWords, first + offset(i) + lane < chunk_count);
    }
  };
  const auto stage = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + offset(i) >= chunk_count) break;
      unsigned* at = own + (first + offset(i)) * kSumWords;
      while (!has_all(ahead[i])) look_at_two(ahead[i], at, true);
      places.sums[offset(i) + lane] = {word_value(ahead[i].x), word_value(ahead[i].y)};
      if (first + offset(i) + lane < chunk_count) store_two(at, make_uint2(kNoWord, kNoWord));
    }
    __syncwarp();
    ask(first + kStagedChunks);
  };
  ask(0);
  float before = lowest;
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kWeightGroup) {
    constexpr int kCount = kWeightGroup / kWarpLanes;  // chunks of a lane
    if (first % kStagedChunks == 0) stage(first);
    ChunkSum own_sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      own_sums[i] = {lowest, 0.0f};
      if (first + lane * kCount + i < chunk_count) own_sums[i] = places.sums[first % kStagedChunks + lane * kCount + i];
    }
    merge_weights(own_sums, before, places.weights + (first / kWeightGroup & 1) * kWeightGroup);
    // The place of the next group's weights is free once this group's first batch has begun.
    if (first > 0) merging_barrier(places.half);
    merging_barrier(places.half);
  }
  if (merge_batches(chunk_count) % kWeightBatches == 0) merging_barrier(places.half);
}

// The output of all chunks at the lane's dimension.
__device__ __forceinline__ float add_chunks(int chunk_count, const MergePlaces& places) {
  const float* own = places.outputs + own_lane();
  MergeState state = {0.0f, 0.0f};
  int first = 0;
#pragma unroll 1
  for (; first + kAddedChunks <= chunk_count; first += kAddedChunks) {
    if (first % kMergeBatch == 0) merging_barrier(places.half);
    float outputs[kAddedChunks];
#pragma unroll
    for (int k = 0; k < kAddedChunks; ++k) outputs[k] = own[(first % (2 * kMergeBatch) + k) * kSliceDims];
    merge_batch(state, outputs, places.weights + first % (2 * kWeightGroup));
  }
  if (first < chunk_count && first % kMergeBatch == 0) merging_barrier(places.half);
#pragma unroll 1
  for (; first < chunk_count; ++first)
    state.add(own[first % (2 * kMergeBatch) * kSliceDims], places.weights[first % (2 * kWeightGroup)]);
  return state.output * (1.0f / state.total);
}

// All threads that consume, behind attend(). Leaves the area to a barrier of all of them.
__device__ __forceinline__ void merge_chunks(const ProgramAttention& op, const AttentionStep& step) {
  const int half = own_warp() / kHalfWarps;
  const int warp = own_warp() % kHalfWarps;
  const int lane = own_lane();
  const int head_dim = op.kind.cache.head_dim;
  const MergePlaces places(step.area, half);
  const ChunkWords words(op, step.handover);
  const ProgramOutput vector = op.output();
  const int chunk_count = chunk_span(step.row.position, op.kind.window).count;
  const int item_count = op.kind.head_count * words.slices;
  half_barrier(half);  // both groups have left the area
  if (warp >= kMergingWarps) return;
  // The last half has had the fewest items of attend().
  int item = static_cast<int>(blockIdx.x) + (kProgramHalves - 1 - half) * static_cast<int>(gridDim.x);
#pragma unroll 1
  for (; item < item_count; item += kProgramHalves * static_cast<int>(gridDim.x)) {
    const int head = item / words.slices;
    const int slice = item - head * words.slices;
    const int dim = slice * kSliceDims + lane;
    if (warp == 0) {
      const float out = add_chunks(chunk_count, places);
      if (vector.quantized_width != 0) hand_over_block(vector, step.words(), item, out);
      if (dim < head_dim) store_output(vector, step.words(), op.kind.out, head * head_dim + dim, out);
    } else if (warp == 1) {
      bring_weights(words.sum(head, slice, 0), chunk_count, places);
    } else {
      bring_outputs(words.output(head, slice, 0), chunk_count, head_dim - slice * kSliceDims, places);
    }
    merging_barrier(half);  // the next item's first batch may take the place of this one's last
  }
}

}  // namespace genai::cuda
