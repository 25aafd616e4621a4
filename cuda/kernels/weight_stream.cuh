// weight_stream.cuh - outputs of a product as kernels see them, their division among blocks, and the weights as one
// stream of bulk copies into a ring in shared memory. The stream is that of matmul_rows.cu, the rest serves
// matmul_row.cu and matmul_tiles.cu too.
//
// NOTE [Weight stream]
// The strips of up to three matrices are laid end to end; block b of a grid owns those that begin in the b-th equal
// part of the bytes. A block cuts its strips into stages of at most stage_bytes: a bundle of whole strips, or, where
// one strip is longer, pieces of it, each a multiple of 8 tiles so that a tile's place in a piece tells its partials.
// At most `window` copies are in flight.
// Too many hold up everything else on the way to memory: measured on an H200, 69 KB in flight a multiprocessor
// streams 4.57 TB/s, 184 KB no more, but makes other loads wait four times as long. While the ring fills for the first
// time, normally behind the previous kernel, one copy at a time is enough.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tile.cuh"
#include "engine/device/kernels.h"
#include "engine/packed_layout.h"

namespace genai::cuda {

inline constexpr int kMaxStreamOutputs = 3;
inline constexpr int kPieceTiles = 8;  // one tile for each four of the 32 partials

struct StreamOutput {
  const TileBytes* weights;
  const float* bias;  // null: none
  float* out;
  int rows;
  int strip_count;
  int out_stride;
  bool second_type;
};

struct StreamShape {
  StreamOutput outputs[kMaxStreamOutputs];
  int output_count;
  int tile_count;  // of a strip, along K
  int stage_bytes;
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

// How strips of one type are cut into stages.
struct StageCut {
  int bundle_strips;  // 1 where strips are cut
  int piece_tiles;    // tile_count where they are not
};

constexpr __host__ __device__ StageCut stage_cut(int tile_bytes, int tile_count, int stage_bytes) {
  const int stage_tiles = stage_bytes / tile_bytes;
  if (tile_count <= stage_tiles) return {stage_tiles / tile_count, tile_count};
  const int whole = stage_tiles / kPieceTiles * kPieceTiles;
  const int pieces = (tile_count + whole - 1) / whole;
  const int even = (tile_count + pieces - 1) / pieces;
  return {1, (even + kPieceTiles - 1) / kPieceTiles * kPieceTiles};
}

struct StripRange {
  int first;
  int end;
};

// The strips of one output that `block` of `block_count` owns.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ StripRange owned_strips(const StreamShape& shape, int output, int block, int block_count) {
  std::int64_t total = 0;
  std::int64_t start = 0;
  std::int64_t own_strip_bytes = 1;
#pragma unroll
  for (int i = 0; i < kMaxStreamOutputs; ++i) {
    if (i >= shape.output_count) break;
    const std::int64_t strip = static_cast<std::int64_t>(shape.tile_count) *
                               tile_layout(shape.outputs[i].second_type ? kSecond : kFirst).tile_bytes;
    if (i == output) {
      start = total;
      own_strip_bytes = strip;
    }
    total += strip * shape.outputs[i].strip_count;
  }
  const auto boundary = [&](std::int64_t index) {
    const std::int64_t strip = (total * index / block_count - start + own_strip_bytes / 2) / own_strip_bytes;
    const std::int64_t before = total * index / block_count < start ? 0 : strip;
    return static_cast<int>(min(before, static_cast<std::int64_t>(shape.outputs[output].strip_count)));
  };
  return {boundary(block), boundary(block + 1)};
}

// One end of a ring.
struct Ring {
  unsigned char* slots;
  SharedBarrier* full;
  SharedBarrier* empty;
  int slot_bytes;
  int slot_count;
  int slot = 0;
  unsigned parity = 0;  // of the round that the next stage belongs to

  __device__ __forceinline__ void advance() {
    if (++slot == slot_count) {
      slot = 0;
      parity ^= 1u;
    }
  }
  __device__ __forceinline__ const TileBytes* wait_full() {
    wait_phase(full + slot, parity);
    return slots + slot * slot_bytes;
  }
  // By every lane of a warp that has read the slot; the empty barrier counts the consuming warps.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty + slot);
    advance();
  }
};

// The producing thread's view of a block's stream.
class StreamProducer {
 public:
  __device__ StreamProducer(const Ring& ring, int window) : ring_(ring), window_(window), policy_(read_once_policy()) {}

  // `bytes` from `source` and, unless it is null, as many from `second` behind them.
  __device__ __forceinline__ void copy(const TileBytes* source, const TileBytes* second, unsigned bytes) {
    // A slot that has been filled again since was full before: its barrier may be a phase further, and is not asked.
    const int back = issued_ < ring_.slot_count ? 1 : window_;
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      bool filled_again = false;
#pragma unroll
      for (int later = 0; later < i; ++later) filled_again = filled_again || history_[later] == history_[i];
      if (i + 1 == back && issued_ >= back && !filled_again) wait_phase(history_[i], history_parity_ >> i & 1u);
    }
    wait_phase(ring_.empty + ring_.slot, ring_.parity ^ 1u);  // the first round passes
    SharedBarrier* full = ring_.full + ring_.slot;
    unsigned char* slot = ring_.slots + ring_.slot * ring_.slot_bytes;
    arrive_expecting(full, second == nullptr ? bytes : 2 * bytes);
    bulk_load(slot, source, bytes, full, policy_);
    if (second != nullptr) bulk_load(slot + bytes, second, bytes, full, policy_);
#pragma unroll
    for (int i = kHistory - 1; i > 0; --i) history_[i] = history_[i - 1];
    history_[0] = full;
    history_parity_ = history_parity_ << 1 | ring_.parity;
    ring_.advance();
    ++issued_;
  }
  __device__ __forceinline__ int issued() const { return issued_; }

 private:
  static constexpr int kHistory = 4;

  Ring ring_;
  const int window_;
  const std::uint64_t policy_;
  int issued_ = 0;
  SharedBarrier* history_[kHistory] = {};
  unsigned history_parity_ = 0;
};

}  // namespace genai::cuda
