// attention_merge.cu - what chunks of positions left behind, merged in ascending order.
//          m' = max(m, mc)   a = exp(m - m')   b = exp(mc - m')   l = lc*b + l*a   o = oc*b + o*a   out = o / l
// Shapes   scratch as SplitScratch says; out (M, H, D) f32.
// Mapping  blocks of one warp, each a slice of the dimensions of one head of a row. The largest score so far is a
//          running maximum, which needs no order, so the weights of a group of chunks are computed at once, a chunk or
//          two a lane; only the two sums are a chain, of one, two or four dimensions a lane. What a lane needs of oc
//          is on its way to registers a group of chunks ahead.
// Bound    latency: eight cycles a chunk; scratch is read from the cache that it was written to a moment ago.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {
namespace {

constexpr int kBatches = 4;
// With the shared memory of a group's weights a block this small fits beside one of attention_decode.cu and one of the
// next product.
constexpr int kMaxRegisters = 160;
constexpr int kMinSlice = kWarpLanes;  // dimensions of a block
constexpr int kMaxSlice = 4 * kWarpLanes;

// Chunks of a batch, of which kBatches are a group.
constexpr int batch_chunks(int lane_dims) { return lane_dims == 4 ? 8 : 16; }

// oc of a batch of chunks at the lane's dimensions.
template <int kDims>
struct Batch {
  static constexpr int kChunks = batch_chunks(kDims);
  static_assert(4 * kChunks * kSliceDims <= kScratchSlackBytes, "a batch is loaded whole");
  float output[kChunks][kDims];

  // Of the chunk whose oc lies at `source` and those behind it.
  __device__ __forceinline__ void load(const float* source) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const float* place = source + k * kSliceDims;
      if constexpr (kDims == 1) {
        output[k][0] = __ldcg(place);
      } else if constexpr (kDims == 2) {
        const float2 two = __ldcg(reinterpret_cast<const float2*>(place));
        output[k][0] = two.x;
        output[k][1] = two.y;
      } else {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(place));
        output[k][0] = four.x;
        output[k][1] = four.y;
        output[k][2] = four.z;
        output[k][3] = four.w;
      }
    }
  }
};

// Sums of a lane's chunks of a group, which follow each other.
template <int kCount>
struct LaneSums {
  ChunkSum sum[kCount];

  __device__ __forceinline__ void load(const ChunkSum* sums, int chunk_count) {
    const int first = static_cast<int>(threadIdx.x) * kCount;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sum[i] = {bits_float(0xff800000u), 0.0f};
      if (first + i >= chunk_count) continue;
      const float2 pair = __ldcg(reinterpret_cast<const float2*>(sums + first + i));
      sum[i] = {pair.x, pair.y};
    }
  }
};

// The weights of a group's chunks: (a, b, lc, -). `before` is m ahead of the group, and behind it in the end.
template <int kCount>
__device__ __forceinline__ void merge_weights(const LaneSums<kCount>& sums, float& before, float4* weights) {
  const int lane = static_cast<int>(threadIdx.x);
  float highest = sums.sum[0].highest;  // of this lane's chunks and those of the lanes before it
#pragma unroll
  for (int i = 1; i < kCount; ++i) highest = fmaxf(highest, sums.sum[i].highest);
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const float other = __shfl_up_sync(kFullWarp, highest, distance);
    if (lane >= distance) highest = fmaxf(highest, other);
  }
  const float left = __shfl_up_sync(kFullWarp, highest, 1);
  float previous = lane == 0 ? before : fmaxf(before, left);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const ChunkSum& sum = sums.sum[i];
    const float now = fmaxf(previous, sum.highest);
    weights[lane * kCount + i] =
        make_float4(exp_of_negative(previous - now), exp_of_negative(sum.highest - now), sum.total, 0.0f);
    previous = now;
  }
  before = fmaxf(before, __shfl_sync(kFullWarp, highest, kWarpLanes - 1));
}

template <int kDims>
struct MergeState {
  float output[kDims];  // o
  float total;          // l

  __device__ __forceinline__ void add(const float (&chunk_output)[kDims], const float4& weight) {
#pragma unroll
    for (int dim = 0; dim < kDims; ++dim) output[dim] = exact_fma(chunk_output[dim], weight.y, output[dim] * weight.x);
    total = exact_fma(weight.z, weight.y, total * weight.x);
  }

  __device__ __forceinline__ void add(const Batch<kDims>& batch, const float4* weights, int count) {
    if (count >= batch.kChunks) {
#pragma unroll
      for (int k = 0; k < batch.kChunks; ++k) add(batch.output[k], weights[k]);
    } else {
#pragma unroll
      for (int k = 0; k < batch.kChunks; ++k)
        if (k < count) add(batch.output[k], weights[k]);
    }
  }
};

template <int kDims>
__global__ void __maxnreg__(kMaxRegisters)
    attention_merge_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ SplitScratch scratch,
                           int slice_count) {
  constexpr int kBatch = batch_chunks(kDims);
  constexpr int kGroup = kBatches * kBatch;
  __shared__ float4 weights[kGroup];
  start_in_order();
  const int head_dim = args.cache.head_dim;
  const int item = static_cast<int>(blockIdx.x);
  const int head = item / slice_count % args.head_count;
  const int row = item / slice_count / args.head_count;
  const std::int64_t m = scratch.first_row + row;
  const int first_dim = (item % slice_count * kWarpLanes + static_cast<int>(threadIdx.x)) * kDims;
  const bool active = first_dim < head_dim;
  const float* outputs = scratch.output(row, args.head_count, head, 0, active ? first_dim : 0);
  const ChunkSum* sums = scratch.sums + scratch.cell(row, args.head_count, head, 0);

  // The first ones are asked for before it is known how many there are.
  Batch<kDims> batches[kBatches];
  LaneSums<kGroup / kWarpLanes> lane_sums;
  batches[0].load(outputs);
  lane_sums.load(sums, scratch.chunk_capacity);
  const int chunk_count = chunk_span(raw(args.rows)[m].position, args.window).count;
#pragma unroll
  for (int i = 1; i < kBatches; ++i)
    if (i * kBatch < chunk_count) batches[i].load(outputs + i * kBatch * kSliceDims);
  float before = bits_float(0xff800000u);
  MergeState<kDims> state = {};
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kGroup) {
    merge_weights(lane_sums, before, weights);
    lane_sums.load(sums + first + kGroup, chunk_count - first - kGroup);
    outputs += kGroup * kSliceDims;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      const int batch_first = first + i * kBatch;
      state.add(batches[i], weights + i * kBatch, chunk_count - batch_first);
      if (batch_first + kGroup < chunk_count) batches[i].load(outputs + i * kBatch * kSliceDims);
    }
    __syncwarp();
  }
  if (!active) return;
  const float inverse = 1.0f / state.total;
  float* out = raw(args.out) + (m * args.head_count + head) * head_dim + first_dim;
#pragma unroll
  for (int dim = 0; dim < kDims; ++dim) out[dim] = state.output[dim] * inverse;
}

}  // namespace

// As much as for_each_row_group uses for arguments within the limits.
std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  const std::int64_t row_bytes = split_row_bytes(std::max(head_count, 1), std::max(head_dim, 8), max_positions);
  return static_cast<std::size_t>(
      std::min(std::clamp(row_count, 1, kMaxSplitRows) * row_bytes, std::max(kScratchBudgetBytes, row_bytes)) +
      kScratchSlackBytes);
}

void launch_attention_merge(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch) {
  int slice_dims = kMinSlice;
  const auto slices = [&] { return (args.cache.head_dim + slice_dims - 1) / slice_dims; };
  const auto items = [&] { return scratch.row_count * args.head_count * slices(); };
  // At most one block a multiprocessor, if that can be: all are there before the chunks are done.
  while (slice_dims < kMaxSlice && items() > target.traits.sm_count) slice_dims *= 2;
  launch_kernel("attention_merge_kernel",
                slice_dims == kMinSlice   ? attention_merge_kernel<1>
                : slice_dims == kMaxSlice ? attention_merge_kernel<4>
                                          : attention_merge_kernel<2>,
                {dim3(static_cast<unsigned>(items())), dim3(kWarpLanes)}, target, args, scratch, slices());
}

}  // namespace genai::cuda
