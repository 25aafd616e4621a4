// attention_tiles.cu - attention of many rows.   out = softmax(scale * q k^T) v
// Shapes   q, out (M, H, D) f32; cache as CacheView says; D up to 256. sm_90.
// Mapping  A warp has four query vectors of one key-value head (rows times the heads that share it) and their state in
//          registers (attention_four.cuh); the warps of a block go through the chunks that any of their rows sees.
//          Keys and values of a chunk each have one place in shared memory, filled by bulk copies: the last warp to
//          have read one asks for what comes next, while the other is being read. Warps meet nowhere else. Blocks with
//          the last rows, which see the most, come first. Rows of several sequences in one block are done one sequence
//          after the other.
// Bound    float operations: 2 * D fma for every visible position of a query vector.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_four.cuh"
#include "cuda/kernels/ptx.cuh"

namespace genai::cuda {
namespace {

constexpr int kMaxWarps = 4;
constexpr int kMinWarps = 2;
constexpr int kBlocksPerSm = 3;  // more would leave a thread too few registers
constexpr int kMaxHeadDim = 256;
constexpr int kPassDims = 128;  // of values at once
// Fewer rows far into a context leave a device half empty; attention_decode.cu cuts the context as well.
constexpr int kMinRows = 96;

struct TilePlan {
  int heads_per_kv;
  int vector_count;  // of a key-value head
  int tile_count;    // of a key-value head
};

// The warps of a block that have read a place in shared memory.
struct Readers {
  SharedBarrier* barrier;  // for racecheck alone, which does not know what the count says
  unsigned* count;
};

// Dynamic shared memory, in this order.
template <class T>
struct TileShared {
  static constexpr int kKeys = 128;  // bytes; barriers and counters are at 0
  unsigned char* base;
  int head_dim;

  __host__ __device__ static constexpr int bytes(int head_dim, int warps) {
    return kKeys + 2 * kChunkPositions * head_dim * static_cast<int>(sizeof(T)) +
           warps * (kFour * (head_dim + kChunkPositions) * 4 + static_cast<int>(sizeof(FourSights)));
  }
  __device__ SharedBarrier* barriers() const { return reinterpret_cast<SharedBarrier*>(base); }
  __device__ unsigned* counts() const { return reinterpret_cast<unsigned*>(base + 32); }
  __device__ SharedBarrier* keys_full() const { return barriers(); }
  __device__ SharedBarrier* values_full() const { return barriers() + 1; }
  __device__ Readers keys_read() const { return {barriers() + 2, counts()}; }
  __device__ Readers values_read() const { return {barriers() + 3, counts() + 1}; }
  __device__ T* keys() const { return reinterpret_cast<T*>(base + kKeys); }     // [D/8][64][8]
  __device__ T* values() const { return keys() + kChunkPositions * head_dim; }  // [64][D]
  // Of a warp: queries [D/8][4][8], weights [64][4], and what its queries see.
  __device__ float* queries(int warp) const {
    constexpr int kSights = static_cast<int>(sizeof(FourSights) / sizeof(float));
    return reinterpret_cast<float*>(values() + kChunkPositions * head_dim) +
           warp * (kFour * (head_dim + kChunkPositions) + kSights);
  }
  __device__ float4* weights(int warp) const { return reinterpret_cast<float4*>(queries(warp) + kFour * head_dim); }
  __device__ FourSights* sights(int warp) const {
    return reinterpret_cast<FourSights*>(weights(warp) + kChunkPositions);
  }
};

// Chunks first .. last of one sequence.
struct ChunkRun {
  int sequence;
  int first;
  int last;
};

// Takes the rows of one sequence out of `left`, a bit a row of the block; lane i has row i.
__device__ __forceinline__ ChunkRun take_run(const StepRow& row, int window, unsigned& left) {
  ChunkRun run;
  run.sequence = __shfl_sync(kFullWarp, row.sequence, __ffs(static_cast<int>(left)) - 1);
  const bool member = (left >> (threadIdx.x % kWarpLanes) & 1u) != 0 && row.sequence == run.sequence;
  left &= ~__ballot_sync(kFullWarp, member);
  const ChunkSpan span = chunk_span(row.position, window);
  constexpr int kNone = 0x7fffffff;
  run.first = kNone - static_cast<int>(warp_max(static_cast<unsigned>(member ? kNone - span.first_chunk : 0)));
  run.last = static_cast<int>(warp_max(static_cast<unsigned>(member ? span.first_chunk + span.count - 1 : 0)));
  return run;
}

template <class T>
__device__ __forceinline__ void request(const AttentionArgs& args, const ChunkRun& run, int chunk, int kv_head,
                                        bool values, const TileShared<T>& shared) {
  const unsigned bytes = static_cast<unsigned>(kChunkPositions * args.cache.head_dim * static_cast<int>(sizeof(T)));
  const CacheHead<T> head = cache_head<T>(args.cache, run.sequence, chunk, kv_head);
  SharedBarrier* full = values ? shared.values_full() : shared.keys_full();
  arrive_expecting(full, bytes);
  bulk_load(values ? shared.values() : shared.keys(), values ? head.values : head.keys, bytes, full,
            read_often_policy());
}

// The block's arrivals of one place.
__device__ __forceinline__ unsigned reader_arrivals() { return blockDim.x / kWarpLanes * kWarpArrivals; }

// By all lanes of each warp of the block, when they have read a place the time whose parity it is: true for one lane of
// the last warp. A wait at a barrier instead of the fences takes attention a third more time.
__device__ __forceinline__ bool all_have_read(const Readers& readers, unsigned parity) {
  __syncwarp();
  if (!arrives_for_warp(static_cast<int>(threadIdx.x % kWarpLanes))) return false;
  if constexpr (kForRacecheck) arrive(readers.barrier);
  __threadfence_block();
  const bool last = atomicInc(readers.count, reader_arrivals() - 1) == reader_arrivals() - 1;
  __threadfence_block();
  if (kForRacecheck && last) wait_phase(readers.barrier, parity);
  return last;
}

// The query vectors of a block, counted among those of its key-value head, and where they lie in q and out.
struct Tile {
  const AttentionArgs& args;
  const TilePlan& plan;
  int kv_head;
  int first;
  int end;

  __device__ __forceinline__ Tile(const AttentionArgs& args, const TilePlan& plan)
      : args(args),
        plan(plan),
        kv_head(static_cast<int>(blockIdx.x) % args.cache.kv_head_count),
        first((plan.tile_count - 1 - static_cast<int>(blockIdx.x) / args.cache.kv_head_count) *
              static_cast<int>(blockDim.x / kWarpLanes) * kFour),
        end(min(first + static_cast<int>(blockDim.x / kWarpLanes) * kFour, plan.vector_count)) {}

  __device__ __forceinline__ int row_of(int vector) const { return vector / plan.heads_per_kv; }
  __device__ __forceinline__ int row_count() const { return row_of(end - 1) - row_of(first) + 1; }  // at most 16
  // May be beyond the end.
  __device__ __forceinline__ int vector(int query) const {
    return first + static_cast<int>(threadIdx.x) / kWarpLanes * kFour + query;
  }
  // Queries beyond the end repeat the last one.
  __device__ __forceinline__ int existing_vector(int query) const { return min(vector(query), end - 1); }
  __device__ __forceinline__ std::int64_t place(int vector) const {
    const int row = row_of(vector);
    const int head = kv_head * plan.heads_per_kv + vector - row * plan.heads_per_kv;
    return (std::int64_t{row} * args.head_count + head) * args.cache.head_dim;
  }
};
static_assert(kMaxWarps * kFour <= kWarpLanes, "a lane a row");

// The warp's queries, as dot_four reads them.
__device__ __forceinline__ void load_queries(const Tile& tile, int lane, float* queries) {
#pragma unroll
  for (int four = 0; four < kFour; ++four) {
    const float4* source = reinterpret_cast<const float4*>(raw(tile.args.q) + tile.place(tile.existing_vector(four)));
#pragma unroll 1
    for (int i = lane; i < tile.args.cache.head_dim / 4; i += kWarpLanes)
      *reinterpret_cast<float4*>(queries + (i / 2 * kFour + four) * 8 + i % 2 * 4) = source[i];
  }
}

// What the warp's queries see of a run; nothing if they are of another sequence.
__device__ __forceinline__ void look(const Tile& tile, int lane, const StepRow& lane_row, int sequence,
                                     FourSights& sights) {
  const int row = tile.row_of(tile.existing_vector(lane % kFour)) - tile.row_of(tile.first);
  const VisibleRange visible = visible_range(__shfl_sync(kFullWarp, lane_row.position, row), tile.args.window);
  const bool member = __shfl_sync(kFullWarp, lane_row.sequence, row) == sequence;
  if (lane < kFour) {
    sights.first[lane] = visible.first;
    sights.last[lane] = member ? visible.last : -1;
  }
  __syncwarp();
}

// How a chunk is merged into what a lane has of its queries.
template <int kKept>
struct FourMerge {
  float before[kKept];  // a
  float chunk[kKept];   // b
  bool sees[kKept];     // or the chunk is passed over
};

// What a lane knows of its warp's queries so far.
template <int kRowLanes, int kPasses>
struct FourState {
  static constexpr int kKept = kRowLanes / 8;
  float highest = bits_float(0xff800000u);  // m of its own query
  float total = 0.0f;                       // l
  float output[kPasses][kKept][8] = {};     // o

  __device__ __forceinline__ FourMerge<kKept> merge_sum(const FourLane& own, const ChunkSum& sum,
                                                        const FourSights& sights) {
    const float now = fmaxf(highest, sum.highest);
    const float a = exp_of_negative(highest - now);
    const float b = exp_of_negative(sum.highest - now);
    const bool sees = own.upper ? (own.odd ? sights.sees_any(3) : sights.sees_any(2))
                                : (own.odd ? sights.sees_any(1) : sights.sees_any(0));
    if (sees) {
      highest = now;
      total = exact_fma(sum.total, b, total * a);
    }
    FourMerge<kKept> merge;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int owner = kKept == 1 ? own.lane : (own.lane & 16) + 8 * k;
      merge.before[k] = __shfl_sync(kFullWarp, a, owner);
      merge.chunk[k] = __shfl_sync(kFullWarp, b, owner);
      merge.sees[k] = __shfl_sync(kFullWarp, static_cast<int>(sees), owner) != 0;
    }
    return merge;
  }

  template <class T>
  __device__ __forceinline__ void merge_values(const FourLane& own, const T* values, int head_dim,
                                               const float4* weights, const FourSights& sights,
                                               const FourMerge<kKept>& merge) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int dim = min(pass * kPassDims + own.lane % kRowLanes * 8, head_dim - 8);
      float added[kKept][8];
      weigh_four<kRowLanes>(own, values, head_dim, dim, weights, sights, added);
#pragma unroll
      for (int k = 0; k < kKept; ++k)
        if (merge.sees[k]) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            output[pass][k][i] = exact_fma(added[k][i], merge.chunk[k], output[pass][k][i] * merge.before[k]);
        }
    }
  }

  __device__ __forceinline__ void store(const FourLane& own, const Tile& tile) const {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int query = own.lane / 16 * 2 + (kKept == 1 ? own.lane / 8 % 2 : k);
      const float inverse = 1.0f / __shfl_sync(kFullWarp, total, FourLane::owner(query));
      const int vector = tile.vector(query);
      if (vector >= tile.end) continue;
      float* out = raw(tile.args.out) + tile.place(vector);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int dim = pass * kPassDims + own.lane % kRowLanes * 8;
        if (dim >= tile.args.cache.head_dim) continue;
#pragma unroll
        for (int i = 0; i < 8; i += 4)
          *reinterpret_cast<float4*>(out + dim + i) =
              make_float4(output[pass][k][i] * inverse, output[pass][k][i + 1] * inverse,
                          output[pass][k][i + 2] * inverse, output[pass][k][i + 3] * inverse);
      }
    }
  }
};

template <class T, int kRowLanes, int kPasses>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, kBlocksPerSm)
    attention_tiles_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ TilePlan plan) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const int head_dim = args.cache.head_dim;
  const TileShared<T> shared = {shared_bytes, head_dim};
  const FourLane own(static_cast<int>(threadIdx.x % kWarpLanes));
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const Tile tile(args, plan);
  float* queries = shared.queries(warp);
  float4* weights = shared.weights(warp);
  FourSights& sights = *shared.sights(warp);

  allow_next_grid();
  if (threadIdx.x == 0) {
    init_barrier(shared.keys_full(), 1);
    init_barrier(shared.values_full(), 1);
    if constexpr (kForRacecheck) {
      init_barrier(shared.keys_read().barrier, reader_arrivals());
      init_barrier(shared.values_read().barrier, reader_arrivals());
    }
    publish_barriers();
    *shared.keys_read().count = 0;
    *shared.values_read().count = 0;
  }
  wait_for_previous_grid();

  const int row_count = tile.row_count();
  const StepRow lane_row = raw(args.rows)[tile.row_of(tile.first) + min(own.lane, row_count - 1)];
  load_queries(tile, own.lane, queries);
  FourState<kRowLanes, kPasses> state;
  unsigned parity = 0;
  for (unsigned left = kFullWarp >> (kWarpLanes - row_count); left != 0;) {
    const ChunkRun run = take_run(lane_row, args.window, left);
    __syncthreads();  // nobody reads any more
    if (threadIdx.x == 0) {
      request(args, run, run.first, tile.kv_head, false, shared);
      request(args, run, run.first, tile.kv_head, true, shared);
    }
    look(tile, own.lane, lane_row, run.sequence, sights);
    for (int chunk = run.first; chunk <= run.last; ++chunk, parity ^= 1u) {
      const int base = chunk * kChunkPositions;
      const bool any = sights.shifted(base).any();
      float e[kFour][2];
      wait_phase(shared.keys_full(), parity);
      if (any) dot_four(own, shared.keys(), queries, head_dim, e);
      if (all_have_read(shared.keys_read(), parity) && chunk < run.last)
        request(args, run, chunk + 1, tile.kv_head, false, shared);
      FourMerge<kRowLanes / 8> merge;
      if (any) {
        const FourSights seen = sights.shifted(base);
        const ChunkSum sum = soften_four(own, args.scale, args.soft_cap, seen, e);
        weights[own.place()] = make_float4(e[0][0], e[1][0], e[2][0], e[3][0]);
        weights[own.place() + 32] = make_float4(e[0][1], e[1][1], e[2][1], e[3][1]);
        merge = state.merge_sum(own, sum, seen);
        __syncwarp();
      }
      wait_phase(shared.values_full(), parity);
      if (any) state.merge_values(own, shared.values(), head_dim, weights, sights.shifted(base), merge);
      if (all_have_read(shared.values_read(), parity) && chunk < run.last)
        request(args, run, chunk + 1, tile.kv_head, true, shared);
    }
  }
  state.store(own, tile);
}

using TilesKernel = void (*)(AttentionArgs, TilePlan);

template <class T>
TilesKernel tiles_kernel(int head_dim) {
  return head_dim <= 64          ? attention_tiles_kernel<T, 8, 1>
         : head_dim <= kPassDims ? attention_tiles_kernel<T, 16, 1>
                                 : attention_tiles_kernel<T, 16, 2>;
}

TilesKernel tiles_kernel(CacheType type, int head_dim) {
  return type == CacheType::f16 ? tiles_kernel<std::uint16_t>(head_dim) : tiles_kernel<float>(head_dim);
}

int tiles_bytes(CacheType type, int head_dim, int warps) {
  return type == CacheType::f16 ? TileShared<std::uint16_t>::bytes(head_dim, warps)
                                : TileShared<float>::bytes(head_dim, warps);
}

}  // namespace

bool attention_tiles_serves(const DeviceTraits& traits, const AttentionArgs& args) {
  return traits.compute_capability >= 90 && args.row_count >= kMinRows && args.cache.head_dim <= kMaxHeadDim &&
         tiles_bytes(args.cache.type, args.cache.head_dim, kMaxWarps) <= traits.shared_bytes_per_block;
}

void prepare_attention_tiles(const DeviceTraits& traits) {
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const int head_dim : {64, 128, kMaxHeadDim})
      CUDA_CHECK(cudaFuncSetAttribute(tiles_kernel(type, head_dim), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      traits.shared_bytes_per_block));
}

void launch_attention_tiles(const LaunchTarget& target, const AttentionArgs& args) {
  TilePlan plan = {};
  plan.heads_per_kv = args.head_count / args.cache.kv_head_count;
  plan.vector_count = args.row_count * plan.heads_per_kv;
  const auto blocks_of = [&](int warps) {
    return (plan.vector_count + warps * kFour - 1) / (warps * kFour) * args.cache.kv_head_count;
  };
  int warps = kMaxWarps;
  while (warps > kMinWarps && blocks_of(warps) < 2 * target.traits.sm_count) warps /= 2;
  plan.tile_count = blocks_of(warps) / args.cache.kv_head_count;
  launch_kernel("attention_tiles_kernel", tiles_kernel(args.cache.type, args.cache.head_dim),
                {dim3(static_cast<unsigned>(blocks_of(warps))), dim3(static_cast<unsigned>(warps * kWarpLanes)),
                 static_cast<std::size_t>(tiles_bytes(args.cache.type, args.cache.head_dim, warps))},
                target, args, plan);
}

}  // namespace genai::cuda
