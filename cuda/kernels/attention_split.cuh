// attention_split.cuh - how attention over a few rows is cut: query heads into units, positions into chunks, rows into
// launches; and what the chunks leave in scratch memory for the merge (attention_merge.cu). The arithmetic is
// engine/README.md, "Attention".
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/rows_input.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

inline constexpr int kMaxUnitHeads = 8;

// The query heads of one key-value head, cut into units as equal as can be.
struct HeadUnits {
  int heads_per_kv;
  int units_per_kv;
  int unit_heads;  // at most kMaxUnitHeads; the last unit of a key-value head may have fewer

  bool operator==(const HeadUnits&) const = default;
};

__host__ __device__ constexpr HeadUnits head_units(int head_count, int kv_head_count) {
  const int heads_per_kv = head_count / kv_head_count;
  const int fewest = (heads_per_kv + kMaxUnitHeads - 1) / kMaxUnitHeads;
  const int unit_heads = (heads_per_kv + fewest - 1) / fewest;
  return {heads_per_kv, (heads_per_kv + unit_heads - 1) / unit_heads, unit_heads};
}

struct Unit {
  int kv_head;
  int first_head;
  int head_count;
};

__device__ __forceinline__ Unit unit_at(const HeadUnits& units, int index) {
  const int kv_head = units.units_per_kv == 1 ? index : index / units.units_per_kv;
  const int first = (index - kv_head * units.units_per_kv) * units.unit_heads;
  return {kv_head, kv_head * units.heads_per_kv + first, min(units.heads_per_kv - first, units.unit_heads)};
}

// Whether it is its key-value head's first one, which stores keys and values for all.
__device__ __forceinline__ bool leads_kv_head(const HeadUnits& units, const Unit& unit) {
  return unit.first_head == unit.kv_head * units.heads_per_kv;
}

// The chunks that a row sees, counted from the first one that it sees.
struct ChunkSpan {
  VisibleRange visible;
  int first_chunk;
  int count;

  __device__ __forceinline__ int base(int chunk) const { return (first_chunk + chunk) * kChunkPositions; }
  // The visible positions inside a chunk are first_in .. last_in, of 0 .. 63.
  __device__ __forceinline__ int first_in(int chunk) const { return max(visible.first - base(chunk), 0); }
  __device__ __forceinline__ int last_in(int chunk) const {
    return min(visible.last - base(chunk), kChunkPositions - 1);
  }
};

__device__ __forceinline__ ChunkSpan chunk_span(int position, int window) {
  const VisibleRange visible = visible_range(position, window);
  const int first_chunk = visible.first / kChunkPositions;
  return {visible, first_chunk, visible.last / kChunkPositions - first_chunk + 1};
}

// The items of block b are floor(b * item_count / gridDim.x) and on, up to those of block b + 1.
__device__ __forceinline__ int first_item(unsigned item_count, unsigned block) {
  return static_cast<int>(block * (item_count / gridDim.x) + block * (item_count % gridDim.x) / gridDim.x);
}

struct alignas(8) ChunkSum {
  float highest;  // mc
  float total;    // lc
};

// exact_exp of what is not above zero, or NaN, without branches.
__device__ __forceinline__ float exp_of_negative(float x) {
  const float inside = exp_in_range(x);
  return x < kExpLowest ? 0.0f : inside;
}

inline constexpr int kSliceDims = 32;

__host__ __device__ constexpr int slice_count(int head_dim) { return (head_dim + kSliceDims - 1) / kSliceDims; }

// What one launch over a group of rows leaves behind. Rows count from first_row, chunks as in ChunkSpan.
struct SplitScratch {
  float* outputs;  // oc: [row][head][slice of dimensions][chunk][kSliceDims]
  ChunkSum* sums;  // [row][head][chunk]
  int first_row;
  int row_count;
  int chunk_capacity;
  int slice_count;

  // 32 bits are enough: no memory holds more cells.
  __device__ __forceinline__ unsigned cell(int row, int head_count, int head, int chunk) const {
    return static_cast<unsigned>((row * head_count + head) * chunk_capacity + chunk);
  }
  __device__ __forceinline__ int head_stride() const { return chunk_capacity * slice_count * kSliceDims; }
  // oc of one dimension. Those that follow it in its slice lie behind it, the next chunk's kSliceDims on.
  __device__ __forceinline__ float* output(int row, int head_count, int head, int chunk, int dim) const {
    const unsigned slice = static_cast<unsigned>((row * head_count + head) * slice_count + dim / kSliceDims);
    return outputs +
           (std::uint64_t{slice} * static_cast<unsigned>(chunk_capacity) + static_cast<unsigned>(chunk)) * kSliceDims +
           dim % kSliceDims;
  }
};

// Rows of one launch, at most; what they leave behind takes no more than the budget, unless one row alone does.
inline constexpr int kMaxSplitRows = 32;
inline constexpr std::int64_t kScratchBudgetBytes = std::int64_t{64} << 20;

inline int chunk_capacity(int max_positions) {
  return std::max((max_positions + kChunkPositions - 1) / kChunkPositions, 1);
}

// So many bytes behind the last cell are read, if not used.
inline constexpr std::int64_t kScratchSlackBytes = 32 * 4 * kSliceDims;

inline std::int64_t split_row_bytes(int head_count, int head_dim, int max_positions) {
  return static_cast<std::int64_t>(head_count) * chunk_capacity(max_positions) *
         (std::int64_t{4} * kSliceDims * slice_count(head_dim) + static_cast<std::int64_t>(sizeof(ChunkSum)));
}

inline int rows_at_once(const AttentionArgs& args) {
  const std::int64_t row_bytes = split_row_bytes(args.head_count, args.cache.head_dim, args.max_positions);
  return static_cast<int>(std::min<std::int64_t>(
      {std::max<std::int64_t>(kScratchBudgetBytes / row_bytes, 1), args.row_count, kMaxSplitRows}));
}

// Calls launch(scratch) for one group of rows after the other; all use the same memory, which is why each group is
// merged before the next one begins.
template <class Launch>
void for_each_row_group(const AttentionArgs& args, const Launch& launch) {
  const int group_rows = rows_at_once(args);
  SplitScratch scratch = {};
  scratch.chunk_capacity = chunk_capacity(args.max_positions);
  scratch.slice_count = slice_count(args.cache.head_dim);
  scratch.outputs = reinterpret_cast<float*>(args.scratch.address());
  scratch.sums =
      reinterpret_cast<ChunkSum*>(scratch.outputs + static_cast<std::int64_t>(group_rows) * args.head_count *
                                                        scratch.chunk_capacity * scratch.slice_count * kSliceDims);
  for (scratch.first_row = 0; scratch.first_row < args.row_count; scratch.first_row += group_rows) {
    scratch.row_count = std::min(group_rows, args.row_count - scratch.first_row);
    launch(scratch);
  }
}

// `prepared` also gets the output, as the product that reads it wants it; chunks null: there is none.
void launch_attention_merge(const LaunchTarget& target, const AttentionArgs& args, const SplitScratch& scratch,
                            const RowsInput& prepared);

}  // namespace genai::cuda
