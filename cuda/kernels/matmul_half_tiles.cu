// matmul_half_tiles.cu - the products of matmul_tiles.cu by half products of four warps: W norm(X)
// Shapes   packed matrices (N, K) of one type; X (M, K), prepared as tile_input.cuh says; out (M, N) or (M, N/2); only
//          compute capability 9.0, for which alone this file is built (CMakeLists.txt)
// Mapping  a persistent grid takes items of 128 rows of weights times 64 columns (rows of activations) and parts of
//          items (tile_schedule.cuh). The specification sums 32 strided partials, one after the other, so K is walked
//          by tiles t = q (mod 8) for q = 0 .. 7: two groups of four warps, 64 rows each, have the partials 4q .. 4q +
//          3 in registers (half_tile_product.cuh), and after each q add them to the running sum (half_tile_finish.cuh).
//          A warp more keeps steps, one tile each, on their way into shared memory (half_tile_copy.cuh).
// Bound    issue: 8 float instructions of a warp for each 16 x 8 outputs and block of 32, of which there are 256 a
//          step; the loop has 14.5 (Q4_0) to 23.7 (Q5_K) in all, and a multiprocessor's schedulers issue one in 1.7
//          clocks, two warps each. Products of four warps (wgmma) run beside float instructions in part; those of
//          single warps (mma.sync) would stop them for six clocks each, and give integers that have to be converted.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include "cuda/kernels/half_tile_copy.cuh"
#include "cuda/kernels/half_tile_finish.cuh"
#include "cuda/kernels/half_tile_product.cuh"
#include "cuda/kernels/half_tile_ptx.cuh"
#include "cuda/kernels/tile_launch.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kProductThreads = HalfTile::kWarps * kWarpLanes;
constexpr int kThreads =
    kProductThreads + HalfTile::kGroupWarps * kWarpLanes;  // registers move between groups of four warps
constexpr int kProductRegisters = 240;
constexpr int kCopyRegisters = 24;
constexpr int kMaxSlots = 8;
constexpr int kMaxSharedBytes = 227 * 1024;

// Shared memory: slots, then the sums of each lane, then barriers of slots.
template <DType kType>
struct Memory {
  static constexpr int kStageBytes = HalfStage<kType>::kBytes;
  static constexpr int kFit = (kMaxSharedBytes - HalfTileFinish::kBytes - 2 * kMaxSlots * 8) / kStageBytes;
  static constexpr int kSlots = kFit < kMaxSlots ? kFit : kMaxSlots;
  static constexpr int kSums = kSlots * kStageBytes;
  static constexpr int kBarriers = kSums + HalfTileFinish::kBytes;
  static constexpr int kBytes = kBarriers + 2 * kSlots * 8;
  static_assert(kSlots >= 3);
};

// A place in the ring of slots. Barriers of a slot: `full` when its step is there, `empty` when all warps have read it.
template <DType kType>
struct Ring {
  using Shared = Memory<kType>;
  unsigned char* shared;
  int slot;
  unsigned parity;  // of the slot's uses so far

  __device__ __forceinline__ unsigned char* stage() const { return shared + slot * Shared::kStageBytes; }
  __device__ __forceinline__ SharedBarrier* full() const {
    return reinterpret_cast<SharedBarrier*>(shared + Shared::kBarriers) + slot;
  }
  __device__ __forceinline__ SharedBarrier* empty() const { return full() + Shared::kSlots; }
  __device__ __forceinline__ void advance() {
    if (++slot == Shared::kSlots) {
      slot = 0;
      parity ^= 1u;
    }
  }
};

// By one thread: weights of the first steps before the previous grid has ended, all else after it.
template <DType kType>
__device__ __forceinline__ void copy_steps(const TilesProduct& product, unsigned char* shared) {
  Ring<kType> ahead = {shared, 0, 0};
  HalfTileSteps steps = {};
  int early = 0;
  for (; early < Memory<kType>::kSlots && steps.next(product); ++early) {
    copy_weights<kType>(product, steps, ahead.stage(), ahead.full());
    ahead.advance();
  }
  wait_for_previous_grid();
  Ring<kType> ring = {shared, 0, 0};
  steps = {};
  for (int step = 0; steps.next(product); ++step) {
    if (step >= early) {
      wait_phase(ring.empty(), ring.parity ^ 1u);
      copy_weights<kType>(product, steps, ring.stage(), ring.full());
    }
    copy_input<kType>(product, steps, ring.stage(), ring.full());
    ring.advance();
  }
}

template <DType kType>
__device__ __forceinline__ void multiply_steps(const TilesProduct& product, unsigned char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int tile_count = product.shape.tile_count;
  int steps_left = steps_of_block(product.shares, tile_count);
  if (steps_left == 0) return;
  wait_for_previous_grid();
  float4* sums = reinterpret_cast<float4*>(shared + Memory<kType>::kSums) + warp * HalfTileFinish::kWarpSums + lane;
  Ring<kType> ring = {shared, 0, 0};
  Ring<kType> following = ring;
  const auto peek = [&] {
    following.advance();
    return --steps_left <= 0 || phase_is_over(following.full(), following.parity);
  };
  const auto turn = [&](bool seen) -> const unsigned char* {
    if (!seen) wait_phase(following.full(), following.parity);
    return following.stage();
  };
  const auto done = [&] {
    __syncwarp();
    if (arrives_for_warp(lane)) arrive(ring.empty());
    ring = following;
  };
  HalfWarpTile<kType> tile(warp, lane);
  wait_phase(ring.full(), ring.parity);
  tile.begin(ring.stage());
  for (TilePieces pieces = {}; pieces.next(product.shares);) {
    const TilePiece piece = pieces.piece;
    const int end_q = min(piece.end_q, tile_count);
    for (int q = piece.first_q; q < end_q; ++q) {
      tile.template step<true>(ring.stage(), peek, turn, done);
      for (int i = q + kUnits; i < tile_count; i += kUnits) tile.template step<false>(ring.stage(), peek, turn, done);
      HalfTileFinish::add_remainder(product, piece, q, q + 1 == end_q, warp, lane, sums, tile.partials);
    }
    HalfTileFinish::finish(product, piece, warp, lane, sums);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads, 1) matmul_half_tiles_kernel(const __grid_constant__ TilesProduct product) {
  using Shared = Memory<kType>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_grid();
  if (threadIdx.x == 0) {
    SharedBarrier* full = reinterpret_cast<SharedBarrier*>(shared + Shared::kBarriers);
    for (int slot = 0; slot < Shared::kSlots; ++slot) {
      init_barrier(full + slot, 1);
      init_barrier(full + Shared::kSlots + slot, HalfTile::kWarps * kWarpArrivals);
    }
    publish_barriers();
  }
  __syncthreads();
  if (__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpLanes, 0) >= HalfTile::kWarps) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x == kProductThreads) copy_steps<kType>(product, shared);
  } else {
    take_registers<kProductRegisters>();
    multiply_steps<kType>(product, shared);
  }
}

// ---- launch --------------------------------------------------------------------------------------------------------

constexpr int kCost = 1100;  // clocks a step, where matmul_tiles.cu says 1330

struct HalfChoice {
  template <DType kType>
  TilesChoice operator()() const {
    constexpr int kBytes = Memory<kType>::kBytes;
    return {matmul_half_tiles_kernel<kType>,
            kThreads,
            kBytes,
            kBytes,
            HalfTile::kBlockStrips,
            HalfTile::kColumns,
            1,
            kCost,
            kCost};
  }
};

TilesChoice half_choice(DType dtype, int) { return quantized_choice(dtype, HalfChoice{}); }

constexpr TilesChoices kChoices = {half_choice, 1};

}  // namespace

bool matmul_half_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  return traits.has_half_tiles && matmul_tiles_serves(traits, args);
}

std::int64_t matmul_half_tiles_cost(const DeviceTraits& traits, const MatmulArgs& args) {
  return tiles_cost(traits, args, kChoices);
}

bool prepare_matmul_half_tiles() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, matmul_half_tiles_kernel<DType::Q4_0>) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  allow_shared_bytes(kChoices);
  return true;
}

void launch_matmul_half_tiles(const LaunchTarget& target, const MatmulArgs& args) {
  launch_tiles("matmul_half_tiles_kernel", target, args, launch_prepare_tiles(target, args, true), kChoices);
}

}  // namespace genai::cuda
