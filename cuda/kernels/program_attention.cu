// program_attention.cu - the host's side of attention in a program (program_attention.cuh): which calls it serves, what
// they become, and the memory that chunks of positions need.
#include <algorithm>

#include "cuda/kernels/program_attention.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

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
         rotate.cache == attention.cache && rotate.cache.type == CacheType::f16 &&
         rotate.cache.head_dim <= kMaxProgramHeadDim && rotate.table.address() % sizeof(float2) == 0;
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
