// rows_program_merge.cuh - what chunks of positions of a chain's attention left behind (program_partials.cuh), merged,
// rounded, and handed over as slices of the next product's input. An item is a slice of the dimensions of one head of a
// row, by one warp, a dimension a lane. Outputs are on their way to registers some batches ahead.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_merge.cuh"
#include "cuda/kernels/rows_program_attention.cuh"

namespace genai::cuda {

inline constexpr int kRowsMergeBatch = 4;    // chunks
inline constexpr int kRowsBatchesAhead = 1;  // with two, spilled registers cost more than is gained
static_assert(kWarpLanes * sizeof(float4) <= kMaxProgramHeadDim * sizeof(float), "weights in the place of a head");

// The chunks of a head and slice, of which `outputs` and `sums` are those of the first; `weights` is the warp's.
__device__ __forceinline__ float merge_chunks(unsigned* outputs, unsigned* sums, int chunk_count, float4* weights) {
  const int lane = own_lane();
  const float lowest = bits_float(0xff800000u);
  const auto ask_sum = [&](int first) {
    uint2 sum = make_uint2(value_word(lowest), kZeroWord);
    look_at_two(sum, sums + (first + lane) * kSumWords, first + lane < chunk_count);
    return sum;
  };
  unsigned* own = outputs + lane;
  unsigned ahead[kRowsBatchesAhead][kRowsMergeBatch];
  uint2 sum = ask_sum(0);
  float before = lowest;
  MergeState state = {0.0f, 0.0f};
  // The first round asks for what the second one takes.
#pragma unroll 1
  for (int first = -kRowsBatchesAhead * kRowsMergeBatch; first < chunk_count; first += kRowsMergeBatch) {
    unsigned seen[kRowsMergeBatch];
#pragma unroll
    for (int k = 0; k < kRowsMergeBatch; ++k) {
      seen[k] = ahead[0][k];
#pragma unroll
      for (int i = 0; i + 1 < kRowsBatchesAhead; ++i) ahead[i][k] = ahead[i + 1][k];
      const int chunk = first + kRowsBatchesAhead * kRowsMergeBatch + k;
      ahead[kRowsBatchesAhead - 1][k] = kZeroWord;
      look_at_word(ahead[kRowsBatchesAhead - 1][k], own + chunk * kSliceDims, chunk < chunk_count);
    }
    if (first < 0) continue;
    if (first % kWarpLanes == 0) {
      unsigned* own_sum = sums + (first + lane) * kSumWords;
      while (!has_all(sum)) look_at_two(sum, own_sum, true);
      if (first + lane < chunk_count) store_two(own_sum, make_uint2(kNoWord, kNoWord));
      __syncwarp();  // the last weights have been read
      const ChunkSum own_sums[1] = {{word_value(sum.x), word_value(sum.y)}};
      merge_weights(own_sums, before, weights);
      __syncwarp();
      sum = ask_sum(first + kWarpLanes);
    }
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int k = 0; k < kRowsMergeBatch; ++k) {
        const bool again = seen[k] == kNoWord;
        missing |= again;
        look_at_word(seen[k], own + (first + k) * kSliceDims, again);
      }
    } while (missing);
#pragma unroll
    for (int k = 0; k < kRowsMergeBatch; ++k) {
      if (first + k >= chunk_count) break;
      store_word(own + (first + k) * kSliceDims, kNoWord);
      state.add(word_value(seen[k]), weights[first % kWarpLanes + k]);
    }
  }
  return state.output * (1.0f / state.total);
}

// All warps, each behind its group's items.
template <class Slices>
__device__ __forceinline__ void merge_rows(const PassAttention& attention, const RowsStep& step) {
  const ProgramAttention& op = attention.op;
  const int slices = slice_count(op.kind.cache.head_dim);
  const int items = op.kind.head_count * slices;  // of a row
  const int blocks = static_cast<int>(gridDim.x);
  const int lane = own_lane();
  // The last groups have had the fewest chunks.
  int index = static_cast<int>(blockIdx.x) + (kHalves * kRowsWarps - 1 - own_warp()) * blocks;
#pragma unroll 1
  for (; index < Slices::kColumns * items; index += kHalves * kRowsWarps * blocks) {
    float out = 0.0f;  // columns behind the last row are zero
    if (const int m = index / items; m < attention.program.row_count) {
      const int item = index - m * items;
      const ChunkWords words = attention.chunk_words();
      const int head = m * op.kind.head_count + item / slices;
      out =
          merge_chunks(words.output(head, item % slices, 0), words.sum(head, item % slices, 0), attention.span(m).count,
                       reinterpret_cast<float4*>(attention.weights() + attention.own().warp * kMaxProgramHeadDim));
      if (op.call.stores) op.kind.out[index * kSliceDims + lane] = out;
    }
    const int m = keep(index) / items;
    const int item = index - m * items;
    const RoundedBlock rounded(out);
    unsigned* slice = attention.words() + step.words.input + item / kTileBlocks * Slices::kUnits * 4;
    const int block = item % kTileBlocks;
    const int quad = lane / 4;
    const int place = Slices::scale_offset(block, m);
    if (lane % 4 == 0)
      store_word(slice + Slices::quant_offset(block, m) / 4 + quad % 4 * 4 + quad / 4, rounded.four ^ kQuantTurn);
    if (lane == 1) store_word(slice + (Slices::scales() + place) / 4, value_word(rounded.scale.scale));
    if constexpr (Slices::kSums)
      if (lane == 2) store_word(slice + (Slices::sums() + place) / 4, value_word(rounded.scaled_sum()));
  }
}

}  // namespace genai::cuda
