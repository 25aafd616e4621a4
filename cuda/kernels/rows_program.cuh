// rows_program.cuh - what the kernel of a chain of products with 2 to 8 rows is told (rows_program.cu).
//
// NOTE [Rows program]
// A chain is a few products of which each reads what the one before it wrote. One kernel runs them all: one block a
// multiprocessor, of two halves that share an input and are otherwise on their own: eight warps that compute, as in
// matmul_rows.cu, and one that copies weights into the half's ring in the order of the chain. It never waits for a
// product to begin, so that the memory works while rows are handed over from block to block (handover.cuh). That
// takes two steps. Outputs are words; a half that has a part of the next input takes what it needs of them, norms and
// rounds it, and its words are taken by all blocks into their shared memory. Every product has places of its own for
// both in a launch's region, so none is used twice; each launch clears the other region for the next one. A value that
// a product adds to is taken from where the product before it left it, and stored once, by the last of them. All
// blocks must be there at the same time, as NOTE [Program] says.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/rows_product.cuh"
#include "cuda/kernels/rows_prepare.cuh"
#include "cuda/kernels/rows_share.cuh"
#include "cuda/kernels/rows_stream.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kHalves = 2;
inline constexpr int kMaxProgramRows = kMaxChainRows;
static_assert(kMaxProgramRows == kGroupColumns);
inline constexpr int kMaxRowsSteps = 4;
inline constexpr int kPassPairs = 2;  // of strips
inline constexpr int kRowsProgramThreads = kHalves * (kRowsThreads + kWarpLanes);

// The input of a product, tile by tile: what a warp of each half reads of it is contiguous.
//   quants [pair of blocks][column][c][block of the pair][h][4 bytes], scales and sums as in rows_input.cuh
struct RowsSlices {
  int columns;  // a power of two, 2 to kMaxProgramRows
  int units;    // of a slice, 16 bytes each: eight a column of quants, one of scales, one of sums where there are any

  __host__ __device__ constexpr int scales() const { return kTileWidth * columns; }
  __host__ __device__ constexpr int sums() const { return scales() + kTileBlocks * 4 * columns; }
  __host__ __device__ constexpr int bytes() const { return 16 * units; }
  __host__ __device__ constexpr int pair_quants() const { return 64 * columns; }
  __host__ __device__ constexpr int pair_scales() const { return 8 * columns; }
  // In a slice, of block `block` and column m, as RowsInput has it.
  __host__ __device__ constexpr int quant_offset(int block, int m) const {
    return block / 2 * pair_quants() + m * 64 + block % 2 * 8;
  }
  __host__ __device__ constexpr int scale_offset(int block, int m) const {
    return block / 2 * pair_scales() + (m / 2 * 4 + block % 2 * 2 + m % 2) * 4;
  }
};

// Places in the launch's region; negative: none, it is in memory.
struct RowsWords {
  int source;  // values of the rows that are the input
  int input;   // its slices
  int before;  // what the output is added to
  int output;
};

struct RowsStep {
  StreamShape shape;
  RowsSource source;
  RowsWords words;
  RowsDivision division;
  bool stores;  // the outputs, in memory
  Epilogue epilogue;
  float soft_cap;
};

struct RowsProgram {
  HandoverMemory handover;
  RowsSlices slices;
  RingShape rings[kHalves];  // a stage is a chunk of a pair of strips
  int window;                // stages of a ring on their way at once
  int exchange;              // offsets in shared memory: where a half's partials meet, twice
  int exchange_bytes;
  int biases;  // a thread's
  int shares;  // [step][half]
  int round_strips;
  int row_count;
  int step_count;
  RowsStep steps[kMaxRowsSteps];
};

// A thread of a half that computes.
struct HalfThread {
  int warp;  // of the half
  int lane;

  __device__ __forceinline__ HalfThread()
      : warp(keep(static_cast<int>(threadIdx.x) / kWarpLanes % kRowsWarps)),
        lane(keep(static_cast<int>(threadIdx.x) % kWarpLanes)) {}
  __device__ __forceinline__ int half() const { return static_cast<int>(threadIdx.x) / kRowsThreads; }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x) % kRowsThreads; }
  // Of the half.
  __device__ __forceinline__ void barrier() const { numbered_barrier(1 + half(), kRowsThreads); }
  // Of the two warps, one of each half, that read the same slices.
  __device__ __forceinline__ void pair_barrier() const { numbered_barrier(1 + kHalves + warp, kHalves * kWarpLanes); }
};

}  // namespace genai::cuda
