// rotate.cu - norm and rotary embedding of queries and keys; keys and values into the cache.
//          a' = a*c - b*s      b' = a*s + b*c      for pairs (a, b) of a head, (c, s) from the table
// Shapes   q (M, H, D) in place; k, v (M, G, D); cache as CacheView says.
// Mapping  one block of 256 threads a head of a row: H queries, then G keys, then G values.
// Bound    memory, and small: 8*M*H*D + 8*M*G*D bytes in and out, and the cache's elements.
// Twin     engine/host: rotate (engine/README.md, "Rotary embedding").
#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;

// Element i of the head after norm.
struct NormedHead {
  const float* x;
  const float* weight;  // null: no norm
  float inverse;
  __device__ float operator[](int i) const { return weight == nullptr ? x[i] : (x[i] * inverse) * weight[i]; }
};

// Calls store(i, value) for the elements of the head after norm and rotation.
template <class Store>
__device__ __forceinline__ void rotate_head(const NormedHead& head, const RotateArgs& args, int position,
                                            const Store& store) {
  const int pair_count = args.rotated / 2;
  const float* table = raw(args.table) + static_cast<std::int64_t>(position) * args.rotated;
  for (int i = static_cast<int>(threadIdx.x); i < pair_count; i += kThreads) {
    const int first = args.interleaved ? 2 * i : i;
    const int second = args.interleaved ? 2 * i + 1 : i + pair_count;
    const float a = head[first];
    const float b = head[second];
    const float cosine = table[2 * i];
    const float sine = table[2 * i + 1];
    store(first, exact_fma(a, cosine, -(b * sine)));
    store(second, exact_fma(a, sine, b * cosine));
  }
  for (int i = args.rotated + static_cast<int>(threadIdx.x); i < args.cache.head_dim; i += kThreads) store(i, head[i]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(const RotateArgs args) {
  start_in_order();
  __shared__ float shared[kThreads];
  const int head_dim = args.cache.head_dim;
  const int kv_heads = args.cache.kv_head_count;
  const int units = args.head_count + 2 * kv_heads;
  const std::int64_t m = blockIdx.x / static_cast<unsigned>(units);
  const int unit = static_cast<int>(blockIdx.x % static_cast<unsigned>(units));
  const StepRow row = raw(args.rows)[m];

  if (unit < args.head_count) {
    float* q = raw(args.q) + (m * args.head_count + unit) * head_dim;
    NormedHead head = {q, raw(args.q_norm), 1.0f};
    if (head.weight != nullptr) head.inverse = block_inverse_rms(q, head_dim, args.norm_epsilon, shared);
    __syncthreads();  // in place: all reads for the norm come before the first write
    rotate_head(head, args, row.position, [q](int i, float value) { q[i] = value; });
    return;
  }
  const int slot = row.position % kChunkPositions;
  if (unit < args.head_count + kv_heads) {
    const int kv_head = unit - args.head_count;
    const CacheHead<T> cache = cache_head<T>(args.cache, row.sequence, row.position / kChunkPositions, kv_head);
    const float* k = raw(args.k) + (m * kv_heads + kv_head) * head_dim;
    NormedHead head = {k, raw(args.k_norm), 1.0f};
    if (head.weight != nullptr) head.inverse = block_inverse_rms(k, head_dim, args.norm_epsilon, shared);
    rotate_head(head, args, row.position, [&cache, slot](int i, float value) {
      to_cache(cache.keys + (i / 8 * kChunkPositions + slot) * 8 + i % 8, value);
    });
    return;
  }
  const int kv_head = unit - args.head_count - kv_heads;
  const CacheHead<T> cache = cache_head<T>(args.cache, row.sequence, row.position / kChunkPositions, kv_head);
  const float* v = raw(args.v) + (m * kv_heads + kv_head) * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kThreads)
    to_cache(cache.values + slot * head_dim + i, v[i]);
}

}  // namespace

void launch_rotate(const LaunchTarget& target, const RotateArgs& args) {
  const unsigned units = static_cast<unsigned>(args.head_count + 2 * args.cache.kv_head_count);
  launch_kernel("rotate_kernel",
                args.cache.type == CacheType::f16 ? rotate_kernel<std::uint16_t> : rotate_kernel<float>,
                {dim3(static_cast<unsigned>(args.row_count) * units), dim3(kThreads)}, target, args);
}

}  // namespace genai::cuda
