// cache.cuh - where keys and values of one head lie (engine/device/kernels.h, CacheView), and their two element types.
#pragma once
#include <cuda_runtime.h>

#include "engine/device/kernels.h"
#include "engine/exact_math.h"

namespace genai::cuda {

template <class T>
struct CacheHead {
  T* keys;    // [D/8][64][8]
  T* values;  // [64][D]
};

// T is std::uint16_t for halves or float.
template <class T>
__device__ __forceinline__ CacheHead<T> cache_head(const CacheView& cache, int sequence, int chunk, int kv_head) {
  const std::int64_t head_elements = static_cast<std::int64_t>(kChunkPositions) * cache.head_dim;
  T* layer = reinterpret_cast<T*>(cache.base.address() + sequence * cache.sequence_stride_bytes +
                                  chunk * cache.chunk_bytes + cache.layer_offset_bytes);
  T* keys = layer + kv_head * head_elements;
  return {keys, keys + cache.kv_head_count * head_elements};
}

__device__ __forceinline__ float from_cache(float element) { return element; }
__device__ __forceinline__ float from_cache(std::uint16_t element) { return half_to_float(element); }
__device__ __forceinline__ void to_cache(float* element, float value) { *element = value; }
__device__ __forceinline__ void to_cache(std::uint16_t* element, float value) { *element = float_to_half(value); }

// Positions that a row sees: first .. last.
struct VisibleRange {
  int first;
  int last;
};

__device__ __forceinline__ VisibleRange visible_range(int position, int window) {
  return {window > 0 && position >= window ? position - window + 1 : 0, position};
}

}  // namespace genai::cuda
