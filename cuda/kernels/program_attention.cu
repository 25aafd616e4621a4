// program_attention.cu - the host's side of attention in a program (program_attention.cuh): which calls it serves, what
// they become, and the memory that chunks of positions need.
#include <algorithm>

#include "cuda/kernels/program_attention.cuh"
#include "cuda/kernels/rows_program_attention.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

template <class T>
T* host_raw(DevicePtr<T> pointer) {
  return reinterpret_cast<T*>(pointer.address());
}

// Sequences of a few rows that attend in a chain have room for so many positions at most. The chain is the same however
// many there are, and with many of them separate kernels are faster (measured on an H200, a step of 14B Q4_0 with four
// rows: the chain takes 9 % less at 128 positions, as much at 1024, and 8 % more at 4096).
constexpr int kMostChainPositions = 4096;

// What chunks of positions of one row leave behind.
std::int64_t row_partial_words(int head_count, int head_dim, int max_positions) {
  return kPartialTurns * partial_words(std::max(head_count, 1), std::max(head_dim, 8), chunk_capacity(max_positions));
}

// Calls that both make one operation.
bool go_together(const RotateArgs& rotate, const AttentionArgs& attention) {
  return rotate.row_count == attention.row_count && rotate.rows == attention.rows &&
         rotate.head_count == attention.head_count && rotate.q.address() == attention.q.address() &&
         rotate.cache == attention.cache && rotate.cache.type == CacheType::f16 &&
         rotate.cache.head_dim <= kMaxProgramHeadDim && rotate.table.address() % sizeof(float2) == 0;
}

}  // namespace

std::size_t program_handover_bytes(const ScratchLimits& limits) {
  const std::int64_t one_row = row_partial_words(limits.head_count, limits.head_dim, limits.max_positions);
  const std::int64_t rows = kMaxChainRows * row_partial_words(limits.head_count, limits.head_dim,
                                                              std::min(limits.max_positions, kMostChainPositions));
  return HandoverMemory::kPartialOffset + static_cast<std::size_t>(std::max(one_row, rows)) * sizeof(unsigned);
}

bool program_attention_serves(const RotateArgs& rotate, const AttentionArgs& attention) {
  return rotate.row_count == 1 && go_together(rotate, attention);
}

bool rows_attention_serves(const RotateArgs& rotate, const AttentionArgs& attention, const MatmulArgs& product) {
  const int head_dim = attention.cache.head_dim;
  const int width = attention.head_count * head_dim;
  return go_together(rotate, attention) && head_dim % kBlockWidth == 0 && width % kTileWidth == 0 &&
         attention.max_positions <= kMostChainPositions && product.row_count == attention.row_count &&
         attention.handover.address() == product.handover.address() &&
         product.input.address() == attention.out.address() && !product.norm_weight && product.input_stride == width &&
         product.outputs[0].matrix.cols == width;
}

AttentionKind attention_kind(const RotateArgs& rotate, const AttentionArgs& attention) {
  AttentionKind kind = {};
  kind.table = host_raw(rotate.table);
  kind.q_out = host_raw(rotate.q);
  kind.out = host_raw(attention.out);
  kind.norm_epsilon = rotate.norm_epsilon;
  kind.rotated = rotate.rotated;
  kind.interleaved = rotate.interleaved;
  kind.head_count = attention.head_count;
  kind.units = head_units(attention.head_count, attention.cache.kv_head_count);
  kind.scale = attention.scale;
  kind.window = attention.window;
  kind.soft_cap = attention.soft_cap;
  kind.chunk_capacity = chunk_capacity(attention.max_positions);
  kind.cache = attention.cache;
  kind.cache.layer_offset_bytes = 0;
  return kind;
}

AttentionCall attention_call(const RotateArgs& rotate) {
  AttentionCall call = {};
  call.q_norm = host_raw(rotate.q_norm);
  call.k_norm = host_raw(rotate.k_norm);
  call.layer_offset_bytes = rotate.cache.layer_offset_bytes;
  return call;
}

}  // namespace genai::cuda
