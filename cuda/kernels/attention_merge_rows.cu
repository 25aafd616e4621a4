// attention_merge_rows.cu - the merge (attention_merge.cu) for 2 to 16 rows over contexts of usual length, which also
//          finishes what attention began for its neighbours (attention_finish.cuh).
// Shapes   scratch as SplitScratch says; out (M, H, D) f32.
// Mapping  a warp has up to 128 dimensions of one head of a row, four a lane. Its blocks find room beside one of
//          attention and one of the next product, and are there when attention ends (NOTE [Neighbours]).
// Bound    latency: the first chunks are asked for before it is known how many there are.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_finish.cuh"
#include "cuda/kernels/attention_merge.cuh"

namespace genai::cuda {
namespace {

constexpr int kWarps = 3;
constexpr int kMaxRegisters = 72;
constexpr int kBatch = 5;       // chunks
constexpr int kBatches = 2;     // on their way
constexpr int kGroup = 30;      // chunks whose weights are computed at once
constexpr int kQuadSlices = 4;  // of a warp
constexpr int kSliceLanes = kSliceDims / 4;
static_assert(kGroup % (kBatch * kBatches) == 0 && kGroup <= kWarpLanes && kQuadSlices * kSliceLanes == kWarpLanes);
static_assert(kBatch * kBatches * 4 * kSliceDims <= kScratchSlackBytes);

struct FourState {
  float4 output = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // o
  float total = 0.0f;                                   // l

  __device__ __forceinline__ void add(const float4& chunk, const float4& weight) {
    output.x = exact_fma(chunk.x, weight.y, output.x * weight.x);
    output.y = exact_fma(chunk.y, weight.y, output.y * weight.x);
    output.z = exact_fma(chunk.z, weight.y, output.z * weight.x);
    output.w = exact_fma(chunk.w, weight.y, output.w * weight.x);
    total = exact_fma(weight.z, weight.y, total * weight.x);
  }
  __device__ __forceinline__ float4 result() const {
    const float inverse = 1.0f / total;
    return make_float4(output.x * inverse, output.y * inverse, output.z * inverse, output.w * inverse);
  }
};

__device__ __forceinline__ void load_batch(const float* source, float4 (&outputs)[kBatch]) {
#pragma unroll
  for (int k = 0; k < kBatch; ++k) outputs[k] = __ldcg(reinterpret_cast<const float4*>(source + k * kSliceDims));
}

__device__ __forceinline__ ChunkSum load_sum(const ChunkSum* sums, int chunk, int chunk_count) {
  if (chunk >= chunk_count) return {bits_float(0xff800000u), 0.0f};
  const float2 pair = __ldcg(reinterpret_cast<const float2*>(sums + chunk));
  return {pair.x, pair.y};
}

__device__ __forceinline__ void merge_four(const AttentionArgs& args, const SplitScratch& scratch,
                                           const RowsInput& prepared, int item, float4* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int quads = (scratch.slice_count + kQuadSlices - 1) / kQuadSlices;
  const int head_dim = args.cache.head_dim;
  const int head = item / quads % args.head_count;
  const int row = item / quads / args.head_count;
  const std::int64_t m = scratch.first_row + row;
  const int slice = item % quads * kQuadSlices + lane / kSliceLanes;
  const int dim = slice * kSliceDims + lane % kSliceLanes * 4;
  const bool exists = dim < head_dim;  // of four, all or none
  const float* source = scratch.output(row, args.head_count, head, 0, exists ? dim : 0);
  const ChunkSum* sums = scratch.sums + scratch.cell(row, args.head_count, head, 0);
  const std::int64_t place = (m * args.head_count + head) * head_dim + dim;
  float4* out = reinterpret_cast<float4*>(raw(args.out) + place);

  const int position = __ldcg(&raw(args.rows)[m].position);
  ChunkSum sum = load_sum(sums, lane, lane < kGroup ? scratch.chunk_capacity : 0);
  float4 batches[kBatches][kBatch];
#pragma unroll
  for (int i = 0; i < kBatches; ++i) load_batch(source + i * kBatch * kSliceDims, batches[i]);
  source += kBatches * kBatch * kSliceDims;
  const int chunk_count = chunk_span(position, args.window).count;
  if (lane >= chunk_count) sum = {bits_float(0xff800000u), 0.0f};
  float before = bits_float(0xff800000u);
  FourState state;
#pragma unroll 1
  for (int first = 0; first < chunk_count; first += kGroup) {
    const ChunkSum lane_sums[1] = {sum};
    merge_weights(lane_sums, before, weights);
    sum = load_sum(sums, first + kGroup + lane, lane < kGroup ? chunk_count : 0);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kGroup / kBatch; ++i) {
      const int left = chunk_count - first - i * kBatch;
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (k < left) state.add(batches[i % kBatches][k], weights[i * kBatch + k]);
      if (left > kBatches * kBatch) load_batch(source + i * kBatch * kSliceDims, batches[i % kBatches]);
    }
    source += kGroup * kSliceDims;
    __syncwarp();
  }
  const float4 result = state.result();
  if (exists) *out = result;
  if (prepared.chunks != nullptr)
    prepare_fours(prepared, static_cast<int>(m), head * head_dim + slice * kSliceDims, result, exists);
}

__global__ void __maxnreg__(kMaxRegisters)
    attention_merge_rows_kernel(const __grid_constant__ AttentionArgs args,
                                const __grid_constant__ SplitScratch scratch,
                                const __grid_constant__ RowsInput prepared, int item_count) {
  __shared__ float4 weights[kWarps][kWarpLanes];
  start_in_order();
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int item = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
#pragma unroll 1
  for (; item < item_count; item += kWarps * static_cast<int>(gridDim.x))
    merge_four(args, scratch, prepared, item, weights[warp]);
}

}  // namespace

void launch_attention_merge_rows(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch,
                                 const RowsInput& prepared) {
  const int quads = (scratch.slice_count + kQuadSlices - 1) / kQuadSlices;
  const int items = scratch.row_count * args.head_count * quads;
  launch_kernel("attention_merge_rows_kernel", attention_merge_rows_kernel,
                {dim3(static_cast<unsigned>(std::min(target.traits.sm_count, items))), dim3(kWarps * kWarpLanes)},
                target, args, scratch, prepared, items);
}

}  // namespace genai::cuda
