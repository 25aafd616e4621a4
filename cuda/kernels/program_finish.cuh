// program_finish.cuh - the end of a product of a program: one warp adds the partials of each round's rows, a row a
// lane, applies the epilogue, and hands the outputs over. The warps that multiply go on meanwhile.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/program_exchange.cuh"
#include "cuda/kernels/program_gather.cuh"
#include "cuda/kernels/program_units.cuh"

namespace genai::cuda {

// A row of a round, by its lane.
struct RoundRow {
  int output;
  int row;    // of the output; negative: none
  int group;  // whose unit has it
  int row_in_unit;

  // The lane's row, the `place`th of the round that begins with unit `first`.
  __device__ __forceinline__ RoundRow(const ProgramProduct& product, const BlockShare& share, int first, int place) {
    const int unit_rows = share.unit_strips() * kStripRows;
    group = place / unit_rows;
    row_in_unit = place - group * unit_rows;
    const int index = first + group;
    const bool exists = group < kProgramGroups && index < share.unit_count();
    const ProgramUnit unit = share.unit(exists ? index : first, product.kind.shape.output_count);
    output = unit.output;
    row = unit.first_strip * kStripRows + row_in_unit;
    if (!exists || row_in_unit >= unit.strips * kStripRows || row >= product.kind.shape.outputs[output].rows) row = -1;
  }
};

// What an output needs besides the product, as bits: asked for before the partials are there, since it comes from far.
struct OutputTerms {
  unsigned before = 0;
  unsigned bias = 0;

  __device__ __forceinline__ OutputTerms(const ProgramProduct& product, const unsigned* words, const RoundRow& own) {
    const float* bias_values = product.call.biases[own.output];
    look_at_word(bias, reinterpret_cast<const unsigned*>(bias_values) + own.row,
                 own.row >= 0 && bias_values != nullptr);
    if (product.kind.epilogue != Epilogue::add) return;
    const int last = product.call.places[0].before;
    const unsigned* at = last < 0 ? reinterpret_cast<const unsigned*>(product.kind.shape.outputs[0].out) : words + last;
    look_at_word(before, at + own.row, own.row >= 0);
  }
};

// The outputs of 32 rows of a round, `own` that of the lane, whose `partials` are there.
__device__ __forceinline__ void finish_rows(const ProgramProduct& product, const RoundRow& own,
                                            const OutputTerms& terms, const float* partials, unsigned* words,
                                            BlockGatherer& gatherer) {
  const ProgramOutput vector = product.output(own.output);
  const StreamOutput& output = product.kind.shape.outputs[own.output];
  const bool active = own.row >= 0;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials);
    if (product.call.biases[own.output] != nullptr) y = y + bits_float(terms.bias);
  }
  int place = own.row;
  bool stores = active;
  if (is_gated(product.kind.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    y = activate(product.kind.epilogue, y) * up;
    place = own.row / 2;
    stores = active && own_lane() % 2 == 0;
  } else if (product.kind.epilogue == Epilogue::add && active) {
    float before = bits_float(terms.before);
    if (vector.before >= 0)
      before = terms.before != kNoWord ? word_value(terms.before) : take_word(words + vector.before + place);
    y = before + y;
  }
  y = apply_soft_cap(y, product.kind.soft_cap);
  if (stores) store_output(vector, words, output.out, place, y);
  if (vector.quantized_width == 0) return;
  const int count = __popc(__ballot_sync(kFullWarp, stores));
  if (count != 0) gatherer.take(vector, words, __shfl_sync(kFullWarp, place, 0), count, y);
}

// All rounds of a product; `round` is the first, and the next one's behind it.
__device__ __forceinline__ void finish_product(const ProgramProduct& product, const BlockShare& share,
                                               const ProgramExchange& exchange, unsigned* words, int& round) {
  const int unit_count = share.unit_count();
  const ProgramOutput vector = product.output(0);
  const bool gathers = vector.quantized_width != 0;
  BlockGatherer gatherer(product, share);
#pragma unroll 1
  for (int first = 0; first < unit_count; first += kProgramGroups, ++round) {
    const int round_rows = min(unit_count - first, kProgramGroups) * share.unit_strips() * kStripRows;
#pragma unroll 1
    for (int begin = 0; begin < round_rows; begin += kWarpLanes) {
      const RoundRow own(product, share, first, begin + own_lane());
      const OutputTerms terms(product, words, own);
      if (gathers) gatherer.look(vector, words);
      exchange.wait_full(round);
      finish_rows(product, own, terms, exchange.rows(round, own.group) + own.row_in_unit * kPartialStride, words,
                  gatherer);
    }
    exchange.free(round);
  }
  if (gathers) gatherer.finish(vector, words);
}

}  // namespace genai::cuda
