// math.h - the inner operations of the host backend as a table of functions, one table for each instruction set. All
// tables give the same bits (engine/README.md); math_scalar.cpp is the one to read. Operations work on one row, one
// head or one range of strips and never share anything, so any number of threads may run them at once; how work is cut
// among threads is the business of host_kernels.cpp. Pointers that are not said to be aligned need not be.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device/kernels.h"
#include "engine/dtype.h"
#include "engine/packed_layout.h"

namespace genai {

enum class InstructionSet { scalar, avx2, avx512, amx };  // amx: avx512 with matrix tiles

// 128 quantised activations of one row, four blocks of 32 in order.
struct alignas(64) ActivationTile {
  std::int8_t q[kTileWidth];
  float scale[kTileBlocks];
  float sum[kTileBlocks];                 // scale * (sum of q)
  std::int32_t half_sum[2][kTileBlocks];  // [h][j]: sum of q over one half of a block
};
static_assert(sizeof(ActivationTile) == 192);

// The same 128 activations as products with few rows want them, where HostMath::turn_row makes them (packed_layout.h
// names h, c, j and e).
struct alignas(64) TurnedTile {
  std::int8_t q[kTileWidth];  // [h][c][j][e]
  float scale[kTileBlocks];
  float sum[kTileBlocks];
  std::int32_t start[5][kTileBlocks];  // -8, -16 and -128 times the sum of q, then -32 times those over its halves
};
static_assert(sizeof(TurnedTile) == 256);

// Few rows: more than one, but so few that memory bounds their product, not arithmetic.
inline constexpr std::int32_t kMostTurnedRows = 16;
constexpr bool is_turned(std::int32_t row_count) { return row_count > 1 && row_count <= kMostTurnedRows; }
constexpr std::int64_t turned_row_bytes(std::int64_t cols) {
  return padded_width(cols) / kTileWidth * static_cast<std::int64_t>(sizeof(TurnedTile));
}

struct PackedMatrix {
  const std::byte* data;
  DType dtype;
  std::int32_t rows;
  std::int32_t cols;
};

// One matrix against all rows of a call.
struct MatmulJob {
  PackedMatrix matrix;
  const std::byte* input;  // 64-byte aligned; of each row padded_width(cols) / 128 ActivationTiles, or, for a float
                           // type, padded_width(cols) floats, zeros behind cols
  std::int64_t input_stride_bytes;
  std::int32_t row_count;
  const TurnedTile* turned;  // of the input, [tile][row]; null: not made
  const float* bias;         // may be null
  float* out;
  std::int64_t out_stride;  // elements
  Epilogue epilogue;
  float soft_cap;
};

// Bytes of workspace that HostMath::matmul wants for a matrix of `cols` columns.
constexpr std::int64_t matmul_workspace_bytes(std::int64_t cols) { return padded_width(cols) * 64 + 4096; }
static_assert(matmul_workspace_bytes(kTileWidth) >= kMostTurnedRows * turned_row_bytes(kTileWidth));

// One query head against one chunk of the cache, widened to float.
struct ChunkJob {
  const float* query;
  const float* keys;    // [D/8][64][8]
  const float* values;  // [64][D]
  std::int32_t first;   // visible positions of the chunk: first <= j < last, at least one
  std::int32_t last;
  std::int32_t head_dim;
  float scale;
  float soft_cap;  // 0: none
};

// What attention over some chunks has come to: highest score, sum of exponentials, weighted sum of values (D).
struct AttentionPart {
  float max;
  float sum;
  float* out;
};

struct LogitScan {
  float best;          // meaningless where index is -1
  std::int32_t index;  // of the highest logit, the lowest one on a tie; -1: all are NaN
  std::int32_t nonfinite;
  std::uint64_t hash;
};

struct HostMath {
  InstructionSet instruction_set;
  const char* name;

  // y = norm(x) * weight; y may be x.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::int32_t width, float* y);
  // x = x + norm(y) * weight
  void (*rms_norm_add)(float* x, const float* y, const float* weight, float epsilon, std::int32_t width);
  // Fills padded_width(width) / 128 tiles.
  void (*quantize_row)(const float* x, std::int32_t width, ActivationTile* tiles);
  // Tile t of the row to turned[t * step]. Null where matmul has no use for turned rows.
  void (*turn_row)(const ActivationTile* tiles, std::int32_t width, TurnedTile* turned, std::int64_t step);
  // The strips first_strip .. first_strip + strip_count - 1 of the product, epilogue included. `workspace` is 64-byte
  // aligned, of this thread alone.
  void (*matmul)(const MatmulJob& job, std::int64_t first_strip, std::int64_t strip_count, std::byte* workspace);
  // out = scale * one row of a packed matrix
  void (*embed_row)(const PackedMatrix& matrix, std::int64_t row, float scale, float* out);
  // out = act(gate) * up
  void (*gate)(Epilogue activation, const float* gate, const float* up, float* out, std::int32_t count);
  // Turns one head in place; `table` has rotated / 2 pairs (cosine, sine).
  void (*rotate_head)(float* head, const float* table, std::int32_t rotated, bool interleaved);
  void (*narrow)(const float* from, std::uint16_t* to_half, std::int64_t count);
  void (*widen)(const std::uint16_t* from_half, float* to, std::int64_t count);
  // Sets all of `part`; part.out has D elements.
  void (*attend_chunk)(const ChunkJob& job, AttentionPart& part);
  // Adds the next chunk to `state`, which starts as {-inf, 0, zeros}.
  void (*merge_chunk)(AttentionPart& state, const AttentionPart& chunk, std::int32_t head_dim);
  // out = out / sum
  void (*finish_attention)(AttentionPart& state, std::int32_t head_dim);
  // Logits [begin, end) of a row; indices count from the start of the row.
  LogitScan (*scan_logits)(const float* row, std::int32_t begin, std::int32_t end, std::int32_t position);
};

// Null where this build or this processor lacks the instruction set; never for scalar.
const HostMath* find_host_math(InstructionSet instruction_set);
// The fastest that runs here.
const HostMath& best_host_math();

extern const HostMath kScalarMath;
// x86-64 only; not to be used before find_host_math has returned them.
extern const HostMath kAvx2Math;
extern const HostMath kAvx512Math;
extern const HostMath kAmxMath;

}  // namespace genai
