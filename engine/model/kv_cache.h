// kv_cache.h - keys and values of all sequences. Each sequence reserves its whole context as one range of addresses and
// is backed chunk by chunk (64 positions, all layers) as positions are reached, between steps: growth moves no byte and
// changes no address, so captured graphs stay valid. The layout is CacheView's in device/kernels.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device/kernels.h"
#include "engine/residency/residency_arena.h"

namespace genai {

struct CacheShape {
  CacheType type = CacheType::f16;
  std::int32_t layer_count = 0;
  std::int32_t kv_head_count = 0;
  std::int32_t head_dim = 0;
  std::int32_t sequence_count = 1;
  std::int32_t max_positions = 0;  // of one sequence
};

// Bytes that `position_count` positions of one sequence take, before rounding to granules.
std::size_t cache_bytes(const CacheShape& shape, std::int32_t position_count);

class KvCache {
 public:
  // Reserves addresses only. Throws DeviceError when the address space is exhausted.
  KvCache(ResidencyArena& arena, const CacheShape& shape);

  // Backs the first `position_count` positions of a sequence.
  // REQUIRES: position_count <= max_positions. Throws BudgetError or DeviceError.
  void ensure(std::int32_t sequence, std::int32_t position_count);

  CacheView view(std::int32_t layer) const;
  const CacheShape& shape() const { return shape_; }
  std::size_t bytes_for(std::int32_t position_count) const { return cache_bytes(shape_, position_count); }
  std::uint64_t committed_bytes() const { return range_.committed_bytes(); }
  // How many times a sequence got new granules.
  std::uint64_t growth_events() const { return growth_events_; }

 private:
  CacheShape shape_;
  std::size_t chunk_bytes_;
  std::size_t sequence_stride_bytes_;
  MemoryRange range_;
  std::uint64_t growth_events_ = 0;
};

}  // namespace genai
