// rows_stream.cuh - the weights and activations of a product with 2 to 16 rows on their way to shared memory, and the
// order in which a block walks them. Used by matmul_rows.cu.
//
// NOTE [Rows stream]
// Block b owns the strips that begin in the b-th equal part of the bytes of all outputs. It takes them in passes of a
// few strips, each over all of K, chunk by chunk (rows_input.cuh): accumulators of all strips of a pass stay in
// registers, so neither ring depends on how long K is. A stage of the weights' ring is one chunk of all strips of the
// pass, a stage of the activations' ring one chunk of all rows. Where that ring holds all chunks, they are copied once
// and stay.
// Two blocks share a multiprocessor: while one adds up the partials of a pass, or waits, the other one computes
// (measured on an H200: with one block, decode steps with 2 to 16 rows take 1.3 times as long). Before the previous
// grid has ended weights fill the rings. Measured likewise: copies of 4.6 KB stream 4.0 TB/s with 55 KB on their way
// and 4.4 with 74 KB; with as many bytes again of activations that all blocks read from the cache, weights come at 3.0
// TB/s, with half of that at 3.7.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kRowsWarps = 8;  // that compute; one more asks for copies
static_assert(kRowsWarps == kChunkTiles, "warp w has tile w of each chunk, hence the partials 4w .. 4w+3");

// Where a ring lies in shared memory.
struct RingShape {
  int slots;
  int barriers;  // full and empty of each slot
  int slot_bytes;
  int slot_count;
  bool stays;  // what is in the ring stays, and every wait is for the first phase
};

struct RowsProduct {
  StreamShape shape;
  RowsInput input;
  RingShape weight_ring;
  RingShape input_ring;  // slot_bytes without the sums, where no weight type needs them
  int exchange;          // offsets in shared memory
  int terms;
  int ranges;
  int pass_strips;  // at most
  int round_units;  // rows_finish.cuh
  int row_count;
  Epilogue epilogue;
  float soft_cap;
};

struct RowsPass {
  int output;
  int strip;
  int strips;
};

// The strips of one output that a block owns, and how many of them are a pass: an even number where that fits a stage.
struct PassRange {
  int first;
  int end;
  int pass_strips;
};

template <DType kFirst, DType kSecond>
__device__ __forceinline__ PassRange pass_range(const RowsProduct& product, int output) {
  if (output >= product.shape.output_count) return {0, 0, 1};
  // The blocks that share a multiprocessor are normally half a grid apart: they get neighbouring shares.
  const int blocks = static_cast<int>(gridDim.x);
  const int half = blocks / 2;
  const int block = static_cast<int>(blockIdx.x);
  const int share = block >= 2 * half ? block : block < half ? 2 * block : 2 * (block - half) + 1;
  const StripRange range = owned_strips<kFirst, kSecond>(product.shape, output, share, blocks);
  const int count = range.end - range.first;
  const int passes = max((count + product.pass_strips - 1) / product.pass_strips, 1);
  const int even = (count + 2 * passes - 1) / (2 * passes) * 2;
  return {range.first, range.end, min(even, product.pass_strips)};
}

// Calls visit(pass) for each pass of the block, in order. `ranges` are in shared memory, one an output.
template <class Visit>
__device__ __forceinline__ void for_each_pass(const PassRange* ranges, const Visit& visit) {
  for (int output = 0; output < kMaxStreamOutputs; ++output)
    for (int strip = ranges[output].first; strip < ranges[output].end; strip += ranges[output].pass_strips)
      visit(RowsPass{output, strip, min(ranges[output].pass_strips, ranges[output].end - strip)});
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
    if (lane == 0 && !shape.stays) arrive(empty());
    advance();
  }
  // By the producing thread: the next slot, once it is free and its barrier expects `bytes`.
  __device__ __forceinline__ unsigned char* wait_empty(unsigned bytes) const {
    wait_phase(empty(), parity ^ 1u);  // the first round passes
    arrive_expecting(full(), bytes);
    return stage();
  }
};

// Asks for everything, by one thread. Activations wait for the previous grid; weights do not, but for a full ring.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void produce_rows(const RowsProduct& product, const PassRange* ranges, RowsRing weights,
                                             RowsRing input) {
  const int tile_count = product.shape.tile_count;
  const int chunks = chunk_count(tile_count);
  const bool stays = product.input_ring.stays;
  // Both rings wait for the same stage to be read, so that neither holds up the other.
  const int lag = stays ? 0 : max(product.weight_ring.slot_count - product.input_ring.slot_count, 0);
  const std::uint64_t once = read_once_policy();
  const std::uint64_t often = read_often_policy();
  bool waited = false;
  int stages = 0;
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
  bool first_pass = true;
  for_each_pass(ranges, [&](const RowsPass& pass) {
    const StreamOutput& output = product.shape.outputs[pass.output];
    const int tile_bytes = tile_layout(output.second_type ? kSecond : kFirst).tile_bytes;
    const int strip_bytes = tile_count * tile_bytes;
    const TileBytes* chunk_source = output.weights + static_cast<std::int64_t>(pass.strip) * strip_bytes;
    for (int left = tile_count; left > 0; left -= kChunkTiles) {
      if (!waited && stages == product.weight_ring.slot_count) {
        wait_for_previous_grid();
        waited = true;
        copy_chunks(lag);
      }
      const unsigned bytes = static_cast<unsigned>(min(left, kChunkTiles) * tile_bytes);
      unsigned char* slot = weights.wait_empty(static_cast<unsigned>(pass.strips) * bytes);
      const TileBytes* source = chunk_source;
      for (int strips = pass.strips; strips > 0; --strips) {
        bulk_load(slot, source, bytes, weights.full(), once);
        slot += kChunkTiles * tile_bytes;
        source += strip_bytes;
      }
      weights.advance();
      ++stages;
      chunk_source += kChunkTiles * tile_bytes;
      if (first_pass || !stays) ++wanted_chunks;
      if (waited) copy_chunks(lag);
    }
    first_pass = false;
  });
  if (!waited) wait_for_previous_grid();
  copy_chunks(0);
}

}  // namespace genai::cuda
