// rows_finish.cuh - the end of a pass of matmul_rows.cu: the sum over the 32 partials, left to right, and the store.
// The eight warps of a block have four partials each of every output; they meet in shared memory, where one thread adds
// up one output. There is room for a part of a pass only, so it takes rounds: a round is one or more units, a unit the
// outputs of a pair of strips in one group of columns.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rows_product.cuh"
#include "cuda/kernels/rows_stream.cuh"
#include "cuda/kernels/warp.cuh"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kExchangeStride = 36;  // floats from one output's 32 partials to the next: no bank conflicts

// A unit's outputs are numbered [strip of the pair][column of a lane's two][row g][pair of columns c], with as many
// pairs of columns as there are: up to four.
struct UnitShape {
  int pairs_shift;  // log2 of the pairs of columns

  __host__ __device__ constexpr explicit UnitShape(int columns) : pairs_shift(columns >= 8 ? 2 : columns / 4) {}
  __host__ __device__ constexpr int pairs() const { return 1 << pairs_shift; }
  __host__ __device__ constexpr int outputs() const { return 4 * kStripRows << pairs_shift; }
  __host__ __device__ constexpr int exchange_bytes() const { return outputs() * kExchangeStride * 4; }
};

struct RowsPlace {
  int row;
  int m;
  bool valid;
};

template <int kGroups>
__device__ __forceinline__ RowsPlace output_place(int row_count, const StreamOutput& output, const RowsPass& pass,
                                                  UnitShape unit, int number) {
  const int c = number & (unit.pairs() - 1);
  const int g = number >> unit.pairs_shift & 7;
  const int k = number >> (unit.pairs_shift + 3) & 1;
  const int of_pair = number >> (unit.pairs_shift + 4) & 1;
  const int index = number >> (unit.pairs_shift + 5);
  const int strip = index / kGroups * 2 + of_pair;
  const int row = (pass.strip + strip) * kStripRows + g;
  const int m = index % kGroups * kGroupColumns + 2 * c + k;
  return {row, m, strip < pass.strips && row < output.rows && m < row_count};
}

// What an output held before, and its bias: each thread asks for its own at the beginning of a pass, and they wait in
// shared memory.
struct OutputTerms {
  float before;
  float bias;
};

template <int kGroups>
__device__ __forceinline__ void request_terms(const RowsProduct& product, const StreamOutput& output,
                                              const RowsPass& pass, OutputTerms* terms) {
  if (product.epilogue != Epilogue::add && output.bias == nullptr) return;
  const int number = static_cast<int>(threadIdx.x);
  const RowsPlace place =
      output_place<kGroups>(product.row_count, output, pass, UnitShape(product.input.columns), number);
  if (!place.valid) return;
  if (product.epilogue == Epilogue::add)
    request_4_bytes(&terms[number].before,
                    output.out + static_cast<std::int64_t>(place.m) * output.out_stride + place.row);
  if (output.bias != nullptr) request_4_bytes(&terms[number].bias, output.bias + place.row);
}

// By whole warps.
template <int kGroups>
__device__ __forceinline__ void finish_output(const RowsProduct& product, const StreamOutput& output,
                                              const RowsPass& pass, UnitShape unit, int number, float y,
                                              const OutputTerms& terms) {
  const RowsPlace place = output_place<kGroups>(product.row_count, output, pass, unit, number);
  if (output.bias != nullptr) y = y + terms.bias;
  float* out = output.out + static_cast<std::int64_t>(place.m) * output.out_stride;
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, unit.pairs());
    if (place.valid && place.row % 2 == 0) store_gated(product.epilogue, product.soft_cap, y, up, out + place.row / 2);
  } else if (place.valid) {
    if (product.epilogue == Epilogue::add) y = terms.before + y;
    out[place.row] = apply_soft_cap(y, product.soft_cap);
  }
}

// By all computing warps, at the end of each pass; thread t adds up output t of its units.
template <int kGroups, int kPairs>
__device__ __forceinline__ void finish_pass(const RowsProduct& product, const StreamOutput& output,
                                            const RowsPass& pass, float* exchange, const OutputTerms* terms,
                                            const PairPartials<kGroups> (&partials)[kPairs]) {
  static_assert(kPairs * kGroups * UnitShape(kMaxRows).outputs() <= kRowsThreads);
  const UnitShape unit(product.input.columns);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpLanes;
  const int units = (pass.strips + 1) / 2 * kGroups;
  float y = 0.0f;
  wait_for_requests();
  for (int first = 0; first < units; first += product.round_units) {
    const int end = min(first + product.round_units, units);
    named_barrier<kComputeBarrier, kRowsThreads>();  // the last round has been read
#pragma unroll
    for (int index = 0; index < kPairs * kGroups; ++index) {
      if (index < first || index >= end || lane % 4 >= unit.pairs()) continue;
      float* to = exchange +
                  ((index - first) * unit.outputs() + (lane / 4 << unit.pairs_shift) + lane % 4) * kExchangeStride +
                  4 * (thread / kWarpLanes);
      const auto& own = partials[index / kGroups][index % kGroups];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        store_four(to + (i * kStripRows << unit.pairs_shift) * kExchangeStride, own[0][i / 2][i % 2],
                   own[1][i / 2][i % 2], own[2][i / 2][i % 2], own[3][i / 2][i % 2]);
    }
    named_barrier<kComputeBarrier, kRowsThreads>();
    if (thread >= first * unit.outputs() && thread < end * unit.outputs())
      y = sum_of_partials(exchange + (thread - first * unit.outputs()) * kExchangeStride);
  }
  if (thread < units * unit.outputs())  // whole warps: a unit is a multiple of 32
    finish_output<kGroups>(product, output, pass, unit, thread, y, terms[thread]);
}

}  // namespace genai::cuda
