// rows_program.cuh - what the kernel of a chain of products with 2 to 4 rows is told (rows_program.cu).
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
#include "cuda/kernels/numbered_barrier.cuh"
#include "cuda/kernels/rows_finish.cuh"
#include "cuda/kernels/rows_prepare.cuh"
#include "cuda/kernels/rows_share.cuh"
#include "cuda/kernels/rows_stream.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kHalves = 2;
inline constexpr int kMaxProgramRows = kMaxChainRows;
inline constexpr int kMaxRowsSteps = 4;
inline constexpr int kPassStrips = 4;  // at most
inline constexpr int kStageStrips = 2;
inline constexpr int kStripOutputs = kStripRows * kMaxProgramRows;
inline constexpr int kExchangeBytes = kPassStrips * kStripOutputs * kExchangeStride * static_cast<int>(sizeof(float));
static_assert(kPassStrips * kStripOutputs <= kRowsThreads && kExchangeBytes >= kPrepareThreads * 4);
inline constexpr int kSlotBarriers = 2 * static_cast<int>(sizeof(SharedBarrier));
inline constexpr int kRowsProgramThreads = kHalves * (kRowsThreads + kWarpLanes);

// The input of a product, tile by tile: what a warp of each half reads of it is contiguous.
//   quants [pair of blocks][column][c][block of the pair][h][4 bytes], scales and sums as in rows_input.cuh
template <bool kWithSums>
struct RowsSlices {
  static constexpr int kColumns = kMaxProgramRows;
  static constexpr bool kSums = kWithSums;
  static constexpr int kUnits = (kSums ? 10 : 9) * kColumns;  // 16 bytes each: eight a column of quants, one of scales
  static constexpr int kBytes = 16 * kUnits;
  static constexpr int kScales = kTileWidth * kColumns;

  __device__ __forceinline__ static constexpr int scales() { return kScales; }
  __device__ __forceinline__ static constexpr int sums() { return kScales + kTileBlocks * 4 * kColumns; }
  __device__ __forceinline__ static constexpr int pair_quants() { return 64 * kColumns; }
  __device__ __forceinline__ static constexpr int pair_scales() { return 8 * kColumns; }
  // In a slice, of block `block` and column m, as RowsInput has it.
  __device__ __forceinline__ static constexpr int quant_offset(int block, int m) {
    return block / 2 * pair_quants() + m * 64 + block % 2 * 8;
  }
  __device__ __forceinline__ static constexpr int scale_offset(int block, int m) {
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
  int slots;  // offsets in shared memory: the rings of both halves. A stage is a chunk of two strips
  int barriers;
  int slot_bytes;
  int slot_count;
  int window;    // stages of a ring on their way at once
  int exchange;  // where a half's partials meet, twice
  int biases;    // a thread's
  int shares;    // [step][half]
  int launch;    // its number
  int row_count;
  int step_count;
  RowsStep steps[kMaxRowsSteps];
};

// One end of a half's ring.
struct HalfRing {
  unsigned slot;     // addresses in shared memory
  unsigned barrier;  // full; the one that says empty is behind it
  unsigned end;      // of the barriers
  unsigned parity;   // of the round that the next stage belongs to

  __device__ __forceinline__ HalfRing(const RowsProgram& program, unsigned char* shared, int half) {
    const int first = half * program.slot_count;
    slot = shared_address(shared) + program.slots + first * program.slot_bytes;
    barrier = shared_address(shared) + program.barriers + first * kSlotBarriers;
    end = barrier + program.slot_count * kSlotBarriers;
    parity = 0;
  }
  __device__ __forceinline__ unsigned char* stage() const {
    return reinterpret_cast<unsigned char*>(__cvta_shared_to_generic(slot));
  }
  __device__ __forceinline__ void wait_full() const { wait_shared(barrier, parity); }
  __device__ __forceinline__ void advance(const RowsProgram& program) {
    barrier += kSlotBarriers;
    slot += program.slot_bytes;
    if (barrier != end) return;
    barrier -= program.slot_count * kSlotBarriers;
    slot -= program.slot_count * program.slot_bytes;
    parity ^= 1u;
  }
  // By a whole warp, after all its lanes have read the slot; the empty barrier counts the warps.
  __device__ __forceinline__ void release(int lane) const {
    if (arrives_for_warp(lane)) arrive_shared(barrier + sizeof(SharedBarrier));
  }
  // By the copying thread: waits until the slot is free; its barrier then expects `bytes`.
  __device__ __forceinline__ void wait_empty(unsigned bytes) const {
    wait_shared(barrier + sizeof(SharedBarrier), parity ^ 1u);  // the first round passes
    expect_shared(barrier, bytes);
  }
};

// The launch's number and region, looked up anew where they are used: kept, they would take registers from sums.
__device__ __forceinline__ unsigned launch_number(const RowsProgram& program, const unsigned char* shared) {
  return *reinterpret_cast<const volatile unsigned*>(shared + program.launch);
}
__device__ __forceinline__ unsigned* launch_words(const RowsProgram& program, const unsigned char* shared) {
  return program.handover.words(launch_number(program, shared));
}

// A thread of a half that computes.
struct HalfThread {
  int warp;  // of the half
  int lane;

  __device__ __forceinline__ HalfThread()
      : warp(keep(static_cast<int>(threadIdx.x / kWarpLanes % kRowsWarps))),
        lane(keep(static_cast<int>(threadIdx.x % kWarpLanes))) {}
  __device__ __forceinline__ int half() const { return static_cast<int>(threadIdx.x / kRowsThreads); }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x % kRowsThreads); }
  // Of the half.
  __device__ __forceinline__ void barrier() const { numbered_barrier<kRowsThreads>(1 + half()); }
  // Of the two warps, one of each half, that read the same slices.
  __device__ __forceinline__ void pair_barrier() const { numbered_barrier<kHalves * kWarpLanes>(1 + kHalves + warp); }
};

}  // namespace genai::cuda
