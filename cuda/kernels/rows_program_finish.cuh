// rows_program_finish.cuh - the end of a pass of a chain's product (NOTE [Rows program]), as in rows_finish.cuh: the 32
// partials of an output meet in shared memory, where one thread of the half adds them up from left to right.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/rows_few_product.cuh"
#include "cuda/kernels/rows_program.cuh"

namespace genai::cuda {

__device__ __forceinline__ int row_width(const RowsStep& step, const StreamOutput& output) {
  return is_gated(step.epilogue) ? output.rows / 2 : output.rows;
}

__device__ __forceinline__ RowsPlace own_place(const RowsProgram& program, const StreamOutput& output,
                                               const RowsPass& pass, const HalfThread& own) {
  return output_place<1>(program.row_count, output, pass, UnitShape(kMaxProgramRows), own.thread());
}

// What the thread's output is added to, as a word; none where it was asked for and is perhaps not there yet.
__device__ __forceinline__ unsigned request_before(const RowsStep& step, const StreamOutput& output,
                                                   const RowsPlace& place, const unsigned* words) {
  if (step.epilogue != Epilogue::add || !place.valid) return kZeroWord;
  if (step.words.before < 0)
    return value_word(__ldcg(output.out + static_cast<std::int64_t>(place.m) * output.out_stride + place.row));
  unsigned seen = kNoWord;
  look_at_word(seen, words + step.words.before + place.m * output.rows + place.row, true);
  return seen;
}

// The same, and asks for the bias.
__device__ __forceinline__ unsigned request_terms(const RowsProgram& program, const RowsStep& step,
                                                  const StreamOutput& output, const RowsPass& pass,
                                                  unsigned char* shared, const HalfThread& own) {
  const RowsPlace place = own_place(program, output, pass, own);
  if (output.bias != nullptr && place.valid)
    request_4_bytes(shared + program.biases + threadIdx.x * 4, output.bias + place.row);
  return request_before(step, output, place, launch_words(program, shared));
}

// By whole warps.
__device__ __forceinline__ void finish_output(const RowsStep& step, const StreamOutput& output, const RowsPlace& place,
                                              unsigned before, float bias, unsigned* words, float y) {
  if (output.bias != nullptr) y = y + bias;
  int column = place.row;
  bool valid = place.valid;
  if (is_gated(step.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, UnitShape(kMaxProgramRows).pairs());
    y = activate(step.epilogue, y) * up;
    column /= 2;
    valid = valid && place.row % 2 == 0;
  }
  if (!valid) return;
  if (step.epilogue == Epilogue::add) {
    if (before == kNoWord && step.words.before >= 0)
      before = value_word(take_word(words + step.words.before + place.m * output.rows + place.row));
    y = word_value(before) + y;
  }
  y = apply_soft_cap(y, step.soft_cap);
  if (step.words.output >= 0) hand_over(words + step.words.output + place.m * row_width(step, output) + column, y);
  if (step.stores) output.out[static_cast<std::int64_t>(place.m) * output.out_stride + column] = y;
}

// By all warps of the half; thread t adds up output t. `second`: which blocks of a pair the lane's partials are of.
template <int kStrips>
__device__ __forceinline__ void finish_pass(const RowsProgram& program, const RowsStep& step,
                                            const StreamOutput& output, const RowsPass& pass, unsigned before,
                                            unsigned char* shared, const HalfThread& own, bool second,
                                            const FewPartials (&partials)[kStrips]) {
  float* exchange = reinterpret_cast<float*>(shared + program.exchange + own.half() * kExchangeBytes);
  float* to = exchange + (own.lane / 4 * 2 + own.lane % 2) * kExchangeStride + 4 * own.warp + (second ? 1 : 0);
  wait_for_requests();
  own.barrier();  // the last pass has been read
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(strip * kStripOutputs + i / 2 * kStripRows * 2) * kExchangeStride + i % 2 * 2] =
          partials[strip][i % 2][i / 2];
  own.barrier();
  const int thread = own.thread();
  if (thread >= kStrips * kStripOutputs) return;
  const float y = sum_of_partials(exchange + thread * kExchangeStride);
  finish_output(step, output, own_place(program, output, pass, own), before,
                reinterpret_cast<const float*>(shared + program.biases)[threadIdx.x], launch_words(program, shared), y);
}

}  // namespace genai::cuda
