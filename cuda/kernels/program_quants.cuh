// program_quants.cuh - a vector of a program that is handed over as int8, since all who read it in the program round it
// and do nothing else with it: one block rounds 32 values for all. Its words, from ProgramOutput::words on: quants,
// four a word, in the order of row_vector.cuh; each block's scale; scale times sum, for types that have a minimum; and
// single values on their way to whoever has the first of their block of 32.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/program_group.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

// No quant is -128: a word of four such is none.
inline constexpr unsigned kQuantTurn = 0x80808080u;

constexpr int quantized_words(int width) { return width + width / 4 + 2 * (width / kBlockWidth); }

// Where its parts begin; `width` is whole blocks.
struct QuantizedWords {
  int quants;
  int scales;
  int sums;
  int values;

  __device__ __forceinline__ QuantizedWords(int first, int width)
      : quants(first),
        scales(quants + width / 4),
        sums(scales + width / kBlockWidth),
        values(sums + width / kBlockWidth) {}
  __device__ __forceinline__ explicit QuantizedWords(const ProgramOutput& vector)
      : QuantizedWords(vector.words, vector.quantized_width) {}
};

// A word of the vector, and none where the last generation has it.
__device__ __forceinline__ void store_next(const ProgramOutput& vector, unsigned* words, int place, unsigned word) {
  store_word(words + place, word);
  if (vector.before >= 0) store_word(words + place - vector.words + vector.before, kNoWord);
}

// A block of 32, a value a lane, by a whole warp.
__device__ __forceinline__ void hand_over_block(const ProgramOutput& vector, unsigned* words, int block, float value) {
  const int lane = own_lane();
  const RoundedBlock rounded(value);
  const QuantizedWords at(vector);
  // Lanes 0, 4, ... have four quants, lane 1 the scale, lane 2 the sum.
  const int quad = lane / 4;
  if (lane % 4 == 0)
    store_next(vector, words, at.quants + block * 8 + quad % 4 * 2 + quad / 4, rounded.four ^ kQuantTurn);
  else if (lane <= 2)
    store_next(vector, words, (lane == 1 ? at.scales : at.sums) + block,
               value_word(lane == 1 ? rounded.scale.scale : rounded.scaled_sum()));
}

// The vector into shared memory, once all consumers are through with the last operation; the caller has a barrier
// before anyone reads.
template <bool kSums>
__device__ __forceinline__ void take_quantized_vector(const ProgramInput& input, const unsigned* words, int width,
                                                      const RowVector& row) {
  const QuantizedWords at(input.words, width);
  const int thread = own_thread();
  const int blocks = width / kBlockWidth;
  const int all_blocks = octet_count(width) * kOctetBlocks;  // with those behind its end, which are zero
  consumer_barrier();
#pragma unroll 1
  for (int first = 0; first < all_blocks; first += kConsumerThreads) {
    // Two halves of blocks, and what else a block has.
    uint4 halves[2];
    const int half = 2 * first + thread;
    const int block = first + thread;
    unsigned scale = kZeroWord;
    unsigned sum = kZeroWord;
    bool wants[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      wants[i] = half + i * kConsumerThreads < 2 * blocks;
      halves[i] = make_uint4(kQuantTurn, kQuantTurn, kQuantTurn, kQuantTurn);
      if (wants[i]) halves[i] = make_uint4(kNoWord, kNoWord, kNoWord, kNoWord);
    }
    if (block < blocks) scale = kNoWord;
    if (kSums && block < blocks) sum = kNoWord;
    do {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        look_at_four(halves[i], words + at.quants + (half + i * kConsumerThreads) * 4, !has_all(halves[i]));
      look_at_word(scale, words + at.scales + block, scale == kNoWord);
      if constexpr (kSums) look_at_word(sum, words + at.sums + block, sum == kNoWord);
    } while (!has_all(halves[0]) || !has_all(halves[1]) || scale == kNoWord || sum == kNoWord);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int place = half + i * kConsumerThreads;
      if (place < 2 * all_blocks)
        reinterpret_cast<uint4*>(row.quants)[place] = make_uint4(halves[i].x ^ kQuantTurn, halves[i].y ^ kQuantTurn,
                                                                 halves[i].z ^ kQuantTurn, halves[i].w ^ kQuantTurn);
    }
    if (block < all_blocks) {
      row.scales[block] = word_value(scale);
      if constexpr (kSums) row.sums[block] = word_value(sum);
    }
  }
}

}  // namespace genai::cuda
