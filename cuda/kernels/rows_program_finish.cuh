// rows_program_finish.cuh - the end of a pass of a chain's product (NOTE [Rows program]): the 32 partials of an output
// meet in shared memory, where the half's finishing warp adds them up from left to right while the others go on. Its
// lanes have an output of every strip, side by side: one after the other they would take longer than the next pass.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/rows_few_product.cuh"
#include "cuda/kernels/rows_program.cuh"

namespace genai::cuda {

// The partials of a pass, once the last pass has been read. `second`: which blocks of a pair the lane's are of.
template <int kStrips>
__device__ __forceinline__ void hand_over_partials(const RowsProgram& program, unsigned char* shared,
                                                   const HalfThread& own, HalfExchange& exchange, bool second,
                                                   const FewPartials (&partials)[kStrips]) {
  float* to = exchange.values(program, shared, own.half()) + (own.lane / 4 * 2 + own.lane % 2) * kExchangeStride +
              4 * own.warp + (second ? 1 : 0);
  exchange.wait_free();
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(strip * kStripOutputs + i / 2 * kStripRows * 2) * kExchangeStride + i % 2 * 2] =
          partials[strip][i % 2][i / 2];
  __syncwarp();
  exchange.arrive_full(own.lane);
  exchange.advance();
}

// The outputs that a lane of the finishing warp has in a pass: one row of each strip, of one column of activations. All
// that does not depend on the sums is there before them.
struct LaneOutputs {
  bool odd;
  int count;       // a strip each; gated, of a pair of strips each
  unsigned* word;  // of the first one; the others are kStripRows apart. Null, like `out`: none
  float* out;
  float before[kPassStrips];
  float bias[kPassStrips];

  __device__ __forceinline__ LaneOutputs(const RowsProgram& program, const RowsStep& step, const StreamOutput& output,
                                         const RowsPass& pass, int lane, unsigned* words) {
    const int g = lane / 2 % kStripRows;
    const int m = lane % 2 * 2 + lane / (2 * kStripRows);
    const int row = pass.strip * kStripRows + g;
    odd = g % 2 != 0;
    const int strips = m < program.row_count ? min(pass.strips, (output.rows - row + kStripRows - 1) / kStripRows) : 0;
    // Of a gated pair of strips, lanes of even rows have the outputs of the first one, the others those of the second.
    const bool gated = is_gated(step.epilogue);
    const int width = gated ? output.rows / 2 : output.rows;
    const int column = !gated ? row : odd ? (row + kStripRows - 1) / 2 : row / 2;
    count = !gated ? strips : odd ? strips / 2 : (strips + 1) / 2;
    const int index = static_cast<int>(&output - step.shape.outputs);
    const int first = step.words.outputs[index];
    word = first >= 0 ? words + first + m * width + column : nullptr;
    out = (step.stores >> index & 1u) != 0 ? output.out + static_cast<std::int64_t>(m) * output.out_stride + column
                                           : nullptr;
    if (output.bias != nullptr) {
#pragma unroll
      for (int strip = 0; strip < kPassStrips; ++strip)
        bias[strip] = strip < strips ? __ldg(output.bias + row + strip * kStripRows) : 0.0f;
    }
    if (step.epilogue != Epilogue::add) return;
    if (step.words.before >= 0) {
      take_words(words + step.words.before + m * output.rows + row, strips);
    } else {
      const float* at = output.out + static_cast<std::int64_t>(m) * output.out_stride + row;
#pragma unroll
      for (int strip = 0; strip < kPassStrips; ++strip)
        before[strip] = strip < strips ? __ldcg(at + strip * kStripRows) : 0.0f;
    }
  }

  __device__ __forceinline__ void store(const float (&values)[kPassStrips]) const {
#pragma unroll
    for (int i = 0; i < kPassStrips; ++i) {
      if (i >= count) continue;
      if (word != nullptr) hand_over(word + i * kStripRows, values[i]);
      if (out != nullptr) out[i * kStripRows] = values[i];
    }
  }

 private:
  // What outputs are added to, where the chain has written it.
  __device__ __forceinline__ void take_words(const unsigned* at, int strips) {
    unsigned seen[kPassStrips];
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) seen[strip] = strip < strips ? kNoWord : kZeroWord;
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int strip = 0; strip < kPassStrips; ++strip)
        look_at_word(seen[strip], at + strip * kStripRows, seen[strip] == kNoWord);
#pragma unroll
      for (int strip = 0; strip < kPassStrips; ++strip) missing |= seen[strip] == kNoWord;
    } while (missing);
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) before[strip] = word_value(seen[strip]);
  }
};

// The sums of pairs of rows become outputs, by the whole warp: of a pair of strips, lanes of even rows have those of
// the first one, the others those of the second.
__device__ __forceinline__ void gate_sums(Epilogue epilogue, int strips, bool odd, float (&sums)[kPassStrips]) {
  constexpr int kPairs = kPassStrips / 2;
  float ups[kPairs];
  bool usual = epilogue == Epilogue::gated_silu;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float first = sums[2 * i];
    const float second = sums[2 * i + 1];
    const float other = __shfl_xor_sync(kFullWarp, odd ? first : second, 2);  // of the next or last row
    sums[i] = odd ? other : first;
    ups[i] = odd ? second : other;
    usual = usual && (2 * i + (odd ? 1 : 0) >= strips || has_short_silu(sums[i]));
  }
  if (__all_sync(kFullWarp, usual)) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) sums[i] = short_silu(sums[i]) * ups[i];
  } else {
    static_assert(kPairs == 2);
#pragma unroll 1
    for (int i = 0; i < kPairs; ++i) {  // the next one comes to the front
      const float gated = activate(epilogue, sums[0]) * ups[0];
      sums[0] = sums[1];
      ups[0] = ups[1];
      sums[1] = gated;
    }
  }
}

// By the finishing warp, like finish_program.
__device__ __forceinline__ void finish_pass(const RowsProgram& program, const RowsStep& step,
                                            const StreamOutput& output, const RowsPass& pass, unsigned char* shared,
                                            int half, int lane, HalfExchange& exchange) {
  const LaneOutputs own(program, step, output, pass, lane, launch_words(program, shared));
  const float* partials = exchange.values(program, shared, half) + lane * kExchangeStride;
  exchange.wait_full();
  float sums[kPassStrips];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) {  // behind the last one: whatever is there
      const float4 part = *reinterpret_cast<const float4*>(partials + strip * kStripOutputs * kExchangeStride + 4 * i);
      sums[strip] = i == 0 ? part.x : sums[strip] + part.x;
      sums[strip] = sums[strip] + part.y;
      sums[strip] = sums[strip] + part.z;
      sums[strip] = sums[strip] + part.w;
    }
  __syncwarp();
  exchange.arrive_free(lane);
  exchange.advance();
  if (output.bias != nullptr) {
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) sums[strip] = sums[strip] + own.bias[strip];
  }
  if (is_gated(step.epilogue)) gate_sums(step.epilogue, pass.strips, own.odd, sums);
  if (step.epilogue == Epilogue::add) {
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) sums[strip] = own.before[strip] + sums[strip];
  }
  if (step.soft_cap != 0.0f) {
#pragma unroll 1
    for (int i = 0; i < kPassStrips; ++i) {  // the next one comes to the front
      const float capped = apply_soft_cap(sums[0], step.soft_cap);
#pragma unroll
      for (int strip = 0; strip + 1 < kPassStrips; ++strip) sums[strip] = sums[strip + 1];
      sums[kPassStrips - 1] = capped;
    }
  }
  own.store(sums);
}

__device__ __forceinline__ void finish_program(const RowsProgram& program, int half, unsigned char* shared) {
  const ChainShare* shares = reinterpret_cast<const ChainShare*>(shared + program.shares);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  HalfExchange exchange(program, shared, half);
#pragma unroll 1
  for (int index = 0; index < program.step_count; ++index) {
    const RowsStep& step = program.steps[index];
    const ChainShare& share = shares[index * kHalves + half];
#pragma unroll 1
    for (int strip = share.first; strip < share.end; strip += share.pass_strips)
      finish_pass(program, step, step.shape.outputs[share.output], {strip, min(share.pass_strips, share.end - strip)},
                  shared, half, lane, exchange);
  }
}

}  // namespace genai::cuda
