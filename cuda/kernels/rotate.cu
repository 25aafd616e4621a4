// rotate.cu - norm and rotary embedding of queries and keys; keys and values into the cache.
//          a' = a*c - b*s      b' = a*s + b*c      for pairs (a, b) of a head, (c, s) from the table
// Shapes   q (M, H, D) in place; k, v (M, G, D); cache as CacheView says.
// Mapping  a warp a head of a row: H queries, then G keys, then G values; eight warps a block, which never meet.
// Bound    memory, and small: 8*M*H*D + 8*M*G*D bytes in and out, and the cache's elements.
// Twin     engine/host: rotate (engine/README.md, "Rotary embedding").
#include "cuda/kernels/cache.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kPairs = 2;     // of a lane, on their way at once
constexpr int kElements = 4;  // likewise, of a head of values

// 1 / rms of a head, whose lanes' loads have ended when it returns.
__device__ __forceinline__ float head_inverse_rms(const float* head, int head_dim, float epsilon, int lane) {
  float squares[8] = {};
  for (int first = lane; first < head_dim; first += 8 * kWarpLanes) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int i = first + kWarpLanes * k;
      const float x = i < head_dim ? head[i] : 0.0f;
      squares[k] = exact_fma(x, x, squares[k]);
    }
  }
  return inverse_rms(warp_tree_256(squares), head_dim, epsilon);
}

// (cosine, sine) of pairs begin, begin + 32, ...
__device__ __forceinline__ void load_turns(const RotateArgs& args, int position, int begin, float2 (&turns)[kPairs]) {
  const float2* table =
      reinterpret_cast<const float2*>(raw(args.table) + static_cast<std::int64_t>(position) * args.rotated);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) turns[k] = __ldg(table + min(begin + k * kWarpLanes, args.rotated / 2 - 1));
}

// Calls store(i, value) for the elements of the head after norm and rotation; the head may be where they are stored.
// Waits for the previous grid once it has asked for the first turns.
template <class Store>
__device__ __forceinline__ void rotate_head(const float* head, const float* norm_weight, const RotateArgs& args,
                                            int position, int lane, const Store& store) {
  const int head_dim = args.cache.head_dim;
  const int pair_count = args.rotated / 2;
  float2 turns[kPairs] = {};
  if (pair_count > 0) load_turns(args, position, lane, turns);
  wait_for_previous_grid();
  const float inverse = norm_weight == nullptr ? 1.0f : head_inverse_rms(head, head_dim, args.norm_epsilon, lane);
  const auto normed = [&](int i) {
    return norm_weight == nullptr ? head[i] : (head[i] * inverse) * __ldg(norm_weight + i);
  };
  for (int begin = lane; begin < pair_count; begin += kPairs * kWarpLanes) {
    float a[kPairs];
    float b[kPairs];
    if (begin != lane) load_turns(args, position, begin, turns);
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = min(begin + k * kWarpLanes, pair_count - 1);
      a[k] = normed(args.interleaved ? 2 * i : i);
      b[k] = normed(args.interleaved ? 2 * i + 1 : i + pair_count);
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = begin + k * kWarpLanes;
      if (i >= pair_count) break;
      store(args.interleaved ? 2 * i : i, exact_fma(a[k], turns[k].x, -(b[k] * turns[k].y)));
      store(args.interleaved ? 2 * i + 1 : i + pair_count, exact_fma(a[k], turns[k].y, b[k] * turns[k].x));
    }
  }
  for (int i = args.rotated + lane; i < head_dim; i += kWarpLanes) store(i, normed(i));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(const __grid_constant__ RotateArgs args, unsigned heads_of_row, unsigned heads, bool reads_early) {
  allow_next_grid();
  if (!reads_early) wait_for_previous_grid();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / kWarpLanes;
  if (index >= heads) return wait_for_previous_grid();
  const std::int64_t m = index / heads_of_row;
  const int unit = static_cast<int>(index % heads_of_row);
  const int head_dim = args.cache.head_dim;
  const int kv_heads = args.cache.kv_head_count;
  const StepRow* step_row = raw(args.rows) + m;
  const int position = __ldcg(&step_row->position);
  const int sequence = __ldcg(&step_row->sequence);

  if (unit < args.head_count) {
    float* q = raw(args.q) + (m * args.head_count + unit) * head_dim;
    rotate_head(q, raw(args.q_norm), args, position, lane, [q](int i, float value) { q[i] = value; });
    return;
  }
  const int slot = position % kChunkPositions;
  const bool values = unit >= args.head_count + kv_heads;
  const int kv_head = unit - args.head_count - (values ? kv_heads : 0);
  const CacheHead<T> cache = cache_head<T>(args.cache, sequence, position / kChunkPositions, kv_head);
  if (!values) {
    rotate_head(raw(args.k) + (m * kv_heads + kv_head) * head_dim, raw(args.k_norm), args, position, lane,
                [&cache, slot](int i, float value) {
                  to_cache(cache.keys + (i / 8 * kChunkPositions + slot) * 8 + i % 8, value);
                });
    return;
  }
  wait_for_previous_grid();
  const float* v = raw(args.v) + (m * kv_heads + kv_head) * head_dim;
  for (int begin = lane; begin < head_dim; begin += kElements * kWarpLanes) {
    float element[kElements];
#pragma unroll
    for (int k = 0; k < kElements; ++k) element[k] = v[min(begin + k * kWarpLanes, head_dim - 1)];
#pragma unroll
    for (int k = 0; k < kElements; ++k)
      if (const int i = begin + k * kWarpLanes; i < head_dim) to_cache(cache.values + slot * head_dim + i, element[k]);
  }
}

}  // namespace

void launch_rotate(const LaunchTarget& target, const RotateArgs& args, bool reads_early) {
  const unsigned heads_of_row = static_cast<unsigned>(args.head_count + 2 * args.cache.kv_head_count);
  const unsigned heads = static_cast<unsigned>(args.row_count) * heads_of_row;
  launch_kernel("rotate_kernel",
                args.cache.type == CacheType::f16 ? rotate_kernel<std::uint16_t> : rotate_kernel<float>,
                {dim3((heads + kWarps - 1) / kWarps), dim3(kThreads)}, target, args, heads_of_row, heads, reads_early);
}

}  // namespace genai::cuda
