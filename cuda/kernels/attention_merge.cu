// attention_merge.cu - what chunks of positions left behind, merged in ascending order.
//          m' = max(m, mc)   a = exp(m - m')   b = exp(mc - m')   l = lc*b + l*a   o = oc*b + o*a   out = o / l
// Shapes   scratch as SplitScratch says; out (M, H, D) f32.
// Mapping  an item is a slice of the dimensions of one head of a row, by one warp (attention_merge_item.cuh); warps
//          never meet. For calls without memory by which the blocks of attention could merge by themselves.
// Bound    latency: eight cycles a chunk; scratch is read from the cache that it was written to a moment ago.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_finish.cuh"
#include "cuda/kernels/attention_merge_item.cuh"

namespace genai::cuda {
namespace {

constexpr int kWarps = 4;
// Sizes of merge_item, and registers of a thread. The items of a decode step have a lone block on every multiprocessor
// (NOTE [Neighbours]) and much on its way; of those of many rows as many as can be should run at once.
struct FewItems {
  static constexpr bool kLone = true;
  static constexpr int kBatch = 16;
  static constexpr int kBatches = 4;
  static constexpr int kGuessedChunks = 32;
  static constexpr int kMaxRegisters = 128;
};
struct ManyItems {
  static constexpr bool kLone = false;
  static constexpr int kBatch = 8;
  static constexpr int kBatches = 2;
  static constexpr int kGuessedChunks = 16;
  static constexpr int kMaxRegisters = 40;
};

template <class Size>
__device__ __forceinline__ void merge_and_store(const AttentionArgs& args, const SplitScratch& scratch,
                                                const RowsInput& prepared, int index, float4* weights) {
  const MergeItem item = merge_item_at(scratch, args.head_count, index);
  const std::int64_t m = scratch.first_row + item.row;
  const int first_dim = item.slice * kSliceDims;
  const int dim = first_dim + static_cast<int>(threadIdx.x) % kWarpLanes;
  const std::int64_t head = (m * args.head_count + item.head) * args.cache.head_dim;
  const bool exists = dim < args.cache.head_dim;
  const float out = merge_item<Size>(scratch, args.head_count, item, weights, scratch.chunk_capacity,
                                     [&] { return chunk_span(raw(args.rows)[m].position, args.window).count; });
  if (exists) raw(args.out)[head + dim] = out;
  if (prepared.chunks != nullptr)
    prepare_block(prepared, static_cast<int>(m), item.head * args.cache.head_dim + first_dim, out);
}

template <class Size>
__global__ void __maxnreg__(Size::kMaxRegisters)
    attention_merge_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ SplitScratch scratch,
                           const __grid_constant__ RowsInput prepared, int item_count) {
  __shared__ float4 weights[kWarps][group_chunks<Size>()];
  start_in_order();
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int item = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
  if constexpr (Size::kLone) {
    for (; item < item_count; item += kWarps * static_cast<int>(gridDim.x))
      merge_and_store<Size>(args, scratch, prepared, item, weights[warp]);
  } else {
    if (item < item_count) merge_and_store<Size>(args, scratch, prepared, item, weights[warp]);
  }
}

// What makes a block a lone one.
int padding_bytes(const DeviceTraits& traits) {
  constexpr int kStatic = static_cast<int>(sizeof(float4)) * kWarps * group_chunks<FewItems>();
  return traits.compute_capability < 90 ? 0 : std::max(lone_shared_bytes(traits) - kStatic, 0);
}

}  // namespace

// As much as for_each_row_group uses for arguments within the limits.
std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  const std::int64_t row_bytes = split_row_bytes(std::max(head_count, 1), std::max(head_dim, 8), max_positions);
  return static_cast<std::size_t>(
      std::min(std::clamp(row_count, 1, kMaxSplitRows) * row_bytes, std::max(kScratchBudgetBytes, row_bytes)) +
      kScratchSlackBytes);
}

void prepare_attention_merge(const DeviceTraits& traits) {
  CUDA_CHECK(cudaFuncSetAttribute(attention_merge_kernel<FewItems>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  padding_bytes(traits)));
}

void launch_attention_merge(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch,
                            const RowsInput& prepared) {
  const int items = scratch.row_count * args.head_count * scratch.slice_count;
  const int padding = padding_bytes(target.traits);
  if (padding > 0 && (scratch.row_count == 1 || items <= target.traits.sm_count * kWarps))
    return launch_kernel("attention_merge_kernel", attention_merge_kernel<FewItems>,
                         {dim3(static_cast<unsigned>(target.traits.sm_count)), dim3(kWarps * kWarpLanes),
                          static_cast<std::size_t>(padding)},
                         target, args, scratch, prepared, items);
  launch_kernel("attention_merge_kernel", attention_merge_kernel<ManyItems>,
                {dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kWarps * kWarpLanes)}, target, args,
                scratch, prepared, items);
}

}  // namespace genai::cuda
