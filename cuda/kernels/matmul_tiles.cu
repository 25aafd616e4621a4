// matmul_tiles.cu - products of quantised matrices with many rows of activations on integer tensor cores: W norm(X)
// Shapes   packed matrices (N, K) of one type; X (M, K), prepared as tile_input.cuh says; out (M, N) or (M, N/2); sm_90
// Mapping  a persistent grid takes items of 128 or 64 rows of weights times 64 or 32 columns (rows of activations) and
//          parts of items (tile_schedule.cuh). Eight warps: four groups of rows times the two halves of a tile of K.
//          The specification sums 32 strided partials, one after the other, so K is walked by tiles t = q (mod 8) for
//          q = 0 .. 7: the lower half has the partials 4q and 4q + 1 in registers, the upper half 4q + 2 and 4q + 3,
//          and after each q the running sum goes through both (tile_finish.cuh). Steps, one tile each, are on their way
//          into shared memory up to six ahead (tile_copy.cuh).
// Bound    arithmetic: 12 float instructions of a warp for each integer product (16 x 8 outputs, 32 columns of K), of
//          which there are 256 a step; this code issues 16.6 (Q4_0) to 29 (Q6_K) in all (tile_product.cuh).
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/tile_copy.cuh"
#include "cuda/kernels/tile_finish.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/tile_launch.cuh"
#include "cuda/kernels/tile_product.cuh"
#include "cuda/kernels/tile_schedule.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

using Wide = TileShape<2, 8, 1>;   // 128 rows of weights, 64 columns
using Small = TileShape<1, 4, 2>;  // 64 rows, 32 columns

constexpr int kThreads = kTileWarps * kWarpLanes;
constexpr int kMaxSlots = 8;
constexpr int kSpareSlots = 2;  // not asked for yet, so that no warp waits for the slowest one
constexpr int kSmSharedBytes = 228 * 1024;
constexpr int kReservedBytes = 1024;  // of each block, by the system
constexpr int kLoneBytes = kSmSharedBytes / 2;

// What a warp keeps out of registers.
struct WarpState {
  CopyWalk walk;
  TilePiece piece;  // that it computes
  int next_index;   // of the piece behind it
  int q;            // remainder of K in the piece
  unsigned phase;   // remainders so far, of all pieces
};

// Goes on to the next piece; false behind the last one. By whole warps.
__device__ __forceinline__ bool start_piece(const TilesProduct& product, WarpState* state, bool leader) {
  int index = state->next_index;
  TilePiece piece = {-1, 0, 0};
  while (index < product.shares.whole_items + 2 && piece.item < 0) piece = tile_piece(product.shares, index++);
  __syncwarp();
  if (leader) {
    state->piece = piece;
    state->next_index = index;
    state->q = piece.first_q;
  }
  __syncwarp();
  return piece.item >= 0;
}

// Shared memory: slots, then the sums of each row group, barriers of slots and of halves, and what the warps keep.
template <DType kType, class Shape>
struct Memory {
  static constexpr int kStageBytes = Stage<kType, Shape>::kBytes;
  static constexpr int kMaxBytes = kSmSharedBytes / Shape::kBlocksPerSm - kReservedBytes;
  static constexpr int kHalvesBytes = static_cast<int>(sizeof(HalfBarriers<Shape>));
  static constexpr int kSmallBytes =
      2 * kMaxSlots * 8 + kHalvesBytes + kTileWarps * static_cast<int>(sizeof(WarpState));
  static constexpr int kFit = (kMaxBytes - TileFinish<Shape>::kBytes - kSmallBytes) / kStageBytes;
  static constexpr int kSlots = kFit >= kMaxSlots ? kMaxSlots : kMaxSlots / 2;
  static constexpr int kAhead = kSlots - kSpareSlots;
  static constexpr int kSums = kSlots * kStageBytes;
  static constexpr int kBarriers = kSums + TileFinish<Shape>::kBytes;
  static constexpr int kHalves = kBarriers + 2 * kSlots * 8;
  static constexpr int kStates = kHalves + kHalvesBytes;
  static constexpr int kBytes = kStates + kTileWarps * static_cast<int>(sizeof(WarpState));
  static_assert(kSlots <= kFit && kSlots > kSpareSlots && kSlots <= kTileWarps && kBytes <= kMaxBytes);
};

template <DType kType, class Shape>
__global__ void __launch_bounds__(kThreads, Shape::kBlocksPerSm)
    matmul_tiles_kernel(const __grid_constant__ TilesProduct product) {
  using Shared = Memory<kType, Shape>;
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  unsigned char* shared = keep_shared(dynamic_shared);
  SharedBarrier* full = reinterpret_cast<SharedBarrier*>(shared + Shared::kBarriers);
  SharedBarrier* empty = full + Shared::kSlots;
  HalfBarriers<Shape>* halves = reinterpret_cast<HalfBarriers<Shape>*>(shared + Shared::kHalves);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int tile_count = product.shape.tile_count;
  float4* sums = reinterpret_cast<float4*>(shared + Shared::kSums);
  WarpState* state = reinterpret_cast<WarpState*>(shared + Shared::kStates) + warp;
  allow_next_grid();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Shared::kSlots; ++slot) {
      init_barrier(full + slot, 1);
      init_barrier(empty + slot, kTileWarps * kWarpArrivals);
    }
    for (int group = 0; group < Shape::kRowGroups; ++group) {
      init_barrier(halves->lower + group, kWarpLanes);
      init_barrier(halves->upper + group, kWarpLanes);
    }
    publish_barriers();
  }
  __syncthreads();
  const unsigned step_count = steps_of_block(product.shares, tile_count);
  if (step_count == 0) return;

  // The first steps: weights before the previous grid has ended, activations after it.
  if (lane == 0) {
    state->next_index = 0;
    state->phase = 0;
  }
  if (lane == 0 && static_cast<unsigned>(warp) < step_count) {
    CopyWalk walk = {};
    next_piece<Shape>(product, walk);
    advance<Shape>(product, walk, warp);
    if (warp < Shared::kAhead) {
      unsigned char* slot = shared + warp * Shared::kStageBytes;
      copy_weights<kType, Shape>(product, walk, slot, full + warp);
      wait_for_previous_grid();
      copy_input<kType, Shape>(product, walk, slot, full + warp);
      advance<Shape>(product, walk, Shared::kSlots);
    }
    state->walk = walk;
  }
  __syncwarp();
  wait_for_previous_grid();

  // Step s lies in slot s % kSlots, as use s / kSlots of the slot.
  unsigned step = 0;
  const unsigned char* stage = shared;
  const auto turn = [&]() -> const unsigned char* {
    ++step;
    if (step < step_count) wait_phase(full + step % Shared::kSlots, step / Shared::kSlots & 1u);
    return shared + step % Shared::kSlots * Shared::kStageBytes;
  };
  const auto copy = [&] {
    const unsigned wanted = step + Shared::kAhead - 1;
    if (wanted % Shared::kSlots != static_cast<unsigned>(warp) || wanted >= step_count) return;
    if (lane == 0) {
      unsigned char* slot = shared + warp * Shared::kStageBytes;
      CopyWalk walk = state->walk;
      wait_phase(empty + warp, (wanted / Shared::kSlots + 1) & 1u);
      copy_weights<kType, Shape>(product, walk, slot, full + warp);
      copy_input<kType, Shape>(product, walk, slot, full + warp);
      advance<Shape>(product, walk, Shared::kSlots);
      state->walk = walk;
    }
    __syncwarp();
  };
  const auto done = [&] {
    __syncwarp();
    if (arrives_for_warp(lane)) arrive(empty + (step - 1) % Shared::kSlots);
  };
  WarpTile<kType, Shape> tile(lane, warp % Shape::kRowGroups, warp / Shape::kRowGroups);
  wait_phase(full, 0);
  tile.load_strips(shared);
  tile.template load_columns<0>(shared, 0);

  while (start_piece(product, state, lane == 0)) {
    bool more = true;
    while (more) {
      tile.template step<true>(stage, turn, copy, done);
      for (int i = state->q + kUnits; i < tile_count; i += kUnits) tile.template step<false>(stage, turn, copy, done);
      const TilePiece piece = state->piece;
      const int q = state->q;
      const int end_q = min(piece.end_q, tile_count);
      more = q + 1 < end_q;
      TileFinish<Shape>::add_remainder(product, piece, q, more, state->phase, halves, sums, tile.partials[0],
                                       tile.partials[1]);
      __syncwarp();
      if (lane == 0) {
        state->q = q + 1;
        ++state->phase;
      }
      __syncwarp();
    }
    TileFinish<Shape>::finish(product, state->piece, state->phase - 1, halves, sums, tile.partials[0]);
  }
}

// ---- launch --------------------------------------------------------------------------------------------------------

template <DType kType, class Shape>
TilesChoice tiles_choice(int cost, int alone_cost) {
  constexpr int kBytes = Memory<kType, Shape>::kBytes;
  return {matmul_tiles_kernel<kType, Shape>,
          kThreads,
          kBytes,
          Shape::kBlocksPerSm > 1 ? std::max(kBytes, kLoneBytes) : kBytes,
          Shape::kBlockStrips,
          Shape::kColumns,
          Shape::kBlocksPerSm,
          cost,
          alone_cost};
}

constexpr int kShapes = 2;

template <DType kType>
TilesChoice tiles_choice(int shape) {
  return shape == 0 ? tiles_choice<kType, Wide>(1330, 1330) : tiles_choice<kType, Small>(860, 560);
}

TilesChoice tiles_choice(DType dtype, int shape) {
  return quantized_choice(dtype, [shape]<DType kType>() { return tiles_choice<kType>(shape); });
}

constexpr TilesChoices kChoices = {tiles_choice, kShapes};

}  // namespace

bool matmul_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (traits.compute_capability < 90 || !has_box_copies()) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  return true;
}

std::int64_t matmul_tiles_cost(const DeviceTraits& traits, const MatmulArgs& args) {
  return tiles_cost(traits, args, kChoices);
}

void prepare_matmul_tiles(const DeviceTraits&) { allow_shared_bytes(kChoices); }

void launch_matmul_tiles(const LaunchTarget& target, const MatmulArgs& args) {
  launch_tiles("matmul_tiles_kernel", target, args, launch_prepare_tiles(target, args, false), kChoices);
}

}  // namespace genai::cuda
