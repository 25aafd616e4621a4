// program_finish.cuh - the end of a product of a program: one warp adds the partials of each round's rows, a row a
// lane, applies the epilogue, and hands the outputs over. The warps that multiply go on meanwhile.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/program_exchange.cuh"
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
    const ProgramUnit unit = share.unit(exists ? index : first, product.shape.output_count);
    output = unit.output;
    row = unit.first_strip * kStripRows + row_in_unit;
    if (!exists || row_in_unit >= unit.strips * kStripRows || row >= product.shape.outputs[output].rows) row = -1;
  }
};

// What an output needs besides the product, as bits: asked for before the partials are there, since it comes from far.
struct OutputTerms {
  unsigned before = 0;
  unsigned bias = 0;

  __device__ __forceinline__ OutputTerms(const ProgramProduct& product, const unsigned* words, const RoundRow& own) {
    const float* bias_values = product.shape.outputs[own.output].bias;
    look_at_word(bias, reinterpret_cast<const unsigned*>(bias_values) + own.row,
                 own.row >= 0 && bias_values != nullptr);
    if (product.epilogue != Epilogue::add) return;
    const int last = product.outputs[0].before;
    const unsigned* at = last < 0 ? reinterpret_cast<const unsigned*>(product.shape.outputs[0].out) : words + last;
    look_at_word(before, at + own.row, own.row >= 0);
  }
};

// The outputs of 32 rows of a round, `own` that of the lane, whose `partials` are there.
__device__ __forceinline__ void finish_rows(const ProgramProduct& product, const RoundRow& own,
                                            const OutputTerms& terms, const float* partials, unsigned* words) {
  const ProgramOutput& vector = product.outputs[own.output];
  const StreamOutput& output = product.shape.outputs[own.output];
  const bool active = own.row >= 0;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials);
    if (output.bias != nullptr) y = y + bits_float(terms.bias);
  }
  int place = own.row;
  bool stores = active;
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    y = activate(product.epilogue, y) * up;
    place = own.row / 2;
    stores = active && own_lane() % 2 == 0;
  } else if (product.epilogue == Epilogue::add && active) {
    float before = bits_float(terms.before);
    if (vector.before >= 0)
      before = terms.before != kNoWord ? word_value(terms.before) : take_word(words + vector.before + place);
    y = before + y;
  }
  if (!stores) return;
  y = apply_soft_cap(y, product.soft_cap);
  store_output(vector, words, output.out, place, y);
}

// All rounds of a product; `round` is the first, and the next one's behind it.
__device__ __forceinline__ void finish_product(const ProgramProduct& product, const BlockShare& share,
                                               const ProgramExchange& exchange, unsigned* words, int& round) {
  const int unit_count = share.unit_count();
#pragma unroll 1
  for (int first = 0; first < unit_count; first += kProgramGroups, ++round) {
    const int round_rows = min(unit_count - first, kProgramGroups) * share.unit_strips() * kStripRows;
#pragma unroll 1
    for (int begin = 0; begin < round_rows; begin += kWarpLanes) {
      const RoundRow own(product, share, first, begin + own_lane());
      const OutputTerms terms(product, words, own);
      exchange.wait_full(round);
      finish_rows(product, own, terms, exchange.rows(round, own.group) + own.row_in_unit * kPartialStride, words);
    }
    exchange.free(round);
  }
}

}  // namespace genai::cuda
