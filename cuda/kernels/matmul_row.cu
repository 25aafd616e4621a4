// matmul_row.cu - products of quantised matrices with one row of activations, at the speed of the memory.
//          y = W norm(x)
// Shapes   up to three packed matrices (N, K) of at most two types; x (K); out (N) or (N/2). sm_90.
// Mapping  one block a multiprocessor, two fit: while one kernel works, the next one's blocks are already there and
//          fill their rings. Every block normalises and quantises the whole row for itself. Four groups of four warps
//          take units of strips in turn (NOTE [Row stream]). Warp w of a group takes the octets o = w (mod 4) of
//          blocks, hence the partials 8w .. 8w+7; lane (g, c) those of row g, blocks 2c and 2c+1.
//          An integer product m16n8k32 has in its rows 0-7 the strip's rows of one block and in rows 8-15 those of the
//          next, in its columns the octet's activations; of its 128 results the 16 whose row and column are of one
//          block count: those of product i lie in lanes with c = i. The partials of a unit meet in shared memory,
//          where one warp adds each row's 32 from left to right.
// Bound    memory: packed_bytes(N, K), once.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>
#include <climits>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/row_octets.cuh"
#include "cuda/kernels/row_stream.cuh"
#include "cuda/kernels/row_vector.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kGroupWarps = kOctetWarps;
constexpr int kGroupThreads = kGroupWarps * kWarpLanes;
constexpr int kThreads = kRowGroups * kGroupThreads;
static_assert(kThreads == kVectorThreads);
static_assert(kRowGroups * 2 * kStripRows * kPartialStride >= kVectorThreads / 2, "the norm uses the exchange first");
constexpr int kRowBarrier = 1;
constexpr int kGroupBarrier = 2;  // and the next ones, a group each

struct RowProduct {
  StreamShape shape;
  RowInput input;
  Epilogue epilogue;
  float soft_cap;
  int unit_strips;  // a unit has at most so many, kMaxUnitStrips at most
};

// Offsets in dynamic shared memory.
struct RowLayout {
  int quants;
  int scales;
  int sums;
  int exchange;  // [group][2][unit strips][8][kPartialStride] floats
  int work;
  int barriers;
  int total;
};

__host__ __device__ constexpr RowLayout row_layout(int cols, int slot_bytes, int unit_strips, bool needs_sums) {
  const int octets = octet_count(cols);
  RowLayout layout = {};
  layout.quants = kRowRings * slot_bytes;
  layout.scales = layout.quants + octets * kOctetWidth;
  layout.sums = layout.scales + octets * kOctetBlocks * 4;
  layout.exchange = layout.sums + (needs_sums ? octets * kOctetBlocks * 4 : 0);
  layout.work = layout.exchange + kRowGroups * 2 * unit_strips * kStripRows * kPartialStride * 4;
  layout.barriers = layout.work + (static_cast<int>(sizeof(RowWork)) + 15) / 16 * 16;
  layout.total = layout.barriers + 2 * kRowRings * 8;
  return layout;
}

// What a lane's output needs besides the product: asked for early, since it comes from far.
struct OutputTerms {
  float before;
  float bias;
};

__device__ __forceinline__ OutputTerms load_terms(const RowProduct& product, const StreamOutput& output,
                                                  int first_strip, int strip_count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row = first_strip * kStripRows + lane;
  OutputTerms terms = {0.0f, 0.0f};
  if (lane >= strip_count * kStripRows || row >= output.rows) return terms;
  if (product.epilogue == Epilogue::add) terms.before = output.out[row];
  if (output.bias != nullptr) terms.bias = output.bias[row];
  return terms;
}

// Adds the partials of a unit, one row a lane, and stores the outputs.
__device__ __forceinline__ void finish_unit(const RowProduct& product, const StreamOutput& output,
                                            const float* partials, int first_strip, int strip_count,
                                            const OutputTerms& terms) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row = first_strip * kStripRows + lane;
  const bool active = lane < strip_count * kStripRows && row < output.rows;
  float y = 0.0f;
  if (active) {
    y = sum_of_partials(partials + lane * kPartialStride);
    if (output.bias != nullptr) y = y + terms.bias;
  }
  if (is_gated(product.epilogue)) {
    const float up = __shfl_xor_sync(kFullWarp, y, 1);
    if (active && lane % 2 == 0) store_gated(product.epilogue, product.soft_cap, y, up, output.out + row / 2);
  } else if (active) {
    if (product.epilogue == Epilogue::add) y = terms.before + y;
    output.out[row] = apply_soft_cap(y, product.soft_cap);
  }
}

// Where a group works, and how far it is.
struct Consumer {
  RowRings rings;
  RowVector row;
  float* exchange;  // [2][unit strips][8][kPartialStride], of this group
  int group;
  int warp_in_group;
  int stages = 0;  // of the own ring
  int finished = 0;
};

__device__ __forceinline__ void group_barrier(int group) {
  switch (group) {
    case 0:
      return named_barrier<kGroupBarrier, kGroupThreads>();
    case 1:
      return named_barrier<kGroupBarrier + 1, kGroupThreads>();
    case 2:
      return named_barrier<kGroupBarrier + 2, kGroupThreads>();
    default:
      return named_barrier<kGroupBarrier + 3, kGroupThreads>();
  }
}
static_assert(kRowGroups == 4);

// One unit of `consumer`'s group, whose pieces come through 1 << spread_shift rings.
template <DType kType, class Feed>
__device__ __forceinline__ void consume_unit(const RowProduct& product, const UnitJob& job, int last_units,
                                             int spread_shift, const RowWork* work, Consumer& consumer,
                                             const Feed& feed) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const StreamOutput& output = product.shape.outputs[job.unit.output];
  float* exchange = consumer.exchange + consumer.finished % 2 * (product.unit_strips * kStripRows * kPartialStride);
  float* own = exchange + lane / 4 * kPartialStride + 8 * consumer.warp_in_group + 2 * (lane % 4);
  const bool finishes = consumer.finished % kGroupWarps == consumer.warp_in_group;
  ++consumer.finished;
  OutputTerms terms = {0.0f, 0.0f};
  if (finishes) terms = load_terms(product, output, job.unit.strip, job.unit.strips);
  OctetInput input(lane, consumer.row, consumer.warp_in_group);
  float partials[2] = {0.0f, 0.0f};
  int octet = consumer.warp_in_group;
  for (int piece = 0; piece < job.pieces; ++piece) {
    const int ring = consumer.group + last_units * (piece & ((1 << spread_shift) - 1));
    const int stage = (spread_shift == 0 ? consumer.stages : work->stages[ring]) + (piece >> spread_shift);
    const int slot = ring_slot(ring, stage);
    const int first_tile = piece * job.piece_tiles;
    const int end_tile = min(first_tile + job.piece_tiles, product.shape.tile_count);
    const TileBytes* bytes = consumer.rings.slots + slot * consumer.rings.slot_bytes;
    wait_phase(consumer.rings.full + slot, stage_parity(stage));
    if (threadIdx.x % kGroupThreads == 0 && ring == consumer.group && work->feeds[ring].issued == stage + 1) feed();
    __syncwarp();
    for (int strip = 0; strip < job.unit.strips; ++strip) {
      if (piece == 0) {
        input = OctetInput(lane, consumer.row, consumer.warp_in_group);
        octet = consumer.warp_in_group;
      }
      const TileBytes* tile = bytes + (strip * (end_tile - first_tile) + 2 * octet - first_tile) * kTileBytes;
      accumulate_octets<kType, 1>(lane, tile, end_tile, octet, input, partials);
      if (strip + 1 == job.unit.strips) break;
      *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);  // a bundle of whole strips
      own += kStripRows * kPartialStride;
      partials[0] = 0.0f;
      partials[1] = 0.0f;
    }
    __syncwarp();
    if (arrives_for_warp(lane)) arrive(consumer.rings.empty + slot);
  }
  if (spread_shift == 0) consumer.stages += job.pieces;
  *reinterpret_cast<float2*>(own) = make_float2(partials[0], partials[1]);
  // A warp that still adds up the unit before last cannot be here: it passed the last unit's barrier after it.
  group_barrier(consumer.group);
  if (finishes) finish_unit(product, output, exchange, job.unit.strip, job.unit.strips, terms);
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume(const RowProduct& product, RowWork* work, Consumer& consumer) {
  const UnitList units(work->ranges);
  const auto feed = [&] { feed_ring<kFirst, kSecond>(product.shape, work, consumer.rings, consumer.group); };
  UnitJob job = work->first_jobs[consumer.group];
  int spread_shift = 0;
  for (int index = consumer.group;;) {
    if (index >= units.full() && units.spread_shift() > 0) {
      // Every stage so far has been consumed, and every group learns how far each ring is.
      if (threadIdx.x % kGroupThreads == 0) work->stages[consumer.group] = consumer.stages;
      named_barrier<kRowBarrier, kThreads>();
      spread_shift = units.spread_shift();
    }
    if (index >= units.count()) break;
    if (kFirst == kSecond || !product.shape.outputs[job.unit.output].second_type)
      consume_unit<kFirst>(product, job, units.last(), spread_shift, work, consumer, feed);
    else
      consume_unit<kSecond>(product, job, units.last(), spread_shift, work, consumer, feed);
    if (spread_shift > 0) break;
    index += kRowGroups;
    job = units.job(index);
  }
  if (threadIdx.x % kGroupThreads == 0)
    feed_up_to<kFirst, kSecond>(product.shape, work, consumer.rings, consumer.group, INT_MAX);
}

template <DType kFirst, DType kSecond>
__global__ void __launch_bounds__(kThreads, 2) matmul_row_kernel(const __grid_constant__ RowProduct product) {
  extern __shared__ __align__(128) unsigned char shared[];
  const RowLayout layout = row_layout(product.input.cols, product.shape.stage_bytes, product.unit_strips,
                                      has_minimum(kFirst) || has_minimum(kSecond));
  SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + layout.barriers);
  RowWork* work = reinterpret_cast<RowWork*>(shared + layout.work);
  const RowRings rings = {shared, barriers, barriers + kRowRings, product.shape.stage_bytes};
  allow_next_grid();
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (threadIdx.x < kRowRings) {
    init_barrier(rings.full + threadIdx.x, 1);
    init_barrier(rings.empty + threadIdx.x, kGroupWarps * kWarpArrivals);
    publish_barriers();
  }
  if (warp > 0 && warp <= kMaxStreamOutputs && threadIdx.x % kWarpLanes == 0)
    plan_output<kFirst, kSecond>(product.shape, warp - 1, product.unit_strips, static_cast<int>(blockIdx.x),
                                 static_cast<int>(gridDim.x), &work->ranges[warp - 1]);
  __syncthreads();
  const int group = warp / kGroupWarps;
  if (threadIdx.x % kGroupThreads == 0) {
    work->first_jobs[group] = UnitList(work->ranges).job(group);
    fill_ring<kFirst, kSecond>(product.shape, work, rings, group);
  }
  __syncwarp();

  Consumer consumer;
  consumer.rings = rings;
  consumer.row = {reinterpret_cast<uint2*>(shared + layout.quants), reinterpret_cast<float*>(shared + layout.scales),
                  reinterpret_cast<float*>(shared + layout.sums), reinterpret_cast<float*>(shared + layout.exchange)};
  consumer.group = group;
  consumer.warp_in_group = warp % kGroupWarps;
  consumer.exchange = reinterpret_cast<float*>(shared + layout.exchange) +
                      consumer.group * 2 * product.unit_strips * kStripRows * kPartialStride;
  prepare_vector<kRowBarrier, has_minimum(kFirst) || has_minimum(kSecond)>(product.input, consumer.row);
  named_barrier<kRowBarrier, kThreads>();
  consume<kFirst, kSecond>(product, work, consumer);
}

using RowKernel = void (*)(RowProduct);

// Null where no kernel was built for the pair.
RowKernel row_kernel(DType first, DType second) {
  if (first == second) {
    switch (first) {
      case DType::Q4_0:
        return matmul_row_kernel<DType::Q4_0, DType::Q4_0>;
      case DType::Q4_1:
        return matmul_row_kernel<DType::Q4_1, DType::Q4_1>;
      case DType::Q5_0:
        return matmul_row_kernel<DType::Q5_0, DType::Q5_0>;
      case DType::Q5_1:
        return matmul_row_kernel<DType::Q5_1, DType::Q5_1>;
      case DType::Q8_0:
        return matmul_row_kernel<DType::Q8_0, DType::Q8_0>;
      case DType::Q4_K:
        return matmul_row_kernel<DType::Q4_K, DType::Q4_K>;
      case DType::Q5_K:
        return matmul_row_kernel<DType::Q5_K, DType::Q5_K>;
      case DType::Q6_K:
        return matmul_row_kernel<DType::Q6_K, DType::Q6_K>;
      default:
        return nullptr;
    }
  }
  if (first == DType::Q4_K && second == DType::Q6_K) return matmul_row_kernel<DType::Q4_K, DType::Q6_K>;
  if (first == DType::Q5_K && second == DType::Q6_K) return matmul_row_kernel<DType::Q5_K, DType::Q6_K>;
  return nullptr;
}

constexpr int kMaxSlotBytes = 24 * 1024;
constexpr int kMinSlotBytes = 2 * tile_layout(DType::Q8_0).tile_bytes;  // an octet of blocks

int slot_bytes_for(const DeviceTraits& traits, int cols, int unit_strips, bool needs_sums) {
  const int room = (neighbour_shared_bytes(traits) - row_layout(cols, 0, unit_strips, needs_sums).total) / kRowRings;
  return std::min(room / 128 * 128, kMaxSlotBytes);
}

void launch_outputs(const LaunchTarget& target, const MatmulArgs& args, DType first, DType second,
                    const MatmulOutput* outputs, int output_count) {
  RowProduct product = {};
  StreamShape& shape = product.shape;
  const int cols = args.outputs[0].matrix.cols;
  const bool sums = has_minimum(first) || has_minimum(second);
  std::int64_t strips = 0;
  for (int i = 0; i < output_count; ++i) {
    shape.outputs[i] = stream_output(outputs[i], second);
    strips += shape.outputs[i].strip_count;
  }
  if (strips == 0) return;
  shape.output_count = output_count;
  shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  // As many strips in a unit as every slot holds.
  for (product.unit_strips = kMaxUnitStrips;; product.unit_strips /= 2) {
    shape.stage_bytes = slot_bytes_for(target.traits, cols, product.unit_strips, sums);
    int fewest = shape.stage_bytes < kMinSlotBytes ? 0 : kMaxUnitStrips;
    for (int i = 0; i < output_count && fewest > 0; ++i)
      fewest = std::min(fewest,
                        unit_cut(tile_layout(outputs[i].matrix.dtype).tile_bytes, shape.tile_count, shape.stage_bytes)
                            .fitting_strips);
    if (product.unit_strips == 1 || fewest >= product.unit_strips) break;
  }
  product.input = {reinterpret_cast<const float*>(args.input.address()),
                   reinterpret_cast<const float*>(args.norm_weight.address()), args.norm_epsilon, cols};
  product.epilogue = args.epilogue;
  product.soft_cap = args.soft_cap;
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(strips, target.traits.sm_count));
  launch_kernel("matmul_row_kernel", row_kernel(first, second),
                {dim3(blocks), dim3(kThreads),
                 static_cast<std::size_t>(row_layout(cols, shape.stage_bytes, product.unit_strips, sums).total)},
                target, product);
}

}  // namespace

bool matmul_row_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (traits.compute_capability < 90 || args.row_count != 1) return false;
  const int cols = args.outputs[0].matrix.cols;
  if (cols % 4 != 0 || (args.norm_weight && cols > kMaxVectorNormWidth)) return false;
  if (args.input.address() % sizeof(float4) != 0 || args.norm_weight.address() % sizeof(float4) != 0) return false;
  if (slot_bytes_for(traits, cols, 1, true) < kMinSlotBytes) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  return true;
}

void prepare_matmul_row(const DeviceTraits& traits) {
  for (const DTypeInfo& first : kDTypes)
    for (const DTypeInfo& second : kDTypes)
      if (const RowKernel kernel = row_kernel(first.dtype, second.dtype); kernel != nullptr)
        CUDA_CHECK(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, neighbour_shared_bytes(traits)));
}

// One launch for all outputs where a kernel reads their types, else one an output.
void launch_matmul_row(const LaunchTarget& target, const MatmulArgs& args) {
  const TypePair types = type_pair(args);
  if (types.count <= 2) {
    if (row_kernel(types.first, types.second) != nullptr)
      return launch_outputs(target, args, types.first, types.second, args.outputs, args.output_count);
    if (row_kernel(types.second, types.first) != nullptr)
      return launch_outputs(target, args, types.second, types.first, args.outputs, args.output_count);
  }
  for (int i = 0; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    launch_outputs(target, args, dtype, dtype, args.outputs + i, 1);
  }
}

}  // namespace genai::cuda
