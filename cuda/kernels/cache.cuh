// cache.cuh - where keys and values of one head lie (engine/device/kernels.h, CacheView), and their two element types.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/ptx.cuh"
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

// kCount neighbours as floats, by one load of up to 16 bytes, or as few as there can be; `source` is aligned to it.
template <int kCount>
__device__ __forceinline__ void widen(const float* source, float (&wide)[kCount]) {
  static_assert(kCount == 2 || kCount % 4 == 0);
  if constexpr (kCount == 2) {
    const float2 pair = *reinterpret_cast<const float2*>(source);
    wide[0] = pair.x;
    wide[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(source + i);
      wide[i] = four.x;
      wide[i + 1] = four.y;
      wide[i + 2] = four.z;
      wide[i + 3] = four.w;
    }
  }
}

template <int kCount>
__device__ __forceinline__ void widen(const std::uint16_t* source, float (&wide)[kCount]) {
  static_assert(kCount == 2 || kCount == 4 || kCount == 8);
  unsigned pairs[kCount / 2];
  if constexpr (kCount == 2) {
    pairs[0] = *reinterpret_cast<const unsigned*>(source);
  } else if constexpr (kCount == 4) {
    const uint2 both = *reinterpret_cast<const uint2*>(source);
    pairs[0] = both.x;
    pairs[1] = both.y;
  } else {
    const uint4 all = *reinterpret_cast<const uint4*>(source);
    pairs[0] = all.x;
    pairs[1] = all.y;
    pairs[2] = all.z;
    pairs[3] = all.w;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    wide[i] = widen_half(static_cast<std::uint16_t>(i % 2 == 0 ? pairs[i / 2] : pairs[i / 2] >> 16));
}

// Positions that a row sees: first .. last.
struct VisibleRange {
  int first;
  int last;
};

__device__ __forceinline__ VisibleRange visible_range(int position, int window) {
  return {window > 0 && position >= window ? position - window + 1 : 0, position};
}

}  // namespace genai::cuda
