// matmul_row.cu - products of quantised matrices with one row of activations, at the speed of the memory.   y = W
// norm(x) Shapes   up to three packed matrices (N, K) of at most two types; x (K); out (N) or (N/2). sm_90. Mapping one
// block a multiprocessor, two fit: while one kernel works, the next one's blocks are already there and fill
//          their rings. Every block normalises and quantises the whole row for itself. Warp 8 copies (NOTE [Weight
//          stream]); warps 0..3 and 4..7 are two groups that take strips in turn. Warp w of a group takes the octets of
//          blocks o = w (mod 4), hence the partials 8w .. 8w+7; lane (g, c) those of row g, blocks 2c and 2c+1.
//          An integer product m16n8k32 has in its rows 0-7 the strip's rows of one block and in rows 8-15 those of the
//          next, in its columns the octet's activations; of its 128 results the 16 whose row and column are of one
//          block count: those of product i lie in lanes with c = i. The partials of a strip meet in shared memory,
//          where one warp adds each row's 32 from left to right.
// Bound    memory: packed_bytes(N, K), once.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/epilogue.cuh"
#include "cuda/kernels/fragment.cuh"
#include "cuda/kernels/row_input.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kGroupWarps = 4;
constexpr int kGroupThreads = kGroupWarps * kWarpLanes;
constexpr int kThreads = kGroups * kGroupThreads + kWarpLanes;
static_assert(kGroups * kGroupThreads == kRowThreads);
constexpr int kSlots = 2;           // of a group
constexpr int kWindow = 3;          // copies in flight, once the ring has been full
constexpr int kMaxRoundStrips = 4;  // strips that are added up at once, eight lanes each
constexpr int kPartialStride = 36;  // floats from one row's 32 partials to the next: no bank conflicts
constexpr int kRowBarrier = 1;
constexpr int kGroupBarrier = 2;  // and the next one, for the second group
static_assert(kGroups == 2);

struct RowProduct {
  StreamShape shape;
  RowInput input;
  Epilogue epilogue;
  float soft_cap;
  bool needs_sums;
  int round_strips;  // at most kMaxRoundStrips; 1 where a stage holds one strip or less
};

// Offsets in dynamic shared memory.
struct RowLayout {
  int quants;
  int scales;
  int sums;
  int reduce;
  int exchange;
  int barriers;
  int total;
};

__host__ __device__ constexpr RowLayout row_layout(int cols, int stage_bytes, int round_strips) {
  const int octets = octet_count(cols);
  RowLayout layout = {};
  layout.quants = kGroups * kSlots * stage_bytes;
  layout.scales = layout.quants + octets * kOctetWidth;
  layout.sums = layout.scales + octets * kOctetBlocks * 4;
  layout.reduce = layout.sums + octets * kOctetBlocks * 4;
  layout.exchange = layout.reduce + kRowThreads * 4;
  layout.barriers = layout.exchange + kGroups * 2 * round_strips * kStripRows * kPartialStride * 4;
  layout.total = layout.barriers + 2 * kGroups * kSlots * 8;
  return layout;
}

__device__ __forceinline__ int pick(int c, int a, int b, int d, int e) {
  const int low = c == 0 ? a : b;
  const int high = c == 2 ? d : e;
  return c < 2 ? low : high;
}

// Rows 0-7: block kBlock of a tile, rows 8-15: the next one.
template <DType kType, int kBlock>
__device__ __forceinline__ void multiply_blocks(int (&product)[4], const Fragment<kType>& fragment, uint2 quants) {
  multiply_32<Fragment<kType>::kSigned>(product, fragment.template weights<0, kBlock>(),
                                        fragment.template weights<0, kBlock + 1>(),
                                        fragment.template weights<1, kBlock>(),
                                        fragment.template weights<1, kBlock + 1>(), quants.x, quants.y, kProductStart);
}

// The lane's two partials += the octet that begins at `tile`, whose second tile may be absent.
template <DType kType>
__device__ __forceinline__ void accumulate_octet(const TileBytes* tile, bool has_second, uint2 quants, float2 scales,
                                                 float2 sums, float (&partials)[2]) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int c = lane % 4;
  Fragment<kType> first = {};
  Fragment<kType> second = {};
  PairScales<kType> pair = {};
  first.load(tile, lane);
  if (has_second) second.load(tile + kTileBytes, lane);
  if (c < 2 || has_second) pair.load(tile + (c < 2 ? 0 : kTileBytes), lane / 4, c % 2);

  int product[4][4];
  int other[4][4];
  if constexpr (Fragment<kType>::kHalves) {
    multiply_16(product[0], first.template weights<0, 0>(), first.template weights<0, 1>(), quants.x, kProductStart);
    multiply_16(product[1], first.template weights<0, 2>(), first.template weights<0, 3>(), quants.x, kProductStart);
    multiply_16(product[2], second.template weights<0, 0>(), second.template weights<0, 1>(), quants.x, kProductStart);
    multiply_16(product[3], second.template weights<0, 2>(), second.template weights<0, 3>(), quants.x, kProductStart);
    multiply_16(other[0], first.template weights<1, 0>(), first.template weights<1, 1>(), quants.y, kProductStart);
    multiply_16(other[1], first.template weights<1, 2>(), first.template weights<1, 3>(), quants.y, kProductStart);
    multiply_16(other[2], second.template weights<1, 0>(), second.template weights<1, 1>(), quants.y, kProductStart);
    multiply_16(other[3], second.template weights<1, 2>(), second.template weights<1, 3>(), quants.y, kProductStart);
  } else {
    multiply_blocks<kType, 0>(product[0], first, quants);
    multiply_blocks<kType, 2>(product[1], first, quants);
    multiply_blocks<kType, 0>(product[2], second, quants);
    multiply_blocks<kType, 2>(product[3], second, quants);
  }
  const int even = pick(c, product[0][0], product[1][0], product[2][0], product[3][0]);
  const int odd = pick(c, product[0][3], product[1][3], product[2][3], product[3][3]);
  int even_other = 0;
  int odd_other = 0;
  if constexpr (Fragment<kType>::kHalves) {
    even_other = pick(c, other[0][0], other[1][0], other[2][0], other[3][0]);
    odd_other = pick(c, other[0][3], other[1][3], other[2][3], other[3][3]);
  }
  partials[0] = add_block<kType>(partials[0], scaled_dot<kType>(even, even_other, pair.sub[0]), pair.scale[0],
                                 pair.minimum[0], scales.x, sums.x);
  partials[1] = add_block<kType>(partials[1], scaled_dot<kType>(odd, odd_other, pair.sub[1]), pair.scale[1],
                                 pair.minimum[1], scales.y, sums.y);
}

// This warp's octets of one piece of a strip. `first_tile` is the piece's place in the strip, a multiple of 8 or 0.
template <DType kType>
__device__ __forceinline__ void accumulate_piece(const TileBytes* piece, int first_tile, int tile_count,
                                                 int warp_in_group, const RowShared& shared, float (&partials)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int octet = warp_in_group; 2 * octet < tile_count; octet += kGroupWarps) {
    const int place = first_tile / 2 + octet;
    const uint2 quants = shared.quants[place * kWarpLanes + lane];
    const float2 scales = *reinterpret_cast<const float2*>(shared.scales + place * kOctetBlocks + 2 * (lane % 4));
    float2 sums = make_float2(0.0f, 0.0f);
    if constexpr (has_minimum(kType))
      sums = *reinterpret_cast<const float2*>(shared.sums + place * kOctetBlocks + 2 * (lane % 4));
    accumulate_octet<kType>(piece + 2 * octet * tile_layout(kType).tile_bytes, 2 * octet + 1 < tile_count, quants,
                            scales, sums, partials);
  }
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

// Adds the partials of up to four strips, one row a lane, and stores the outputs.
__device__ __forceinline__ void finish_round(const RowProduct& product, const StreamOutput& output,
                                             const float* partials, int first_strip, int strip_count,
                                             const OutputTerms& terms) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row = first_strip * kStripRows + lane;
  const bool active = lane < strip_count * kStripRows && row < output.rows;
  float y = 0.0f;
  if (active) {
    const float4* own = reinterpret_cast<const float4*>(partials + lane * kPartialStride);
    float4 part[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) part[i] = own[i];
    y = part[0].x;
    y = y + part[0].y;
    y = y + part[0].z;
    y = y + part[0].w;
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      y = y + part[i].x;
      y = y + part[i].y;
      y = y + part[i].z;
      y = y + part[i].w;
    }
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

// What a consumer warp carries from stage to stage.
struct Consumer {
  Ring ring;
  RowShared shared;
  float* exchange;  // [2][round_strips][8][kPartialStride], of this group
  int group;
  int warp_in_group;
  int round = 0;
  float partials[2] = {0.0f, 0.0f};
};

template <DType kType>
__device__ __forceinline__ void consume_stage(const RowProduct& product, int output, int strip, int strips,
                                              int first_tile, int tile_count, Consumer& consumer) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const TileBytes* stage = consumer.ring.wait_full();
  const bool complete = first_tile + tile_count == product.shape.tile_count;
  for (int first = 0; first < strips; first += product.round_strips) {
    const int count = min(strips - first, product.round_strips);
    float* round = consumer.exchange + consumer.round % 2 * (product.round_strips * kStripRows * kPartialStride);
    const bool finishes = complete && consumer.round % kGroupWarps == consumer.warp_in_group;
    OutputTerms terms = {0.0f, 0.0f};
    if (finishes) terms = load_terms(product, product.shape.outputs[output], strip + first, count);
    for (int i = 0; i < count; ++i) {
      accumulate_piece<kType>(stage + (first + i) * tile_count * kTileBytes, first_tile, tile_count,
                              consumer.warp_in_group, consumer.shared, consumer.partials);
      if (!complete) continue;
      float* own = round + (i * kStripRows + lane / 4) * kPartialStride + 8 * consumer.warp_in_group + 2 * (lane % 4);
      *reinterpret_cast<float2*>(own) = make_float2(consumer.partials[0], consumer.partials[1]);
      consumer.partials[0] = 0.0f;
      consumer.partials[1] = 0.0f;
    }
    if (first + count == strips) consumer.ring.release();
    if (!complete) continue;
    // A warp that still adds up the round before last cannot be here: it passed the last round's barrier after it.
    if (consumer.group == 0)
      named_barrier<kGroupBarrier, kGroupThreads>();
    else
      named_barrier<kGroupBarrier + 1, kGroupThreads>();
    if (finishes) finish_round(product, product.shape.outputs[output], round, strip + first, count, terms);
    ++consumer.round;
  }
}

template <DType kFirst, DType kSecond>
__global__ void __launch_bounds__(kThreads, 2) matmul_row_kernel(const __grid_constant__ RowProduct product) {
  extern __shared__ __align__(128) unsigned char shared[];
  const RowLayout layout = row_layout(product.input.cols, product.shape.stage_bytes, product.round_strips);
  SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + layout.barriers);
  Ring rings[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    rings[g] = {shared + g * kSlots * product.shape.stage_bytes, barriers + 2 * g * kSlots,
                barriers + (2 * g + 1) * kSlots, product.shape.stage_bytes, kSlots};
  allow_next_grid();
  if (threadIdx.x == 0) {
    for (int g = 0; g < kGroups; ++g)
      for (int slot = 0; slot < kSlots; ++slot) {
        init_barrier(barriers + 2 * g * kSlots + slot, 1);
        init_barrier(barriers + (2 * g + 1) * kSlots + slot, kGroupWarps);
      }
    publish_barriers();
  }
  __syncthreads();

  const int block = static_cast<int>(blockIdx.x);
  const int block_count = static_cast<int>(gridDim.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (warp == kGroups * kGroupWarps) {
    if (threadIdx.x % kWarpLanes != 0) return;
    StreamProducer<kGroups> producer(rings, kWindow);
    for_each_stage<kFirst, kSecond>(
        product.shape, block, block_count, [&](int output, int strip, int strips, int tile, int tiles, int unit) {
          const StreamOutput& from = product.shape.outputs[output];
          const int tile_bytes = tile_layout(from.second_type ? kSecond : kFirst).tile_bytes;
          const std::int64_t offset = static_cast<std::int64_t>(strip) * product.shape.tile_count + tile;
          producer.copy(unit % kGroups, from.weights + offset * tile_bytes, nullptr,
                        static_cast<unsigned>(strips * tiles * tile_bytes));
        });
    return;
  }

  Consumer consumer;
  consumer.shared = {reinterpret_cast<uint2*>(shared + layout.quants), reinterpret_cast<float*>(shared + layout.scales),
                     product.needs_sums ? reinterpret_cast<float*>(shared + layout.sums) : nullptr,
                     reinterpret_cast<float*>(shared + layout.reduce), 1};
  consumer.group = warp / kGroupWarps;
  consumer.warp_in_group = warp % kGroupWarps;
  consumer.ring = rings[0];
  if (consumer.group == 1) consumer.ring = rings[1];
  consumer.exchange = reinterpret_cast<float*>(shared + layout.exchange) +
                      consumer.group * 2 * product.round_strips * kStripRows * kPartialStride;
  prepare_row<kRowBarrier>(product.input, consumer.shared, 0);
  named_barrier<kRowBarrier, kRowThreads>();
  for_each_stage<kFirst, kSecond>(product.shape, block, block_count,
                                  [&](int output, int strip, int strips, int tile, int tiles, int unit) {
                                    if (unit % kGroups != consumer.group) return;
                                    if (kFirst == kSecond || !product.shape.outputs[output].second_type)
                                      consume_stage<kFirst>(product, output, strip, strips, tile, tiles, consumer);
                                    else
                                      consume_stage<kSecond>(product, output, strip, strips, tile, tiles, consumer);
                                  });
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

// What a block may use so that two fit one multiprocessor; the driver keeps 1 KB of each for itself.
int block_shared_bytes(const DeviceTraits& traits) {
  constexpr int kReserved = 1024;
  return std::min(traits.shared_bytes_per_sm / 2 - kReserved, traits.shared_bytes_per_block);
}

constexpr int kMaxStageBytes = 32 * 1024;
constexpr int kMinStageBytes = kPieceTiles * tile_layout(DType::Q8_0).tile_bytes;

int stage_bytes_for(const DeviceTraits& traits, int cols, int round_strips) {
  const int room = (block_shared_bytes(traits) - row_layout(cols, 0, round_strips).total) / (kGroups * kSlots);
  return std::min(room / 128 * 128, kMaxStageBytes);
}

void launch_outputs(const LaunchTarget& target, const MatmulArgs& args, RowKernel kernel, DType second,
                    const MatmulOutput* outputs, int output_count) {
  RowProduct product = {};
  StreamShape& shape = product.shape;
  const int cols = args.outputs[0].matrix.cols;
  std::int64_t strips = 0;
  for (int i = 0; i < output_count; ++i) {
    shape.outputs[i] = stream_output(outputs[i], second);
    strips += shape.outputs[i].strip_count;
    product.needs_sums = product.needs_sums || has_minimum(outputs[i].matrix.dtype);
  }
  if (strips == 0) return;
  shape.output_count = output_count;
  shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  // As many strips in a round as every stage holds.
  for (product.round_strips = kMaxRoundStrips;; product.round_strips /= 2) {
    shape.stage_bytes = stage_bytes_for(target.traits, cols, product.round_strips);
    int fewest = shape.stage_bytes < kMinStageBytes ? 0 : kMaxRoundStrips;
    for (int i = 0; i < output_count && fewest > 0; ++i)
      fewest = std::min(fewest,
                        stage_cut(tile_layout(outputs[i].matrix.dtype).tile_bytes, shape.tile_count, shape.stage_bytes)
                            .bundle_strips);
    if (product.round_strips == 1 || fewest >= product.round_strips) break;
  }
  product.input = {reinterpret_cast<const float*>(args.input.address()),
                   reinterpret_cast<const float*>(args.norm_weight.address()), args.norm_epsilon, cols};
  product.epilogue = args.epilogue;
  product.soft_cap = args.soft_cap;
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(strips, target.traits.sm_count));
  launch_kernel("matmul_row_kernel", kernel,
                {dim3(blocks), dim3(kThreads),
                 static_cast<std::size_t>(row_layout(cols, shape.stage_bytes, product.round_strips).total)},
                target, product);
}

}  // namespace

bool matmul_row_serves(const DeviceTraits& traits, const MatmulArgs& args) {
  if (traits.compute_capability < 90 || args.row_count != 1) return false;
  const int cols = args.outputs[0].matrix.cols;
  if (args.norm_weight && cols > kMaxNormWidth) return false;
  if (stage_bytes_for(traits, cols, 1) < kMinStageBytes) return false;
  for (int i = 0; i < args.output_count; ++i)
    if (is_float(args.outputs[i].matrix.dtype)) return false;
  return true;
}

void prepare_matmul_row(const DeviceTraits& traits) {
  for (const DTypeInfo& first : kDTypes)
    for (const DTypeInfo& second : kDTypes)
      if (const RowKernel kernel = row_kernel(first.dtype, second.dtype); kernel != nullptr)
        CUDA_CHECK(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, block_shared_bytes(traits)));
}

// One launch for all outputs where a kernel reads their types, else one an output.
void launch_matmul_row(const LaunchTarget& target, const MatmulArgs& args) {
  const TypePair types = type_pair(args);
  if (types.count <= 2) {
    if (const RowKernel kernel = row_kernel(types.first, types.second); kernel != nullptr)
      return launch_outputs(target, args, kernel, types.second, args.outputs, args.output_count);
    if (const RowKernel kernel = row_kernel(types.second, types.first); kernel != nullptr)
      return launch_outputs(target, args, kernel, types.first, args.outputs, args.output_count);
  }
  for (int i = 0; i < args.output_count; ++i) {
    const DType dtype = args.outputs[i].matrix.dtype;
    launch_outputs(target, args, row_kernel(dtype, dtype), dtype, args.outputs + i, 1);
  }
}

}  // namespace genai::cuda
