// matmul_tiles.cu - products of quantised matrices with many rows of activations on integer tensor cores.   Y = W
// norm(X) Shapes   packed matrices (N, K) of one type; X (M, K), prepared as tile_input.cuh says; out (M, N) or (M,
// N/2). sm_90. Mapping  a block computes 128 weight rows times 64 rows of activations: 16 warps, each 16 x 32. The
// specification sums 32
//          strided partials, one after the other: so K is walked by tiles t = q (mod 8) for q = 0 .. 7, with the four
//          partials 4q .. 4q+3 and their running sum in registers. Warp 0 keeps two steps of weights and activations on
//          their way into four slots of shared memory.
// Bound    arithmetic: three float operations for each 32 products, 24 float instructions a lane and 8 integer products
// a
//          block of 32 columns.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/tile_input.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kRowWarps = 8;
constexpr int kColumnWarps = 2;
constexpr int kWarps = kRowWarps * kColumnWarps;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kBlockStrips = 2 * kRowWarps;
constexpr int kOctetPairs = 2;  // a warp's 32 columns
static_assert(kColumnWarps * kOctetPairs * 16 == kPanelRows);
constexpr int kSlots = 4;
constexpr int kAhead = 2;

struct TilesProduct {
  StreamShape shape;
  TileInput input;
  int row_count;
  int panel_count;
  Epilogue epilogue;
  float soft_cap;
};

template <DType kType>
struct Stage {
  static constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  static constexpr int kQuants = kBlockStrips * kTileBytes;
  static constexpr int kScales = kQuants + kPanelTileBytes;
  static constexpr int kSums = kScales + kPanelTileScales * 4;
  static constexpr int kBytes = kSums + (has_minimum(kType) ? kPanelTileScales * 4 : 0);
  static constexpr int kShared = kSlots * kBytes + 2 * kSlots * 8;
};

// The order in which tiles of K are walked.
struct TileWalk {
  int remainder = 0;  // q
  int tile = 0;
  int tile_count;

  __device__ __forceinline__ bool done() const { return tile >= tile_count || remainder >= kPieceTiles; }
  __device__ __forceinline__ bool last_of_remainder() const { return tile + kPieceTiles >= tile_count; }
  __device__ __forceinline__ void advance() {
    tile += kPieceTiles;
    if (tile >= tile_count) tile = ++remainder;
  }
};

// Results of a lane: [column octet of its warp][strip of its pair][column 2c, 2c + 1].
using Lane = float[2 * kOctetPairs][2][2];

template <DType kType, int kBlock>
__device__ __forceinline__ void accumulate_block(const Fragment<kType>& upper, const Fragment<kType>& lower,
                                                 const PairScales<kType>& upper_scales,
                                                 const PairScales<kType>& lower_scales, const unsigned char* stage,
                                                 int column_warp, Lane& partials) {
  constexpr int kOfPair = kBlock % 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const unsigned a0 = upper.template weights<0, kBlock>();
  const unsigned a1 = lower.template weights<0, kBlock>();
  const unsigned a2 = upper.template weights<1, kBlock>();
  const unsigned a3 = lower.template weights<1, kBlock>();
  const uint4* quants = reinterpret_cast<const uint4*>(stage + Stage<kType>::kQuants) +
                        (kBlock * 4 + column_warp * kOctetPairs) * kWarpLanes + lane;
  const int scale_place = ((kBlock * 2 + column_warp) * 4 + lane % 4) * 2;
  const float4* scales = reinterpret_cast<const float4*>(stage + Stage<kType>::kScales) + scale_place;
  const float4* sums = reinterpret_cast<const float4*>(stage + Stage<kType>::kSums) + scale_place;
#pragma unroll
  for (int pair = 0; pair < kOctetPairs; ++pair) {
    const uint4 both = quants[pair * kWarpLanes];
    const float4 scale = scales[pair];
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (has_minimum(kType)) sum = sums[pair];
#pragma unroll
    for (int of_octets = 0; of_octets < 2; ++of_octets) {
      const unsigned b0 = of_octets == 0 ? both.x : both.z;
      const unsigned b1 = of_octets == 0 ? both.y : both.w;
      int product[4];
      int other[4] = {};
      if constexpr (Fragment<kType>::kHalves) {
        multiply_16(product, a0, a1, b0, kProductStart);
        multiply_16(other, a2, a3, b1, kProductStart);
      } else {
        multiply_32<Fragment<kType>::kSigned>(product, a0, a1, a2, a3, b0, b1, kProductStart);
      }
      const float input_scale[2] = {of_octets == 0 ? scale.x : scale.z, of_octets == 0 ? scale.y : scale.w};
      const float input_sum[2] = {of_octets == 0 ? sum.x : sum.z, of_octets == 0 ? sum.y : sum.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const PairScales<kType>& weight = k < 2 ? upper_scales : lower_scales;
        float& own = partials[2 * pair + of_octets][k / 2][k % 2];
        own = add_block<kType>(own, scaled_dot<kType>(product[k], other[k], weight.sub[kOfPair]), weight.scale[kOfPair],
                               weight.minimum[kOfPair], input_scale[k % 2], input_sum[k % 2]);
      }
    }
  }
}

// One step: the tile of the warp's two strips times its 32 columns.
template <DType kType>
__device__ __forceinline__ void accumulate_step(const unsigned char* stage, int row_warp, int column_warp,
                                                Lane (&partials)[kTileBlocks]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const TileBytes* upper_tile = stage + 2 * row_warp * Stage<kType>::kTileBytes;
  const TileBytes* lower_tile = upper_tile + Stage<kType>::kTileBytes;
  Fragment<kType> upper = {};
  Fragment<kType> lower = {};
  PairScales<kType> upper_scales = {};
  PairScales<kType> lower_scales = {};
  upper.load(upper_tile, lane);
  lower.load(lower_tile, lane);
  upper_scales.load(upper_tile, lane / 4, 0);
  lower_scales.load(lower_tile, lane / 4, 0);
  accumulate_block<kType, 0>(upper, lower, upper_scales, lower_scales, stage, column_warp, partials[0]);
  accumulate_block<kType, 1>(upper, lower, upper_scales, lower_scales, stage, column_warp, partials[1]);
  upper_scales.load(upper_tile, lane / 4, 1);
  lower_scales.load(lower_tile, lane / 4, 1);
  accumulate_block<kType, 2>(upper, lower, upper_scales, lower_scales, stage, column_warp, partials[2]);
  accumulate_block<kType, 3>(upper, lower, upper_scales, lower_scales, stage, column_warp, partials[3]);
}

// sum += the partials, in order; partials start again from zero.
__device__ __forceinline__ void fold(bool first, Lane (&partials)[kTileBlocks], Lane& sum) {
#pragma unroll
  for (int octet = 0; octet < 2 * kOctetPairs; ++octet)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& y = sum[octet][k / 2][k % 2];
      y = first ? partials[0][octet][k / 2][k % 2] : y + partials[0][octet][k / 2][k % 2];
#pragma unroll
      for (int block = 1; block < kTileBlocks; ++block) y = y + partials[block][octet][k / 2][k % 2];
#pragma unroll
      for (int block = 0; block < kTileBlocks; ++block) partials[block][octet][k / 2][k % 2] = 0.0f;
    }
}

__device__ __forceinline__ void store_tile(const TilesProduct& product, const StreamOutput& output, int first_strip,
                                           int first_column, const Lane& sum) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
  for (int of_pair = 0; of_pair < 2; ++of_pair) {
    const int row = (first_strip + of_pair) * kStripRows + lane / 4;
    const bool inside = row < output.rows;
    const float bias = inside && output.bias != nullptr ? output.bias[row] : 0.0f;
#pragma unroll
    for (int octet = 0; octet < 2 * kOctetPairs; ++octet)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int m = first_column + octet * 8 + lane % 4 * 2 + k;
        const bool active = inside && m < product.row_count;
        float y = sum[octet][of_pair][k];
        if (output.bias != nullptr) y = y + bias;
        float* out = output.out + static_cast<std::int64_t>(m) * output.out_stride;
        if (is_gated(product.epilogue)) {
          const float up = __shfl_xor_sync(kFullWarp, y, 4);
          if (active && row % 2 == 0) store_gated(product.epilogue, product.soft_cap, y, up, out + row / 2);
        } else if (active) {
          store_output(product.epilogue, product.soft_cap, y, out + row);
        }
      }
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads, 1) matmul_tiles_kernel(const __grid_constant__ TilesProduct product) {
  extern __shared__ __align__(128) unsigned char shared[];
  SharedBarrier* full = reinterpret_cast<SharedBarrier*>(shared + kSlots * Stage<kType>::kBytes);
  SharedBarrier* empty = full + kSlots;
  const int panel = static_cast<int>(blockIdx.x) % product.panel_count;
  int first_strip = static_cast<int>(blockIdx.x) / product.panel_count * kBlockStrips;
  int output_index = 0;
  while (first_strip >=
         (product.shape.outputs[output_index].strip_count + kBlockStrips - 1) / kBlockStrips * kBlockStrips) {
    first_strip -= (product.shape.outputs[output_index].strip_count + kBlockStrips - 1) / kBlockStrips * kBlockStrips;
    ++output_index;
  }
  const StreamOutput& output = product.shape.outputs[output_index];
  const int strips = min(kBlockStrips, output.strip_count - first_strip);
  const int tile_count = product.shape.tile_count;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  allow_next_grid();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      init_barrier(full + slot, 1);
      init_barrier(empty + slot, kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous_grid();

  // By warp 0: lanes 0 .. 15 copy a strip's tile each, the next ones the activations.
  const auto request = [&](int step, int tile) {
    const int slot = step % kSlots;
    unsigned char* stage = shared + slot * Stage<kType>::kBytes;
    if (step >= kSlots) wait_phase(empty + slot, static_cast<unsigned>(step / kSlots - 1) & 1u);
    if (lane == 0)
      arrive_expecting(full + slot, static_cast<unsigned>(strips * Stage<kType>::kTileBytes + Stage<kType>::kBytes -
                                                          Stage<kType>::kQuants));
    __syncwarp();
    const std::int64_t panel_tile = static_cast<std::int64_t>(panel) * tile_count + tile;
    if (lane < strips) {
      const std::int64_t strip_tile = static_cast<std::int64_t>(first_strip + lane) * tile_count + tile;
      bulk_load(stage + lane * Stage<kType>::kTileBytes, output.weights + strip_tile * Stage<kType>::kTileBytes,
                Stage<kType>::kTileBytes, full + slot, read_often_policy());
    } else if (lane == kBlockStrips) {
      bulk_load(stage + Stage<kType>::kQuants, product.input.quants + panel_tile * kPanelTileBytes, kPanelTileBytes,
                full + slot, read_often_policy());
    } else if (lane == kBlockStrips + 1) {
      bulk_load(stage + Stage<kType>::kScales, product.input.scales + panel_tile * kPanelTileScales,
                kPanelTileScales * 4, full + slot, read_often_policy());
    } else if (has_minimum(kType) && lane == kBlockStrips + 2) {
      bulk_load(stage + Stage<kType>::kSums, product.input.sums + panel_tile * kPanelTileScales, kPanelTileScales * 4,
                full + slot, read_often_policy());
    }
  };

  TileWalk ahead = {0, 0, tile_count};
  if (warp == 0)
    for (int step = 0; step < kAhead && !ahead.done(); ++step, ahead.advance()) request(step, ahead.tile);
  Lane partials[kTileBlocks] = {};
  Lane sum = {};
  TileWalk walk = {0, 0, tile_count};
  for (int step = 0; step < tile_count; ++step) {
    if (warp == 0 && !ahead.done()) {
      request(step + kAhead, ahead.tile);
      ahead.advance();
    }
    const int slot = step % kSlots;
    wait_phase(full + slot, static_cast<unsigned>(step / kSlots) & 1u);
    accumulate_step<kType>(shared + slot * Stage<kType>::kBytes, warp / kColumnWarps, warp % kColumnWarps, partials);
    __syncwarp();
    if (lane == 0) arrive(empty + slot);
    if (walk.last_of_remainder()) fold(walk.remainder == 0, partials, sum);
    walk.advance();
  }
  // A matrix of fewer than eight tiles has partials that nothing went into: zeros, which are added like the others.
  for (int remainder = tile_count; remainder < kPieceTiles; ++remainder) fold(false, partials, sum);
  if (2 * (warp / kColumnWarps) < strips)
    store_tile(product, output, first_strip + 2 * (warp / kColumnWarps),
               panel * kPanelRows + warp % kColumnWarps * kOctetPairs * 16, sum);
}

using TilesKernel = void (*)(TilesProduct);

struct TilesChoice {
  TilesKernel kernel;
  int shared_bytes;
};

template <DType kType>
TilesChoice tiles_choice() {
  return {matmul_tiles_kernel<kType>, Stage<kType>::kShared};
}

TilesChoice tiles_choice(DType dtype) {
  switch (dtype) {
    case DType::Q4_0:
      return tiles_choice<DType::Q4_0>();
    case DType::Q4_1:
      return tiles_choice<DType::Q4_1>();
    case DType::Q5_0:
      return tiles_choice<DType::Q5_0>();
    case DType::Q5_1:
      return tiles_choice<DType::Q5_1>();
    case DType::Q8_0:
      return tiles_choice<DType::Q8_0>();
    case DType::Q4_K:
      return tiles_choice<DType::Q4_K>();
    case DType::Q5_K:
      return tiles_choice<DType::Q5_K>();
    case DType::Q6_K:
      return tiles_choice<DType::Q6_K>();
    default:
      return {nullptr, 0};
  }
}

}  // namespace

bool matmul_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (traits.compute_capability < 90) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  return true;
}

void prepare_matmul_tiles(const DeviceTraits&) {
  for (const DTypeInfo& info : kDTypes)
    if (const TilesChoice choice = tiles_choice(info.dtype); choice.kernel != nullptr)
      CUDA_CHECK(cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes));
}

// One launch a weight type.
void launch_matmul_tiles(const LaunchTarget& target, const MatmulArgs& args) {
  const TileInput input = launch_prepare_tiles(target, args);
  for (int first = 0; first < args.output_count; ++first) {
    const DType dtype = args.outputs[first].matrix.dtype;
    bool done = false;
    for (int i = 0; i < first; ++i) done = done || args.outputs[i].matrix.dtype == dtype;
    if (done) continue;
    TilesProduct product = {};
    std::int64_t row_blocks = 0;
    for (int i = first; i < args.output_count; ++i) {
      if (args.outputs[i].matrix.dtype != dtype || args.outputs[i].matrix.rows == 0) continue;
      StreamOutput& output = product.shape.outputs[product.shape.output_count++];
      output = stream_output(args.outputs[i], dtype);
      row_blocks += (output.strip_count + kBlockStrips - 1) / kBlockStrips;
    }
    if (row_blocks == 0) continue;
    product.shape.tile_count = input.tile_count;
    product.input = input;
    product.row_count = args.row_count;
    product.panel_count = (args.row_count + kPanelRows - 1) / kPanelRows;
    product.epilogue = args.epilogue;
    product.soft_cap = args.soft_cap;
    const TilesChoice choice = tiles_choice(dtype);
    launch_kernel("matmul_tiles_kernel", choice.kernel,
                  {dim3(static_cast<unsigned>(row_blocks * product.panel_count)), dim3(kThreads),
                   static_cast<std::size_t>(choice.shared_bytes)},
                  target, product);
  }
}

}  // namespace genai::cuda
