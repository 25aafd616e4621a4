// weight_stream.cuh - outputs of a product as kernels see them, and their division among the blocks of a grid: the
// strips of up to three matrices are laid end to end, and block b owns those that begin in the b-th equal part of the
// bytes.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/tile.cuh"
#include "engine/device/kernels.h"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kMaxStreamOutputs = 3;

struct StreamOutput {
  const TileBytes* weights;
  const float* bias;  // null: none
  float* out;
  int rows;
  int strip_count;
  int out_stride;
  bool second_type;

  bool operator==(const StreamOutput&) const = default;
};

struct StreamShape {
  StreamOutput outputs[kMaxStreamOutputs];
  int output_count;
  int tile_count;   // of a strip, along K
  int stage_bytes;  // of matmul_row.cu: a slot

  bool operator==(const StreamShape&) const = default;
};

inline StreamOutput stream_output(const MatmulOutput& output, DType second_type) {
  return {reinterpret_cast<const TileBytes*>(output.matrix.data.address()),
          reinterpret_cast<const float*>(output.bias.address()),
          reinterpret_cast<float*>(output.out.address()),
          output.matrix.rows,
          static_cast<int>(strip_count(output.matrix.rows)),
          output.out_stride,
          output.matrix.dtype == second_type};
}

// The types of a call's outputs in order of appearance; first == second where there is one.
struct TypePair {
  DType first;
  DType second;
  int count;
};

inline TypePair type_pair(const MatmulArgs& args) {
  const DType first = args.outputs[0].matrix.dtype;
  TypePair types = {first, first, 1};
  for (int i = 1; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    if (dtype == types.first || dtype == types.second) continue;
    types.second = dtype;
    ++types.count;
  }
  return types;
}

struct StripRange {
  int first;
  int end;
};

// The strips of one output that `block` of `block_count` owns. Bytes are counted in units of 16 a tile of the common
// width, so that 32 bits do for two million rows: the first weights wait for these divisions.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ StripRange owned_strips(const StreamShape& shape, int output, int block, int block_count) {
  unsigned total = 0;
  unsigned start = 0;
  unsigned own_weight = 1;
#pragma unroll
  for (int i = 0; i < kMaxStreamOutputs; ++i) {
    if (i >= shape.output_count) break;
    const unsigned weight =
        static_cast<unsigned>(tile_layout(shape.outputs[i].second_type ? kSecond : kFirst).tile_bytes) / 16;
    if (i == output) {
      start = total;
      own_weight = weight;
    }
    total += weight * static_cast<unsigned>(shape.outputs[i].strip_count);
  }
  const auto boundary = [&](int index) {
    const unsigned place = total * static_cast<unsigned>(index) / static_cast<unsigned>(block_count);
    const unsigned strip = place < start ? 0 : (place - start + own_weight / 2) / own_weight;
    return min(static_cast<int>(strip), shape.outputs[output].strip_count);
  };
  return {boundary(block), boundary(block + 1)};
}

}  // namespace genai::cuda
