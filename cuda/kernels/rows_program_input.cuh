// rows_program_input.cuh - the input of a product of a chain (NOTE [Rows program]): prepared by some halves, a chunk of
// a row each, and taken into shared memory by all blocks.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program_quants.cuh"
#include "cuda/kernels/rows_program.cuh"

namespace genai::cuda {

// As partial_square_sum, of words; what is missing of four others is asked for at the same time.
template <int kLoads>
__device__ __forceinline__ float partial_square_sum_of_words(const unsigned* row, int width, int thread,
                                                             const unsigned* others, uint4& four) {
  float partial = 0.0f;
#pragma unroll 1
  for (int first = thread; first < width; first += kLoads * kPrepareThreads) {
    unsigned seen[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) seen[k] = first + k * kPrepareThreads < width ? kNoWord : kZeroWord;
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) look_at_word(seen[k], row + first + k * kPrepareThreads, seen[k] == kNoWord);
      look_at_four(four, others, !has_all(four));
#pragma unroll
      for (int k = 0; k < kLoads; ++k) missing |= seen[k] == kNoWord;
    } while (missing);  // the four are perhaps not all there
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const float value = word_value(seen[k]);
      partial = exact_fma(value, value, partial);
    }
  }
  return partial;
}

// Waits for what is missing of them.
__device__ __forceinline__ float4 take_four(const unsigned* at, uint4 seen) {
  while (!has_all(seen)) look_at_four(seen, at, true);
  return four_values(seen);
}

// One chunk of one row, normalised and rounded; as prepare_chunk, whose `shared` this is.
template <class Slices>
__device__ __forceinline__ void prepare_slices(const RowsProgram& program, const RowsStep& step, unsigned* words,
                                               const HalfThread& own, int m, int chunk, float* shared) {
  constexpr int kLoads = 20;
  const RowsSource& source = step.source;
  const int column = chunk * kChunkTiles * kTileWidth + 4 * own.thread();
  float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (m < program.row_count) {  // columns behind the last row are zero
    float4 weights = four;
    if (source.norm_weight != nullptr) weights = load_four(source.norm_weight, column, source.cols, source.whole);
    float partial = 0.0f;
    if (step.words.source >= 0) {
      const unsigned* row = words + step.words.source + m * source.cols;
      const unsigned word = column < source.cols ? kNoWord : kZeroWord;
      uint4 seen = make_uint4(word, word, word, word);
      if (source.norm_weight != nullptr)
        partial = partial_square_sum_of_words<kLoads>(row, source.cols, own.thread(), row + column, seen);
      four = take_four(row + column, seen);
    } else {
      const float* row = source.values + static_cast<std::int64_t>(m) * source.stride;
      four = load_four(row, column, source.cols, source.whole);
      if (source.norm_weight != nullptr) partial = partial_square_sum<kLoads>(row, source.cols, own.thread());
    }
    if (source.norm_weight != nullptr) {
      own.barrier();  // `shared` has been read
      shared[own.thread()] = partial;
      own.barrier();
      four = normalize_four(four, inverse_rms(shared_tree_256(shared), source.cols, source.norm_epsilon), weights);
    }
  }
  const int tile = chunk * kChunkTiles + own.warp;
  if (tile >= step.shape.tile_count) return;
  const QuantizedFour result = quantize_four(four);
  unsigned* slice = words + step.words.input + tile * Slices::kUnits * 4;
  const int block = own.lane / 8;
  store_word(slice + Slices::quant_offset(block, m) / 4 + own.lane % 4 * 4 + own.lane / 4 % 2,
             result.quants ^ kQuantTurn);
  if (own.lane % 8 != 0) return;
  const int place = Slices::scale_offset(block, m);
  store_word(slice + (Slices::scales() + place) / 4, value_word(result.scale));
  if constexpr (Slices::kSums) store_word(slice + (Slices::sums() + place) / 4, value_word(result.sum));
}

// The half's part of a step's input.
template <class Slices>
__device__ __forceinline__ void prepare_step(const RowsProgram& program, const RowsStep& step, unsigned* words,
                                             const HalfThread& own, float* shared) {
  constexpr int kColumns = Slices::kColumns;
  const int count = chunk_count(step.shape.tile_count) * kColumns;
  const int blocks = static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int index = own.half() * blocks + static_cast<int>(blockIdx.x); index < count; index += kHalves * blocks)
    prepare_slices<Slices>(program, step, words, own, index % kColumns, index / kColumns, shared);
}

// The slices that the warp reads into shared memory, by it and its like of the other half.
template <class Slices>
__device__ __forceinline__ void take_slices(const RowsStep& step, const unsigned* words, const HalfThread& own,
                                            unsigned char* shared) {
  constexpr int kBatch = 8;
  constexpr int kThreads = kHalves * kWarpLanes;
  constexpr int kUnits = Slices::kUnits;
  const int count = (step.shape.tile_count + kChunkTiles - 1 - own.warp) / kChunkTiles * kUnits;
  own.pair_barrier();  // both are through with the last input
#pragma unroll 1
  for (int first = own.half() * kWarpLanes + own.lane; __any_sync(kFullWarp, first < count);
       first += kBatch * kThreads) {
    int places[kBatch];  // of 16 bytes each
    unsigned turns[kBatch];
    uint4 seen[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int unit = first + k * kThreads;
      const int chunk = unit / kUnits;
      places[k] = (chunk * (kChunkTiles - 1) + own.warp) * kUnits + unit;
      turns[k] = unit - chunk * kUnits < 8 * Slices::kColumns ? kQuantTurn : kTurn;
      const unsigned word = unit < count ? kNoWord : kZeroWord;
      seen[k] = make_uint4(word, word, word, word);
    }
    const auto look = [&](int k, bool wanted) {
      look_at_four(seen[k], words + step.words.input + places[k] * 4, wanted && !has_all(seen[k]));
    };
    // One lane looks until there is something: all of them would slow down what is on its way (measured on an H200: a
    // step of four rows takes 1 % longer).
    const bool waits = own.lane == 0;
    do look(0, waits);
    while (__any_sync(kFullWarp, waits && !has_all(seen[0])));
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) look(k, true);
#pragma unroll
      for (int k = 0; k < kBatch; ++k) missing |= !has_all(seen[k]);
    } while (__any_sync(kFullWarp, missing));
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (first + k * kThreads < count)
        reinterpret_cast<uint4*>(shared)[places[k]] =
            make_uint4(seen[k].x ^ turns[k], seen[k].y ^ turns[k], seen[k].z ^ turns[k], seen[k].w ^ turns[k]);
  }
  own.pair_barrier();
}

}  // namespace genai::cuda
