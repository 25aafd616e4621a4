// program_attention.cu - the host's side of attention in a program (program_attention.cuh): which calls it serves, what
// they become, and the memory that chunks of positions need.
#include <algorithm>

#include "cuda/kernels/program_attention.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

bool same_cache(const CacheView& left, const CacheView& right) {
  return left.base == right.base && left.sequence_stride_bytes == right.sequence_stride_bytes &&
         left.chunk_bytes == right.chunk_bytes && left.layer_offset_bytes == right.layer_offset_bytes &&
         left.type == right.type && left.kv_head_count == right.kv_head_count && left.head_dim == right.head_dim;
}

template <class T>
T* host_raw(DevicePtr<T> pointer) {
  return reinterpret_cast<T*>(pointer.address());
}

}  // namespace

std::size_t program_handover_bytes(const ScratchLimits& limits) {
  const std::int64_t words =
      partial_words(std::max(limits.head_count, 1), std::max(limits.head_dim, 8), chunk_capacity(limits.max_positions));
  return HandoverMemory::kPartialOffset + static_cast<std::size_t>(kPartialTurns * words) * sizeof(unsigned);
}

bool program_attention_serves(const RotateArgs& rotate, const AttentionArgs& attention) {
  return rotate.row_count == 1 && attention.row_count == 1 && rotate.rows == attention.rows &&
         rotate.head_count == attention.head_count && rotate.q.address() == attention.q.address() &&
         same_cache(rotate.cache, attention.cache) && rotate.cache.type == CacheType::f16 &&
         rotate.cache.head_dim <= kMaxProgramHeadDim && rotate.table.address() % sizeof(float2) == 0;
}

ProgramAttention program_attention(const RotateArgs& rotate, const AttentionArgs& attention) {
  ProgramAttention op = {};
  op.q.values = host_raw(rotate.q);
  op.k.values = host_raw(rotate.k);
  op.v.values = host_raw(rotate.v);
  op.q_norm = host_raw(rotate.q_norm);
  op.k_norm = host_raw(rotate.k_norm);
  op.table = host_raw(rotate.table);
  op.q_out = host_raw(rotate.q);
  op.out = host_raw(attention.out);
  op.norm_epsilon = rotate.norm_epsilon;
  op.rotated = rotate.rotated;
  op.interleaved = rotate.interleaved;
  op.head_count = attention.head_count;
  op.units = head_units(attention.head_count, attention.cache.kv_head_count);
  op.scale = attention.scale;
  op.window = attention.window;
  op.soft_cap = attention.soft_cap;
  op.chunk_capacity = chunk_capacity(attention.max_positions);
  op.cache = attention.cache;
  return op;
}

}  // namespace genai::cuda
