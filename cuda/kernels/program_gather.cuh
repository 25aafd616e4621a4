// program_gather.cuh - outputs of a gated product on their way into blocks of 32 as int8 (program_quants.cuh). A strip
// has a few of them, and what a block of the grid owns seldom begins or ends with a whole 32: whoever has the first
// value rounds all, others hand him theirs.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program_quants.cuh"
#include "cuda/kernels/program_units.cuh"

namespace genai::cuda {

// By the finishing warp, for its block's share of one product. Values come in ascending order.
class BlockGatherer {
 public:
  __device__ __forceinline__ BlockGatherer(const ProgramProduct& product, const BlockShare& share) {
    const int first_row = share.first_strip(0) * kStripRows;
    const int end_row = min(first_row + share.strip_count(0) * kStripRows, product.kind.shape.outputs[0].rows);
    end_ = end_row / 2;
    block_ = (first_row / 2 + kBlockWidth - 1) / kBlockWidth;
  }

  // Asks for what another block has of the last one, ahead of its time.
  __device__ __forceinline__ void look(const ProgramOutput& vector, const unsigned* words) {
    const int place = end_ / kBlockWidth * kBlockWidth + own_lane();
    const bool wanted = place >= end_ && end_ % kBlockWidth != 0 && end_ / kBlockWidth >= block_;
    look_at_word(rest_, words + QuantizedWords(vector).values + place, wanted && rest_ == kNoWord);
  }

  // The values of a warp's even lanes, as many as there are, from `first` on.
  __device__ __forceinline__ void take(const ProgramOutput& vector, unsigned* words, int first, int count,
                                       float value) {
    const int lane = own_lane();
    const int distance = (lane - first) & (kBlockWidth - 1);  // of the lane's place in its block from the first value
    const int place = first + distance;
    const float own = __shfl_sync(kFullWarp, value, 2 * distance % kWarpLanes);
    const bool exists = distance < count;
    if (exists && place < block_ * kBlockWidth)
      store_next(vector, words, QuantizedWords(vector).values + place, value_word(own));
    if (exists && place / kBlockWidth == block_) value_ = own;
    if (first + count < (block_ + 1) * kBlockWidth) return;
    hand_over_block(vector, words, block_++, value_);
    if (exists) value_ = own;
  }

  // Once all own values are taken.
  __device__ __forceinline__ void finish(const ProgramOutput& vector, unsigned* words) {
    const int first = block_ * kBlockWidth;
    if (first >= end_) return;
    do look(vector, words);
    while (__any_sync(kFullWarp, first + own_lane() >= end_ && rest_ == kNoWord));
    hand_over_block(vector, words, block_, first + own_lane() < end_ ? value_ : word_value(rest_));
  }

 private:
  int end_;                  // of own values
  int block_;                // the next one
  float value_ = 0.0f;       // the lane's of that block
  unsigned rest_ = kNoWord;  // the lane's of the last one, from elsewhere
};

}  // namespace genai::cuda
