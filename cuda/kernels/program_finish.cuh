// program_finish.cuh - the end of a product of a program: one warp adds the partials of each round's rows, a row a
// lane, applies the epilogue, and hands the outputs over. The warps that multiply go on meanwhile.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/program_exchange.cuh"
#include "cuda/kernels/row_units.cuh"

namespace genai::cuda {

// A row of a round, by its lane.
struct RoundRow {
  int row;  // of the output; negative: none
  int group;
  int row_in_unit;

  // The lane's row among those of four units of a round, `place`th of all.
  __device__ __forceinline__ RoundRow(const UnitRange& range, int first_unit, int before, int place, int rows) {
    const int unit_rows = range.unit_strips * kStripRows;
    const int unit = place / unit_rows;
    row_in_unit = place - unit * unit_rows;
    group = (before + unit) & (kProgramGroups - 1);
    const int strip = (first_unit + unit) * range.unit_strips;
    const bool exists = unit < kProgramGroups && first_unit + unit < range.unit_count &&
                        strip * kStripRows + row_in_unit < range.strip_count * kStripRows;
    row = (range.first_strip + strip) * kStripRows + row_in_unit;
    if (!exists || row >= rows) row = -1;
  }
};

// What an output needs besides the product, as bits: asked for before the partials are there, since it comes from far.
struct OutputTerms {
  unsigned before = 0;
  unsigned bias = 0;

  __device__ __forceinline__ OutputTerms(const ProgramProduct& product, int output, const unsigned* words, int row) {
    const float* bias_values = product.shape.outputs[output].bias;
    look_at_word(bias, reinterpret_cast<const unsigned*>(bias_values) + row, row >= 0 && bias_values != nullptr);
    if (product.epilogue != Epilogue::add) return;
    const int last = product.outputs[output].before;
    const unsigned* at = last < 0 ? reinterpret_cast<const unsigned*>(product.shape.outputs[output].out) : words + last;
    look_at_word(before, at + row, row >= 0);
  }
};

// The outputs of 32 rows of a round, `row` that of the lane, whose `partials` are there.
__device__ __forceinline__ void finish_rows(const ProgramProduct& product, int output, const RoundRow& row,
                                            const OutputTerms& terms, const float* partials, unsigned* words) {
  const ProgramOutput& vector = product.outputs[output];
  const bool active = row.row >= 0;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials);
    if (product.shape.outputs[output].bias != nullptr) y = y + bits_float(terms.bias);
  }
  int place = row.row;
  bool stores = active;
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    y = activate(product.epilogue, y) * up;
    place = row.row / 2;
    stores = active && own_lane() % 2 == 0;
  } else if (product.epilogue == Epilogue::add && active) {
    float before = bits_float(terms.before);
    if (vector.before >= 0)
      before = terms.before != kNoWord ? word_value(terms.before) : take_word(words + vector.before + place);
    y = before + y;
  }
  if (!stores) return;
  y = apply_soft_cap(y, product.soft_cap);
  store_output(vector, words, product.shape.outputs[output].out, place, y);
}

// All rounds of a product; `round` is the first, and the next one's behind it.
__device__ __forceinline__ void finish_product(const ProgramProduct& product, const UnitRange* ranges,
                                               const ProgramExchange& exchange, unsigned* words, int& round) {
  const int lane = own_lane();
  int before = 0;
#pragma unroll 1
  for (int output = 0; output < product.shape.output_count; ++output) {
    const UnitRange range = ranges[output];
    const int rows = product.shape.outputs[output].rows;
#pragma unroll 1
    for (int first = 0; first < range.unit_count; first += kProgramGroups, ++round) {
      const int round_rows = min(range.unit_count - first, kProgramGroups) * range.unit_strips * kStripRows;
#pragma unroll 1
      for (int place = lane; place - lane < round_rows; place += kWarpLanes) {
        const RoundRow row(range, first, before, place, rows);
        const OutputTerms terms(product, output, words, row.row);
        exchange.wait_full(round);
        finish_rows(product, output, row, terms, exchange.rows(round, row.group) + row.row_in_unit * kPartialStride,
                    words);
      }
      exchange.free(round);
    }
    before += range.unit_count;
  }
}

}  // namespace genai::cuda
