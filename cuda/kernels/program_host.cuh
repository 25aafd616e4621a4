// program_host.cuh - rows of a product of a program that host cores compute (NOTE [Program]): they are asked as soon as
// the product's input is in shared memory, and what they answer is handed over like the rows of the blocks. A request
// is published by many blocks, a tile each; answers are taken by many, 32 at a time. All of it by the finishing warp,
// which has nothing else to do meanwhile; the consumers keep the input for as long.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/host_words.cuh"
#include "cuda/kernels/program_finish.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

__device__ __forceinline__ unsigned request_number(const RowProgram& program, const ProgramHostRows& rows) {
  return *program.host.finished + rows.number;
}

// Four neighbouring values a lane of a tile of the row in shared memory. By a whole warp.
__device__ __forceinline__ QuantizedFour quantized_four(const RowVector& row, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int block = tile * kTileBlocks + lane / 8;
  const uint2 quants = row.quants[block * 4 + lane % 4];
  QuantizedFour own;
  own.quants = lane % 8 < 4 ? quants.x : quants.y;
  own.scale = row.scales[block];
  int sum = __dp4a(static_cast<int>(own.quants), 0x01010101, 0);
#pragma unroll
  for (int stride = 4; stride > 0; stride /= 2) sum += __shfl_xor_sync(kFullWarp, sum, stride);
  own.sum = own.scale * static_cast<float>(sum);
  return own;
}

// The block's share of the request.
__device__ __forceinline__ void ask_for_rows(const RowProgram& program, const ProgramProduct& product,
                                             const ProgramExchange& exchange, const RowVector& row) {
  const ProgramHostRows& rows = program.host_rows[product.call.host_rows];
  const unsigned request = request_number(program, rows);
  wait_phase(exchange.asks, static_cast<unsigned>(product.call.host_rows) & 1u);
  if (blockIdx.x == 0 && threadIdx.x % kWarpLanes == 0)
    store_word(program.host.request, request_header(rows.job, 1), request);
  const int tile_count = static_cast<int>(padded_width(product.kind.cols) / kTileWidth);
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < tile_count; tile += static_cast<int>(gridDim.x))
    store_quantized_tile(program.host.request + kHeaderWords + tile * kTileWords, quantized_four(row, tile), request);
  __syncwarp();
  if (arrives_for_warp(static_cast<int>(threadIdx.x) % kWarpLanes)) arrive(exchange.asks + 1);
}

// By the consumers, before the input's place is used again.
__device__ __forceinline__ void wait_until_asked(const ProgramProduct& product, const ProgramExchange& exchange) {
  wait_phase(exchange.asks + 1, static_cast<unsigned>(product.call.host_rows) & 1u);
}

// The block's share of the answers, behind its own rows.
__device__ __forceinline__ void take_rows(const RowProgram& program, const ProgramProduct& product, unsigned* words) {
  const ProgramHostRows& rows = program.host_rows[product.call.host_rows];
  const unsigned request = request_number(program, rows);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int part = static_cast<int>(gridDim.x - 1 - blockIdx.x);  // the last ones have no tile of the request
#pragma unroll 1
  for (int output = 0; output < product.kind.shape.output_count; ++output) {
    const ProgramHostRows::Answer& answer = rows.answers[output];
    const StreamOutput& own = product.kind.shape.outputs[output];
    const ProgramOutput vector = product.output(output);
    const int first = is_gated(product.kind.epilogue) ? own.rows / 2 : own.rows;
    const int parts = (answer.width + kWarpLanes - 1) / kWarpLanes;
#pragma unroll 1
    for (; part < parts; part += static_cast<int>(gridDim.x)) {
      const int index = part * kWarpLanes + lane;
      const bool exists = index < answer.width;
      float before = 0.0f;
      if (exists && product.kind.epilogue == Epilogue::add)
        before = vector.before >= 0 ? take_word(words + vector.before + first + index) : own.out[first + index];
      ExchangeWord word = 0;
      while (exists && request_of(word) != request) word = load_word(answer.results + index);
      if (!exists) continue;
      const float value = bits_float(data_of(word));
      store_output(vector, words, own.out, first + index,
                   product.kind.epilogue == Epilogue::add ? before + value : value);
    }
    part -= parts;
  }
}

}  // namespace genai::cuda
