// rows_stream.cuh - the weights and activations of a product with 2 to 16 rows on their way to shared memory, and the
// order in which a block walks them. Used by matmul_rows.cu.
//
// NOTE [Rows stream]
// A block takes its strips (rows_share.cuh) in passes of a few, each over all of K, chunk by chunk (rows_input.cuh):
// accumulators of all strips of a pass stay in registers, so neither ring depends on how long K is. A stage of the
// weights' ring is one chunk of all strips of the pass, a stage of the activations' ring one chunk of all rows. Where
// that ring holds all chunks, they are copied once and stay. Two blocks share a multiprocessor: while one adds up the
// partials of a pass, or waits, the other one computes (measured on an H200: with one block, decode steps with 2 to 16
// rows take 1.3 times as long). Before the input is there weights fill the rings, a stage at a time: with more on their
// way, fences and what others read take longer. Measured likewise: copies of 4.6 KB stream 4.0 TB/s with 55 KB on their
// way and 4.4 with 74 KB; with as many bytes again of activations that all blocks read from the cache, weights come
// at 3.0 TB/s, with half of that at 3.7.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/kernels/rows_prepare.cuh"
#include "cuda/kernels/rows_share.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kRowsWarps = 8;  // that compute; one more asks for copies
inline constexpr int kRowsThreads = kRowsWarps * kWarpLanes;
inline constexpr int kComputeBarrier = 1;  // of the warps that compute
static_assert(kRowsWarps == kChunkTiles, "warp w has tile w of each chunk, hence the partials 4w .. 4w+3");
static_assert(kRowsThreads == kPrepareThreads);

// Where a ring lies in shared memory.
struct RingShape {
  int slots;
  int barriers;  // full and empty of each slot
  int slot_bytes;
  int slot_count;
  bool stays;  // what is in the ring stays, and every wait is for the first phase
};

// NOTE [Rows input]
// The blocks of a product prepare its input among themselves: a block takes chunks of one row, writes them to scratch,
// and counts up. Whoever wants the input waits until all have; the last block that has waited sets the counters back to
// zero for the next kernel. Blocks start in the order of their numbers, and one that prepares waits for no other, so
// there is always somebody to wait for. Attention leaves the product behind it an input that is prepared already.
struct RowsCounters {
  unsigned* prepared;  // null: the input has been prepared
  unsigned* seen;

  __host__ __device__ static RowsCounters at(unsigned* counters) { return {counters, counters + 32}; }
};

struct RowsProduct {
  StreamShape shape;
  RowsSource source;
  RowsInput input;
  RowsCounters counters;
  RingShape weight_ring;
  RingShape input_ring;  // slot_bytes without the sums, where no weight type needs them
  int exchange;          // offsets in shared memory
  int terms;
  int share;
  RowsDivision division;
  int first_stages;  // of weights on their way, until the input is there
  int round_units;   // rows_finish.cuh
  int row_count;
  Epilogue epilogue;
  float soft_cap;
};

// The chunks of all rows, and the blocks that prepare them: the first ones.
__device__ __forceinline__ int rows_chunks(const RowsProduct& product) {
  return chunk_count(product.shape.tile_count) * product.row_count;
}
__device__ __forceinline__ int preparing_blocks(const RowsProduct& product) {
  return product.counters.prepared == nullptr ? 0 : min(rows_chunks(product), static_cast<int>(gridDim.x));
}

// The blocks that share a multiprocessor are normally half a grid apart: they get neighbouring shares.
__device__ __forceinline__ RowsShare block_share(const RowsProduct& product) {
  const int half = static_cast<int>(gridDim.x) / 2;
  const int block = static_cast<int>(blockIdx.x);
  return rows_share(product.shape, product.division,
                    block >= 2 * half ? block
                    : block < half    ? 2 * block
                                      : 2 * (block - half) + 1);
}

// One end of a ring.
struct RowsRing {
  const RingShape& shape;
  unsigned char* shared;
  int slot = 0;
  unsigned parity = 0;  // of the round that the next stage belongs to

  __device__ __forceinline__ SharedBarrier* full() const {
    return reinterpret_cast<SharedBarrier*>(shared + shape.barriers) + 2 * slot;
  }
  __device__ __forceinline__ SharedBarrier* empty() const { return full() + 1; }
  __device__ __forceinline__ unsigned char* stage() const { return shared + shape.slots + slot * shape.slot_bytes; }
  __device__ __forceinline__ void advance() {
    if (++slot < shape.slot_count) return;
    slot = 0;
    if (!shape.stays) parity ^= 1u;
  }
  __device__ __forceinline__ const unsigned char* wait_full() const {
    wait_phase(full(), parity);
    return stage();
  }
  // By a whole warp, after all its lanes have read the slot; the empty barrier counts the warps.
  __device__ __forceinline__ void release(int lane) {
    if (arrives_for_warp(lane) && !shape.stays) arrive(empty());
    advance();
  }
  // By the producing thread: the next slot, once it is free and its barrier expects `bytes`.
  __device__ __forceinline__ unsigned char* wait_empty(unsigned bytes) const {
    wait_phase(empty(), parity ^ 1u);  // the first round passes
    arrive_expecting(full(), bytes);
    return stage();
  }
};

// NOTE [Early reads] (launch.h).
__device__ __forceinline__ void wait_then_allow_next_grid() {
  wait_for_previous_grid();
  allow_next_grid();
}

// By the computing warps; `shared` holds 256 floats. Ends behind the wait for the previous grid.
__device__ __forceinline__ void prepare_input(const RowsProduct& product, float* shared) {
  int index = static_cast<int>(blockIdx.x);
  if (index >= preparing_blocks(product)) return wait_then_allow_next_grid();
  const int end = rows_chunks(product);
  const auto barrier = [] { named_barrier<kComputeBarrier, kRowsThreads>(); };
#pragma unroll 1
  for (; index < end; index += static_cast<int>(gridDim.x)) {
    const int chunk = index / product.row_count;
    const int m = index - chunk * product.row_count;
    const float4 weights = prepare_weights(product.source, chunk);
    wait_then_allow_next_grid();
    prepare_chunk(product.source, product.input, m, chunk, weights, shared, barrier);
    barrier();
  }
  if (threadIdx.x == 0) count_up(product.counters.prepared);
}

// By the producing thread, behind the wait for the previous grid.
__device__ __forceinline__ void wait_for_input(const RowsProduct& product) {
  const int blocks = preparing_blocks(product);
  if (blocks == 0) return;
  wait_count(product.counters.prepared, static_cast<unsigned>(blocks));
  order_seen_before_bulk_loads();
  if (atomicAdd(product.counters.seen, 1u) + 1 < gridDim.x) return;
  *product.counters.prepared = 0;
  *product.counters.seen = 0;
}

// Asks for everything, by one thread. Activations wait for the previous grid; weights do not, but for a full ring.
template <DType kType>
__device__ __forceinline__ void produce_rows(const RowsProduct& product, RowsShare share, RowsRing weights,
                                             RowsRing input) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int tile_count = product.shape.tile_count;
  const int chunks = chunk_count(tile_count);
  const int strip_bytes = tile_count * kTileBytes;
  const TileBytes* matrix = product.shape.outputs[share.output].weights;
  const bool stays = product.input_ring.stays;
  // Both rings wait for the same stage to be read, so that neither holds up the other.
  const int lag = stays ? 0 : max(product.weight_ring.slot_count - product.input_ring.slot_count, 0);
  const std::uint64_t once = read_once_policy();
  const std::uint64_t often = read_often_policy();
  int wanted_chunks = 0;
  int chunk = 0;  // the next one to copy
  const auto copy_chunks = [&](int left_out) {
    for (; wanted_chunks > left_out; --wanted_chunks) {
      const unsigned bytes = static_cast<unsigned>(product.input_ring.slot_bytes);
      bulk_load(input.wait_empty(bytes), product.input.chunks + chunk * product.input.chunk_bytes(), bytes,
                input.full(), often);
      input.advance();
      if (++chunk == chunks) chunk = 0;
    }
  };
  bool waited = false;
  const auto wait_for_all = [&] {
    wait_for_previous_grid();
    wait_for_input(product);
    waited = true;
  };
  RowsRing arriving = weights;  // how far weights are known to have come
  int stages = 0;
  for (int strip = share.first; strip < share.end; strip += share.pass_strips) {
    const int strips = min(share.pass_strips, share.end - strip);
    const TileBytes* chunk_source = matrix + static_cast<std::int64_t>(strip) * strip_bytes;
    for (int left = tile_count; left > 0; left -= kChunkTiles) {
      if (!waited && stages == product.weight_ring.slot_count) {
        wait_for_all();
        copy_chunks(lag);
      }
      if (!waited && stages >= product.first_stages) {
        arriving.wait_full();
        arriving.advance();
      }
      const unsigned bytes = static_cast<unsigned>(min(left, kChunkTiles) * kTileBytes);
      unsigned char* slot = weights.wait_empty(static_cast<unsigned>(strips) * bytes);
      const TileBytes* source = chunk_source;
      for (int i = 0; i < strips; ++i) {
        bulk_load(slot, source, bytes, weights.full(), once);
        slot += kChunkTiles * kTileBytes;
        source += strip_bytes;
      }
      weights.advance();
      ++stages;
      chunk_source += kChunkTiles * kTileBytes;
      if (stages <= chunks || !stays) ++wanted_chunks;
      if (waited) copy_chunks(lag);
    }
  }
  if (!waited) wait_for_all();
  copy_chunks(0);
}

}  // namespace genai::cuda
