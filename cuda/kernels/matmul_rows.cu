// matmul_rows.cu - products of quantised matrices with 2 to 16 rows of activations, weights read once.   Y = W norm(X)
// Shapes   up to three packed matrices (N, K) of at most two types; X (M, K); out (M, N) or (M, N/2). sm_90.
// Mapping  blocks and weight stream as in matmul_row.cu, in one ring. Blocks form clusters: each block normalises and
//          quantises its share of the rows and fetches the others from its neighbours' shared memory.
//          An integer product m16n8k32 has in its rows 0-7 a strip's rows of one block, in rows 8-15 those of the next
//          strip, in its columns up to eight rows of activations. Warp w of eight takes the tiles t = w (mod 8), hence
//          the partials 4w .. 4w+3, of two strips at once. The sum over the partials, left to right, goes from warp to
//          warp: each adds its four to what the one before it hands over, the last one stores.
// Bound    memory: packed_bytes(N, K), once; 48 float operations a lane for each 8 tiles of 128 x 8 x 8 products.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/row_input.cuh"
#include "cuda/kernels/rows_finish.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = kConsumerWarps * kWarpLanes + kWarpLanes;
static_assert(kConsumerWarps * kWarpLanes == kRowThreads);
constexpr int kMaxRows = 2 * kColumns;
constexpr int kMaxSlots = 4;
constexpr int kFlightBytes = 72 * 1024;  // NOTE [Weight stream]
constexpr int kRowBarrier = 1;

struct RowsProduct {
  StreamShape shape;
  RowInput input;
  int input_stride;
  RowsEpilogue finish;
  int columns;  // a power of two, at least row_count: how rows lie in shared memory
  int cluster;
  int slots;
  int window;
  bool needs_sums;
};

// Offsets in dynamic shared memory.
struct RowsLayout {
  int quants;
  int scales;
  int sums;
  int reduce;
  int links;     // [link][buffer][lane][4 * column groups] floats
  int barriers;  // full[slots], empty[slots], link full [link][buffer], link empty
  int total;
};

__host__ __device__ constexpr RowsLayout rows_layout(int cols, int columns, bool needs_sums, int ring_bytes) {
  const int blocks = octet_count(cols) * kOctetBlocks;
  const int groups = columns > kColumns ? 2 : 1;
  RowsLayout layout = {};
  layout.quants = ring_bytes;
  layout.scales = layout.quants + blocks * columns * kBlockWidth;
  layout.sums = layout.scales + blocks * columns * 4;
  layout.reduce = layout.sums + (needs_sums ? blocks * columns * 4 : 0);
  layout.links = layout.reduce + kRowThreads * 4;
  layout.barriers = layout.links + kLinks * kLinkBuffers * kWarpLanes * groups * 16;
  layout.total = layout.barriers + (2 * kMaxSlots + 2 * kLinks * kLinkBuffers) * 8;
  return layout;
}

// How strips of one type are cut into stages of strip pairs.
struct PairCut {
  int bundle_strips;  // even; 2 where strips are cut
  int piece_tiles;
};

constexpr __host__ __device__ PairCut pair_cut(int tile_bytes, int tile_count, int stage_bytes) {
  const int half_tiles = stage_bytes / tile_bytes / 2;
  const StageCut cut = stage_cut(tile_bytes, tile_count, half_tiles * tile_bytes);
  return {2 * cut.bundle_strips, cut.piece_tiles};
}

// Calls visit(output, strip, strip_count, first_tile, tile_count) for each stage, in the order of the stream.
template <DType kFirst, DType kSecond, class Visit>
__device__ __forceinline__ void for_each_pair_stage(const StreamShape& shape, const Visit& visit) {
  for (int output = 0; output < shape.output_count; ++output) {
    const StripRange range =
        owned_strips<kFirst, kSecond>(shape, output, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    const int tile_bytes = tile_layout(shape.outputs[output].second_type ? kSecond : kFirst).tile_bytes;
    const PairCut cut = pair_cut(tile_bytes, shape.tile_count, shape.stage_bytes);
    for (int strip = range.first; strip < range.end; strip += cut.bundle_strips) {
      const int strips = min(cut.bundle_strips, range.end - strip);
      for (int tile = 0; tile < shape.tile_count; tile += cut.piece_tiles)
        visit(output, strip, strips, tile, min(cut.piece_tiles, shape.tile_count - tile));
    }
  }
}

template <DType kType, int kBlock, int kColumnGroups>
__device__ __forceinline__ void accumulate_block(const Fragment<kType>& upper, const Fragment<kType>& lower,
                                                 const PairScales<kType>& upper_scales,
                                                 const PairScales<kType>& lower_scales, int block,
                                                 const RowShared& shared, Partials<kColumnGroups>& partials) {
  constexpr int kOfPair = kBlock % 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const unsigned a0 = upper.template weights<0, kBlock>();
  const unsigned a1 = lower.template weights<0, kBlock>();
  const unsigned a2 = upper.template weights<1, kBlock>();
  const unsigned a3 = lower.template weights<1, kBlock>();
#pragma unroll
  for (int group = 0; group < kColumnGroups; ++group) {
    const int mask = shared.columns - 1;
    const int column = (group * kColumns + lane / 4) & mask;
    const int pair = (group * kColumns + lane % 4 * 2) & mask;
    const uint2 quants = shared.quants[(block * shared.columns + column) * 4 + lane % 4];
    const float2 scale = *reinterpret_cast<const float2*>(shared.scales + block * shared.columns + pair);
    float2 sum = make_float2(0.0f, 0.0f);
    if constexpr (has_minimum(kType))
      sum = *reinterpret_cast<const float2*>(shared.sums + block * shared.columns + pair);
    int product[4];
    int other[4] = {};
    if constexpr (Fragment<kType>::kHalves) {
      multiply_16(product, a0, a1, quants.x, kProductStart);
      multiply_16(other, a2, a3, quants.y, kProductStart);
    } else {
      multiply_32<Fragment<kType>::kSigned>(product, a0, a1, a2, a3, quants.x, quants.y, kProductStart);
    }
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const PairScales<kType>& scales = strip == 0 ? upper_scales : lower_scales;
      float(&own)[2] = partials[group][kBlock][strip];
      own[0] = add_block<kType>(own[0], scaled_dot<kType>(product[2 * strip], other[2 * strip], scales.sub[kOfPair]),
                                scales.scale[kOfPair], scales.minimum[kOfPair], scale.x, sum.x);
      own[1] =
          add_block<kType>(own[1], scaled_dot<kType>(product[2 * strip + 1], other[2 * strip + 1], scales.sub[kOfPair]),
                           scales.scale[kOfPair], scales.minimum[kOfPair], scale.y, sum.y);
    }
  }
}

// One tile of each strip of a pair; `first_block` is the tile's first block along K.
template <DType kType, int kColumnGroups>
__device__ __forceinline__ void accumulate_tiles(const TileBytes* upper_tile, const TileBytes* lower_tile,
                                                 int first_block, const RowShared& shared,
                                                 Partials<kColumnGroups>& partials) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  Fragment<kType> upper = {};
  Fragment<kType> lower = {};
  upper.load(upper_tile, lane);
  lower.load(lower_tile, lane);
  PairScales<kType> upper_scales = {};
  PairScales<kType> lower_scales = {};
  upper_scales.load(upper_tile, lane / 4, 0);
  lower_scales.load(lower_tile, lane / 4, 0);
  accumulate_block<kType, 0, kColumnGroups>(upper, lower, upper_scales, lower_scales, first_block, shared, partials);
  accumulate_block<kType, 1, kColumnGroups>(upper, lower, upper_scales, lower_scales, first_block + 1, shared,
                                            partials);
  upper_scales.load(upper_tile, lane / 4, 1);
  lower_scales.load(lower_tile, lane / 4, 1);
  accumulate_block<kType, 2, kColumnGroups>(upper, lower, upper_scales, lower_scales, first_block + 2, shared,
                                            partials);
  accumulate_block<kType, 3, kColumnGroups>(upper, lower, upper_scales, lower_scales, first_block + 3, shared,
                                            partials);
}

template <DType kType, int kColumnGroups>
__device__ __forceinline__ void consume_stage(const RowsProduct& product, int output, int strip, int strips,
                                              int first_tile, int tile_count, const RowShared& shared, Ring& ring,
                                              Links& links, Partials<kColumnGroups>& partials) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const TileBytes* stage = ring.wait_full();
  const bool complete = first_tile + tile_count == product.shape.tile_count;
  for (int first = 0; first < strips; first += 2) {
    const TileBytes* upper = stage + first * tile_count * kTileBytes;
    const TileBytes* lower = first + 1 < strips ? upper + tile_count * kTileBytes : upper;  // not stored if repeated
    for (int tile = warp; tile < tile_count; tile += kConsumerWarps)
      accumulate_tiles<kType, kColumnGroups>(upper + tile * kTileBytes, lower + tile * kTileBytes,
                                             (first_tile + tile) * kTileBlocks, shared, partials);
    if (first + 2 >= strips) ring.release();
    if (complete)
      pass_on<kColumnGroups>(product.finish, product.shape.outputs[output], strip + first, min(strips - first, 2), warp,
                             links, partials);
  }
}

// The rows that other blocks of the cluster prepared.
__device__ __forceinline__ void fetch_rows(const RowsProduct& product, const RowShared& shared, int rank) {
  const int blocks = octet_count(product.input.cols) * kOctetBlocks;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * product.columns; i += kRowThreads) {
    const int m = i % product.columns;
    const int owner = m % product.cluster;
    if (m >= product.finish.row_count || owner == rank) continue;
    uint4* quants = reinterpret_cast<uint4*>(shared.quants + i * 4);
    const uint4* from = in_block(quants, owner);
    const uint4 low = from[0];
    const uint4 high = from[1];
    const float scale = *in_block(shared.scales + i, owner);
    quants[0] = low;
    quants[1] = high;
    shared.scales[i] = scale;
    if (shared.sums != nullptr) shared.sums[i] = *in_block(shared.sums + i, owner);
  }
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void produce(const RowsProduct& product, const Ring& ring) {
  StreamProducer producer(ring, product.window);
  bool joined = false;  // the second half of the cluster's first barrier; before it the ring can be filled once
  for_each_pair_stage<kFirst, kSecond>(product.shape, [&](int output, int strip, int strips, int tile, int tiles) {
    if (!joined && producer.issued() == product.slots) {
      cluster_wait();
      cluster_arrive();
      joined = true;
    }
    const StreamOutput& from = product.shape.outputs[output];
    const int tile_bytes = tile_layout(from.second_type ? kSecond : kFirst).tile_bytes;
    const std::int64_t strip_tiles = product.shape.tile_count;
    const TileBytes* source = from.weights + (strip * strip_tiles + tile) * tile_bytes;
    const unsigned bytes = static_cast<unsigned>(tiles * tile_bytes);
    if (tiles == product.shape.tile_count)
      producer.copy(source, nullptr, bytes * static_cast<unsigned>(strips));
    else
      producer.copy(source, strips > 1 ? source + strip_tiles * tile_bytes : nullptr, bytes);
  });
  if (!joined) {
    cluster_wait();
    cluster_arrive();
  }
  cluster_wait();
}

template <DType kFirst, DType kSecond, int kColumnGroups>
__global__ void __launch_bounds__(kThreads, kColumnGroups == 1 ? 2 : 1)
    matmul_rows_kernel(const __grid_constant__ RowsProduct product) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const RowsLayout layout =
      rows_layout(product.input.cols, product.columns, product.needs_sums, product.slots * product.shape.stage_bytes);
  SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared_bytes + layout.barriers);
  Ring ring = {shared_bytes, barriers, barriers + kMaxSlots, product.shape.stage_bytes, product.slots};
  Links links = {reinterpret_cast<float4*>(shared_bytes + layout.links), barriers + 2 * kMaxSlots,
                 barriers + 2 * kMaxSlots + kLinks * kLinkBuffers};
  allow_next_grid();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < product.slots; ++slot) {
      init_barrier(ring.full + slot, 1);
      init_barrier(ring.empty + slot, kConsumerWarps);
    }
    for (int link = 0; link < kLinks * kLinkBuffers; ++link) {
      init_barrier(links.full + link, 1);
      init_barrier(links.empty + link, 1);
    }
    publish_barriers();
  }
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (warp == kConsumerWarps) {
    cluster_arrive();
    if (threadIdx.x % kWarpLanes == 0) {
      produce<kFirst, kSecond>(product, ring);
    } else {
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
    return;
  }

  RowShared shared = {reinterpret_cast<uint2*>(shared_bytes + layout.quants),
                      reinterpret_cast<float*>(shared_bytes + layout.scales),
                      product.needs_sums ? reinterpret_cast<float*>(shared_bytes + layout.sums) : nullptr,
                      reinterpret_cast<float*>(shared_bytes + layout.reduce), product.columns};
  const int rank = cluster_rank();
  wait_for_previous_grid();
  for (int m = rank; m < product.finish.row_count; m += product.cluster) {
    RowInput row = product.input;
    row.values += static_cast<std::int64_t>(m) * product.input_stride;
    if (m != rank) named_barrier<kRowBarrier, kRowThreads>();
    prepare_row<kRowBarrier>(row, shared, m);
  }
  cluster_barrier();
  fetch_rows(product, shared, rank);
  cluster_arrive();
  named_barrier<kRowBarrier, kRowThreads>();

  Partials<kColumnGroups> partials = {};
  for_each_pair_stage<kFirst, kSecond>(product.shape, [&](int output, int strip, int strips, int tile, int tiles) {
    if (kFirst == kSecond || !product.shape.outputs[output].second_type)
      consume_stage<kFirst, kColumnGroups>(product, output, strip, strips, tile, tiles, shared, ring, links, partials);
    else
      consume_stage<kSecond, kColumnGroups>(product, output, strip, strips, tile, tiles, shared, ring, links, partials);
  });
  cluster_wait();  // nobody leaves while its rows are fetched
}

using RowsKernel = void (*)(RowsProduct);

template <DType kFirst, DType kSecond>
RowsKernel rows_kernel_for(int row_count) {
  return row_count > kColumns ? matmul_rows_kernel<kFirst, kSecond, 2> : matmul_rows_kernel<kFirst, kSecond, 1>;
}

// Null where no kernel was built for the pair.
RowsKernel rows_kernel(DType first, DType second, int row_count) {
  if (first == second) {
    switch (first) {
      case DType::Q4_0:
        return rows_kernel_for<DType::Q4_0, DType::Q4_0>(row_count);
      case DType::Q4_1:
        return rows_kernel_for<DType::Q4_1, DType::Q4_1>(row_count);
      case DType::Q5_0:
        return rows_kernel_for<DType::Q5_0, DType::Q5_0>(row_count);
      case DType::Q5_1:
        return rows_kernel_for<DType::Q5_1, DType::Q5_1>(row_count);
      case DType::Q8_0:
        return rows_kernel_for<DType::Q8_0, DType::Q8_0>(row_count);
      case DType::Q4_K:
        return rows_kernel_for<DType::Q4_K, DType::Q4_K>(row_count);
      case DType::Q5_K:
        return rows_kernel_for<DType::Q5_K, DType::Q5_K>(row_count);
      case DType::Q6_K:
        return rows_kernel_for<DType::Q6_K, DType::Q6_K>(row_count);
      default:
        return nullptr;
    }
  }
  if (first == DType::Q4_K && second == DType::Q6_K) return rows_kernel_for<DType::Q4_K, DType::Q6_K>(row_count);
  if (first == DType::Q5_K && second == DType::Q6_K) return rows_kernel_for<DType::Q5_K, DType::Q6_K>(row_count);
  return nullptr;
}

constexpr int kMinStageBytes = 2 * kPieceTiles * tile_layout(DType::Q8_0).tile_bytes;
constexpr int kMaxStageBytes = 48 * 1024;

struct RowsPlan {
  int columns;
  int cluster;
  int slots;
  int stage_bytes;
};

// Room for two blocks a multiprocessor if that leaves a ring, else all of it for one. False: too wide for that many
// rows.
bool plan_rows(const DeviceTraits& traits, int row_count, int cols, bool needs_sums, RowsPlan* plan) {
  constexpr int kReserved = 1024;
  plan->columns = 2;
  while (plan->columns < row_count) plan->columns *= 2;
  plan->cluster = std::min(plan->columns, kColumns);
  for (const int room : {traits.shared_bytes_per_sm / 2 - kReserved, traits.shared_bytes_per_block}) {
    const int ring = room - rows_layout(cols, plan->columns, needs_sums, 0).total;
    for (plan->slots = kMaxSlots; plan->slots >= 2; --plan->slots) {
      plan->stage_bytes = std::min(ring / plan->slots / 128 * 128, kMaxStageBytes);
      if (plan->stage_bytes >= kMinStageBytes) return true;
    }
  }
  return false;
}

bool any_minimum(const MatmulArgs& args) {
  for (int i = 0; i < args.output_count; ++i)
    if (has_minimum(args.outputs[i].matrix.dtype)) return true;
  return false;
}

void launch_outputs(const LaunchTarget& target, const MatmulArgs& args, RowsKernel kernel, DType second,
                    const MatmulOutput* outputs, int output_count) {
  RowsProduct product = {};
  const int cols = args.outputs[0].matrix.cols;
  std::int64_t strips = 0;
  for (int i = 0; i < output_count; ++i) {
    product.shape.outputs[i] = stream_output(outputs[i], second);
    strips += product.shape.outputs[i].strip_count;
  }
  if (strips == 0) return;
  product.needs_sums = any_minimum(args);
  RowsPlan plan = {};
  GENAI_EXPECT(plan_rows(target.traits, args.row_count, cols, product.needs_sums, &plan), "the rows do not fit");
  product.shape.output_count = output_count;
  product.shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  product.shape.stage_bytes = plan.stage_bytes;
  product.input = {reinterpret_cast<const float*>(args.input.address()),
                   reinterpret_cast<const float*>(args.norm_weight.address()), args.norm_epsilon, cols};
  product.input_stride = args.input_stride;
  product.finish = {args.epilogue, args.soft_cap, args.row_count};
  product.columns = plan.columns;
  product.cluster = plan.cluster;
  product.slots = plan.slots;
  product.window = std::clamp(kFlightBytes / plan.stage_bytes, 1, plan.slots);

  LaunchShape shape;
  const std::int64_t clusters = std::max(target.traits.clusters_at_once(plan.cluster), 1);
  const std::int64_t wanted = (strips + 2 * plan.cluster - 1) / (2 * plan.cluster);
  shape.grid = dim3(static_cast<unsigned>(std::min(clusters, wanted) * plan.cluster));
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<std::size_t>(
      rows_layout(cols, plan.columns, product.needs_sums, plan.slots * plan.stage_bytes).total);
  shape.cluster_blocks = static_cast<unsigned>(plan.cluster);
  launch_kernel("matmul_rows_kernel", kernel, shape, target, product);
}

}  // namespace

bool matmul_rows_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (traits.compute_capability < 90 || args.row_count < 2 || args.row_count > kMaxRows) return false;
  const int cols = args.outputs[0].matrix.cols;
  if (args.norm_weight && cols > kMaxNormWidth) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  RowsPlan plan = {};
  return plan_rows(traits, args.row_count, cols, any_minimum(args), &plan);
}

void prepare_matmul_rows(const DeviceTraits& traits) {
  for (const DTypeInfo& first : kDTypes)
    for (const DTypeInfo& second : kDTypes)
      for (const int row_count : {kColumns, kMaxRows})
        if (const RowsKernel kernel = rows_kernel(first.dtype, second.dtype, row_count); kernel != nullptr)
          CUDA_CHECK(
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, traits.shared_bytes_per_block));
}

// How many clusters of each size the device runs at once when every block fills a multiprocessor: a grid of more would
// leave some for a second round.
void count_clusters(DeviceTraits* traits) {
  const RowsKernel kernel = rows_kernel(DType::Q4_0, DType::Q4_0, kColumns);
  for (int i = 0; i < 4; ++i) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1u << i;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(std::max(traits->sm_count / 8, 1)) * 8);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(traits->shared_bytes_per_block);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&traits->clusters_of[i], kernel, &config));
  }
}

void launch_matmul_rows(const LaunchTarget& target, const MatmulArgs& args) {
  const TypePair types = type_pair(args);
  if (types.count <= 2) {
    if (const RowsKernel kernel = rows_kernel(types.first, types.second, args.row_count); kernel != nullptr)
      return launch_outputs(target, args, kernel, types.second, args.outputs, args.output_count);
    if (const RowsKernel kernel = rows_kernel(types.second, types.first, args.row_count); kernel != nullptr)
      return launch_outputs(target, args, kernel, types.first, args.outputs, args.output_count);
  }
  for (int i = 0; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    launch_outputs(target, args, rows_kernel(dtype, dtype, args.row_count), dtype, args.outputs + i, 1);
  }
}

}  // namespace genai::cuda
