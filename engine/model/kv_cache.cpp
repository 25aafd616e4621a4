#include "engine/model/kv_cache.h"

#include "engine/error.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

std::size_t element_bytes(CacheType type) { return type == CacheType::f16 ? 2 : 4; }

// Keys and values of one layer in one chunk.
std::size_t layer_bytes(const CacheShape& shape) {
  return 2 * static_cast<std::size_t>(shape.kv_head_count) * kChunkPositions *
         static_cast<std::size_t>(shape.head_dim) * element_bytes(shape.type);
}

}  // namespace

std::size_t cache_bytes(const CacheShape& shape, std::int32_t position_count) {
  const auto chunk_count = static_cast<std::size_t>((position_count + kChunkPositions - 1) / kChunkPositions);
  return layer_bytes(shape) * static_cast<std::size_t>(shape.layer_count) * chunk_count;
}

KvCache::KvCache(ResidencyArena& arena, const CacheShape& shape)
    : shape_(shape), chunk_bytes_(layer_bytes(shape) * static_cast<std::size_t>(shape.layer_count)) {
  GENAI_EXPECT(shape.max_positions > 0 && shape.sequence_count > 0, "an empty cache");
  sequence_stride_bytes_ =
      static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes_for(shape.max_positions)),
                                        static_cast<std::int64_t>(arena.memory().granule_bytes())));
  range_ = arena.reserve(MemoryKind::kv, sequence_stride_bytes_ * static_cast<std::size_t>(shape.sequence_count));
}

void KvCache::ensure(std::int32_t sequence, std::int32_t position_count) {
  GENAI_EXPECT(sequence >= 0 && sequence < shape_.sequence_count, "no such sequence");
  GENAI_EXPECT(position_count <= shape_.max_positions, "more positions than the sequence has");
  const std::size_t created =
      range_.commit(static_cast<std::size_t>(sequence) * sequence_stride_bytes_, bytes_for(position_count));
  if (created > 0) ++growth_events_;
}

CacheView KvCache::view(std::int32_t layer) const {
  return {.base = range_.base(),
          .sequence_stride_bytes = static_cast<std::int64_t>(sequence_stride_bytes_),
          .chunk_bytes = static_cast<std::int64_t>(chunk_bytes_),
          .layer_offset_bytes = static_cast<std::int64_t>(layer_bytes(shape_)) * layer,
          .type = shape_.type,
          .kv_head_count = shape_.kv_head_count,
          .head_dim = shape_.head_dim};
}

}  // namespace genai
