// rows_program_finish.cuh - the end of a pass of a chain's product (NOTE [Rows program]), as in rows_finish.cuh: the 32
// partials of an output meet in shared memory, where one thread of the half adds them up from left to right. A round
// is as many strips as there is room for.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/rows_finish.cuh"
#include "cuda/kernels/rows_program.cuh"

namespace genai::cuda {

// The thread's output of a pass: where it goes, and what it is added to.
struct PassOutput {
  RowsPlace place;
  float bias;
  float before;
  unsigned before_word;  // asked for, perhaps not there yet
};

__device__ __forceinline__ int row_width(const RowsStep& step, const StreamOutput& output) {
  return is_gated(step.epilogue) ? output.rows / 2 : output.rows;
}

__device__ __forceinline__ PassOutput request_output(const RowsProgram& program, const RowsStep& step,
                                                     const StreamOutput& output, const RowsPass& pass,
                                                     const unsigned* words, const HalfThread& own) {
  PassOutput request = {output_place<1>(program.row_count, output, pass, UnitShape(program.slices.columns), own.thread),
                        0.0f, 0.0f, kZeroWord};
  const RowsPlace& place = request.place;
  if (!place.valid) return request;
  if (output.bias != nullptr) request.bias = output.bias[place.row];
  if (step.epilogue != Epilogue::add) return request;
  if (step.words.before < 0) {
    request.before = __ldcg(output.out + static_cast<std::int64_t>(place.m) * output.out_stride + place.row);
  } else {
    request.before_word = kNoWord;
    look_at_word(request.before_word, words + step.words.before + place.m * output.rows + place.row, true);
  }
  return request;
}

__device__ __forceinline__ float value_before(const RowsStep& step, const StreamOutput& output,
                                              const PassOutput& request, const unsigned* words) {
  if (step.words.before < 0) return request.before;
  if (request.before_word != kNoWord) return word_value(request.before_word);
  return take_word(words + step.words.before + request.place.m * output.rows + request.place.row);
}

// By whole warps.
__device__ __forceinline__ void finish_output(const RowsProgram& program, const RowsStep& step,
                                              const StreamOutput& output, const PassOutput& request, unsigned* words,
                                              float y) {
  const RowsPlace& place = request.place;
  if (output.bias != nullptr) y = y + request.bias;
  int column = place.row;
  bool valid = place.valid;
  if (is_gated(step.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, UnitShape(program.slices.columns).pairs());
    y = activate(step.epilogue, y) * up;
    column /= 2;
    valid = valid && place.row % 2 == 0;
  }
  if (!valid) return;
  if (step.epilogue == Epilogue::add) y = value_before(step, output, request, words) + y;
  y = apply_soft_cap(y, step.soft_cap);
  if (step.words.output >= 0) hand_over(words + step.words.output + place.m * row_width(step, output) + column, y);
  if (step.stores) output.out[static_cast<std::int64_t>(place.m) * output.out_stride + column] = y;
}

// By all warps of the half; thread t adds up output t.
__device__ __forceinline__ void finish_pass(const RowsProgram& program, const RowsStep& step,
                                            const StreamOutput& output, const RowsPass& pass,
                                            const PassOutput& request, unsigned* words, const HalfThread& own,
                                            float* exchange, const PairPartials<1> (&partials)[kPassPairs]) {
  const UnitShape unit(program.slices.columns);
  const int strip_outputs = unit.outputs() / 2;
  const int strips = (pass.strips + 1) / 2 * 2;
  float y = 0.0f;
#pragma unroll 1
  for (int first = 0; first < strips; first += program.round_strips) {
    const int end = min(first + program.round_strips, strips);
    own.barrier();  // the last round has been read
#pragma unroll
    for (int strip = 0; strip < 2 * kPassPairs; ++strip) {
      if (strip < first || strip >= end || own.lane % 4 >= unit.pairs()) continue;
      const auto& sums = partials[strip / 2][0];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int number = (strip - first) * strip_outputs + (k * kStripRows + own.lane / 4 << unit.pairs_shift) +
                           own.lane % 4;
        store_four(exchange + number * kExchangeStride + 4 * own.warp, sums[0][strip % 2][k], sums[1][strip % 2][k],
                   sums[2][strip % 2][k], sums[3][strip % 2][k]);
      }
    }
    own.barrier();
    if (own.thread >= first * strip_outputs && own.thread < end * strip_outputs)
      y = sum_of_partials(exchange + (own.thread - first * strip_outputs) * kExchangeStride);
  }
  if (own.thread < strips * strip_outputs) finish_output(program, step, output, request, words, y);
}

}  // namespace genai::cuda
