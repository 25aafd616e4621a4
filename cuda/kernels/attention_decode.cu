// attention_decode.cu - attention of a few rows over any context.   out = softmax(scale * q k^T) v
// Shapes   q, out (M, H, D) f32; cache as CacheView says; D a multiple of 8. sm_90.
// Mapping  An item is one chunk of 64 positions for one unit (up to eight query heads that share a key-value head) of
//          one row. One block a multiprocessor takes an equal part of all items, which lie in the order (row, unit,
//          chunk); its groups of 128 threads take turns and run independently, so that each hides the others' latency:
//          every group has a place for keys and one for values, filled by bulk copies, and asks for those of its next
//          item as soon as it has read them. Scores: lane (q, p) of warp w has partials 2q and 2q+1 at positions 16w+p
//          and 16w+p+8, of all heads. Values: warp w has partial w (positions w mod 4), a lane four dimensions (two
//          where D <= 64) of all heads. (mc, lc, oc) go to scratch (attention_merge.cu). The grid depends on capacity,
//          the work on the length.
// Bound    memory: the visible chunks of the cache once a unit.
// Twin     engine/host: attention (engine/README.md, "Attention").
#include "cuda/kernels/attention_group.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/warp.cuh"

namespace genai::cuda {
namespace {

constexpr int kMaxGroups = 3;
constexpr int kLeader = kGroupThreads - kWarpLanes;  // the thread of a group that asks for copies
// Of a thread: beside a block of this kernel there is room for one of a product (matmul_row.cu: 512 threads of 64
// registers) in 64 K.
constexpr int kMaxRegisters = 80;
constexpr int kMaxHeadDim = 256;
constexpr int kPassDims = 128;  // of values at once
static_assert(kMaxSplitRows <= kWarpLanes, "a lane a row");

struct DecodePlan {
  HeadUnits units;
  int unit_count;  // of a row
  int groups;
  bool reads_early;  // NOTE [Early reads]
};

// One group's part of dynamic shared memory, in this order; the exchange takes the place of values where these are read
// in one pass.
template <class T, int kHeads>
struct GroupShared {
  static constexpr int kWeights = 128;  // bytes; the barriers are at 0
  static constexpr int kKeys = kWeights + kHeads * kChunkPositions * 4;
  unsigned char* base;
  int head_dim;

  __host__ __device__ static constexpr bool one_pass(int head_dim) { return head_dim <= kPassDims; }
  __host__ __device__ static constexpr int bytes(int head_dim) {
    const int chunks = 2 * kChunkPositions * head_dim * static_cast<int>(sizeof(T));
    return kKeys + chunks + kHeads * head_dim * 4 + (one_pass(head_dim) ? 0 : 4 * kHeads * kPassDims * 4);
  }
  static_assert(4 * kHeads * 4 <= kChunkPositions * sizeof(T), "the exchange fits in the place of values");

  __device__ SharedBarrier* keys_full() const { return reinterpret_cast<SharedBarrier*>(base); }
  __device__ SharedBarrier* values_full() const { return reinterpret_cast<SharedBarrier*>(base) + 1; }
  __device__ SharedBarrier* queries_full() const { return reinterpret_cast<SharedBarrier*>(base) + 2; }
  __device__ float* weights() const { return reinterpret_cast<float*>(base + kWeights); }  // [head][64]
  __device__ T* keys() const { return reinterpret_cast<T*>(base + kKeys); }                // [D/8][64][8]
  __device__ T* values() const { return keys() + kChunkPositions * head_dim; }             // [64][D]
  __device__ float* queries() const { return reinterpret_cast<float*>(values() + kChunkPositions * head_dim); }
  __device__ float* exchange() const {
    return one_pass(head_dim) ? reinterpret_cast<float*>(values()) : queries() + kHeads * head_dim;
  }
};

// The same value, but what is computed from it is computed here, not earlier and then kept in registers.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ void group_barrier() {
  static_assert(kMaxGroups == 3);
  const int group = afresh(static_cast<int>(threadIdx.x)) / kGroupThreads;
  if (group == 0)
    named_barrier<1, kGroupThreads>();
  else if (group == 1)
    named_barrier<2, kGroupThreads>();
  else
    named_barrier<3, kGroupThreads>();
}

__device__ __forceinline__ GroupThread thread_afresh() {
  const unsigned thread = static_cast<unsigned>(afresh(static_cast<int>(threadIdx.x)));
  return {static_cast<int>(thread / kWarpLanes % kGroupWarps), static_cast<int>(thread % kWarpLanes)};
}

// What the items of one row are; they end before index items_end.
struct RowItems {
  ChunkSpan span;
  int sequence;
  int items_end;
};

struct Item {
  int row;  // of the launch
  int unit;
  int chunk;
};

// One warp: row_count rows from scratch.first_row on, one a lane.
__device__ __forceinline__ void list_items(const AttentionArgs& args, const SplitScratch& scratch, int unit_count,
                                           RowItems* rows) {
  const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
  RowItems own = {};
  if (lane < scratch.row_count) {
    const StepRow* row = raw(args.rows) + scratch.first_row + lane;
    own.span = chunk_span(__ldcg(&row->position), args.window);
    own.sequence = __ldcg(&row->sequence);
    own.items_end = unit_count * own.span.count;
  }
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int before = __shfl_up_sync(kFullWarp, own.items_end, distance);
    if (lane >= distance) own.items_end += before;
  }
  if (lane < scratch.row_count) rows[lane] = own;
}

__device__ __forceinline__ Item item_at(const RowItems* rows, int index) {
  int row = 0;
  while (index >= rows[row].items_end) ++row;
  const int local = row == 0 ? index : index - rows[row - 1].items_end;
  const int unit = local / rows[row].span.count;
  return {row, unit, local - unit * rows[row].span.count};
}

// The item `distance` further on, which exists.
__device__ __forceinline__ Item item_after(const RowItems* rows, Item item, int distance, int unit_count) {
  item.chunk += distance;
  while (item.chunk >= rows[item.row].span.count) {
    item.chunk -= rows[item.row].span.count;
    if (++item.unit < unit_count) continue;
    item.unit = 0;
    ++item.row;
  }
  return item;
}

// What the threads of a launch have in common.
template <class T, int kHeads>
struct Launch {
  const AttentionArgs& args;
  const DecodePlan& plan;
  const SplitScratch& scratch;
  const RowItems* rows;

  __device__ __forceinline__ unsigned chunk_bytes() const {
    return static_cast<unsigned>(kChunkPositions * args.cache.head_dim * static_cast<int>(sizeof(T)));
  }
  __device__ __forceinline__ CacheHead<T> cache(const Item& item, int kv_head) const {
    return cache_head<T>(args.cache, rows[item.row].sequence, rows[item.row].span.first_chunk + item.chunk, kv_head);
  }

  // Whether a row of the launch has its position in the item's chunk: its key and value may be on their way there.
  __device__ __forceinline__ bool has_new_position(const Item& item) const {
    bool found = false;
    for (int row = 0; row < scratch.row_count; ++row)
      found |= rows[row].sequence == rows[item.row].sequence &&
               rows[row].span.visible.last / kChunkPositions == rows[item.row].span.first_chunk + item.chunk;
    return found;
  }

  __device__ __forceinline__ void request_keys(const Item& item, const GroupShared<T, kHeads>& shared) const {
    arrive_expecting(shared.keys_full(), chunk_bytes());
    bulk_load(shared.keys(), cache(item, unit_at(plan.units, item.unit).kv_head).keys, chunk_bytes(),
              shared.keys_full(), read_once_policy());
  }

  // Of the item's unit.
  __device__ __forceinline__ void request_queries(const Item& item, const GroupShared<T, kHeads>& shared) const {
    const Unit unit = unit_at(plan.units, item.unit);
    const int head_dim = args.cache.head_dim;
    const unsigned bytes = static_cast<unsigned>(unit.head_count * head_dim * 4);
    const std::int64_t m = scratch.first_row + item.row;
    arrive_expecting(shared.queries_full(), bytes);
    bulk_load(shared.queries(), raw(args.q) + (m * args.head_count + unit.first_head) * head_dim, bytes,
              shared.queries_full(), read_often_policy());
  }

  __device__ __forceinline__ void request_values(const Item& item, const GroupShared<T, kHeads>& shared) const {
    arrive_expecting(shared.values_full(), chunk_bytes());
    bulk_load(shared.values(), cache(item, unit_at(plan.units, item.unit).kv_head).values, chunk_bytes(),
              shared.values_full(), read_once_policy());
  }
};

// oc of all heads to scratch. Ends with a barrier of the group.
template <class T, int kHeads, int kDims>
__device__ __forceinline__ void weigh_values(const Launch<T, kHeads>& launch, const GroupShared<T, kHeads>& shared,
                                             const Item& item) {
  const int head_dim = launch.args.cache.head_dim;
  const int width = min(head_dim, kPassDims);
  constexpr int kDimsAtOnce = kDims * kWarpLanes;
#pragma unroll 1
  for (int base = 0; base < head_dim; base += kDimsAtOnce) {
    const GroupThread own = thread_afresh();
    const int dim = base + own.lane * kDims;
    float sum[kHeads][kDims] = {};
    if (dim < head_dim) {
      const ChunkSpan span = launch.rows[item.row].span;
      weigh_quarter<T, kHeads, kDims>(shared.values() + own.warp * head_dim + dim, head_dim, shared.weights(), own.warp,
                                      span.first_in(item.chunk), span.last_in(item.chunk), sum);
    }
    group_barrier();  // all have read the values, and what the last pass left in the exchange
    if (dim < head_dim) put_partials<kHeads, kDims>(thread_afresh(), width, sum, shared.exchange());
    order_before_bulk_loads();
    group_barrier();
    const Unit unit = unit_at(launch.plan.units, afresh(item.unit));
    const GroupThread again = thread_afresh();
    float* outputs =
        launch.scratch.output(item.row, launch.args.head_count, unit.first_head, item.chunk, base + 4 * again.lane);
    const int stride = launch.scratch.head_stride();
    add_partials<kHeads>(again, shared.exchange(), width, min(head_dim - base, kDimsAtOnce), unit.head_count,
                         [outputs, stride](int head, const float4& sums) {
                           *reinterpret_cast<float4*>(outputs + head * stride) = sums;
                         });
  }
  group_barrier();
}

template <class T, int kHeads>
__global__ void __maxnreg__(kMaxRegisters)
    attention_decode_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ DecodePlan plan,
                            const __grid_constant__ SplitScratch scratch) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  __shared__ RowItems rows[kMaxSplitRows];
  const int head_dim = args.cache.head_dim;
  const int group = static_cast<int>(threadIdx.x / kGroupThreads);
  const bool leads = threadIdx.x % kGroupThreads == kLeader;
  const GroupShared<T, kHeads> shared = {shared_bytes + group * GroupShared<T, kHeads>::bytes(head_dim), head_dim};
  const Launch<T, kHeads> launch = {args, plan, scratch, rows};

  allow_next_grid();
  if (leads) {
    init_barrier(shared.keys_full(), 1);
    init_barrier(shared.values_full(), 1);
    init_barrier(shared.queries_full(), 1);
    publish_barriers();
  }
  if (!plan.reads_early) wait_for_previous_grid();
  if (threadIdx.x < kWarpLanes) list_items(args, scratch, plan.unit_count, rows);
  __syncthreads();
  const unsigned item_count = static_cast<unsigned>(rows[scratch.row_count - 1].items_end);
  const int end = first_item(item_count, blockIdx.x + 1);
  const int index = first_item(item_count, blockIdx.x) + group;
  if (index >= end) return wait_for_previous_grid();

  int left = end - index;  // items of the block from this one on
  Item item = item_at(rows, index);
  const bool early = plan.reads_early && leads && !launch.has_new_position(item);
  if (early) launch.request_keys(item, shared);
  wait_for_previous_grid();
  if (leads) {
    if (!early) launch.request_keys(item, shared);
    launch.request_queries(item, shared);
  }
  bool first = true;
  bool begins_unit = true;
  unsigned queries_parity = 0;
  for (unsigned parity = 0;; parity ^= 1u) {
    left -= plan.groups;
    wait_phase(shared.keys_full(), parity);
    if (leads && first) launch.request_values(item, shared);  // keys of all groups come before any values
    first = false;
    if (begins_unit) {
      wait_phase(shared.queries_full(), queries_parity);
      queries_parity ^= 1u;
    }
    dot_keys<T, kHeads>(thread_afresh(), shared.keys(), shared.queries(), head_dim, shared.weights());
    group_barrier();
    if (leads && left > 0) {
      const Item next = item_after(rows, item, plan.groups, plan.unit_count);
      launch.request_keys(next, shared);
      if (next.row != item.row || next.unit != item.unit) launch.request_queries(next, shared);
    }
    if (const GroupThread own = thread_afresh(); 2 * own.warp < kHeads) {
      const ChunkSpan span = rows[item.row].span;
      const ChunkSum sum = soften<kHeads>(own, args.scale, args.soft_cap, span.first_in(item.chunk),
                                          span.last_in(item.chunk), shared.weights());
      const int head = 2 * own.warp + own.lane / 16;
      const Unit unit = unit_at(plan.units, item.unit);
      if (own.lane % 16 == 0 && head < unit.head_count)
        scratch.sums[scratch.cell(item.row, args.head_count, unit.first_head + head, item.chunk)] = sum;
    }
    group_barrier();
    wait_phase(shared.values_full(), parity);
    if (head_dim <= 2 * kWarpLanes)
      weigh_values<T, kHeads, 2>(launch, shared, item);
    else
      weigh_values<T, kHeads, 4>(launch, shared, item);
    if (left <= 0) break;
    const Item next = item_after(rows, item, plan.groups, plan.unit_count);
    begins_unit = next.row != item.row || next.unit != item.unit;
    item = next;
    if (leads) launch.request_values(item, shared);
  }
}

using DecodeKernel = void (*)(AttentionArgs, DecodePlan, SplitScratch);

struct DecodeChoice {
  DecodeKernel kernel;
  int (*group_bytes)(int head_dim);
};

template <class T, int kHeads>
DecodeChoice decode_choice() {
  return {attention_decode_kernel<T, kHeads>, GroupShared<T, kHeads>::bytes};
}

// For at least so many heads. Caches of floats are rare: fewer kernels.
DecodeChoice decode_choice(CacheType type, int heads) {
  if (type == CacheType::f32) {
    if (heads == 1) return decode_choice<float, 1>();
    if (heads == 2) return decode_choice<float, 2>();
    if (heads <= 4) return decode_choice<float, 4>();
    return decode_choice<float, 8>();
  }
  switch (heads) {
    case 1:
      return decode_choice<std::uint16_t, 1>();
    case 2:
      return decode_choice<std::uint16_t, 2>();
    case 3:
      return decode_choice<std::uint16_t, 3>();
    case 4:
      return decode_choice<std::uint16_t, 4>();
    case 5:
      return decode_choice<std::uint16_t, 5>();
    case 6:
      return decode_choice<std::uint16_t, 6>();
    case 7:
      return decode_choice<std::uint16_t, 7>();
    default:
      return decode_choice<std::uint16_t, 8>();
  }
}

constexpr int kStaticBytes = static_cast<int>(sizeof(RowItems)) * kMaxSplitRows;

// As many groups as fit in half a multiprocessor, so that a block of another kernel has room; in all of it where half
// is enough for one only. The driver keeps 1 KB of each block for itself. 0: no group fits.
int fitting_groups(const DeviceTraits& traits, int group_bytes) {
  constexpr int kReserved = 1024;
  const int half = (traits.shared_bytes_per_sm / 2 - kReserved - kStaticBytes) / group_bytes;
  const int whole = (traits.shared_bytes_per_block - kStaticBytes) / group_bytes;
  return std::min(half >= 2 ? half : whole, kMaxGroups);
}

// Of scratch, ahead of what chunks leave behind: the prepared input, where the product looks for it.
std::int64_t prepared_bytes(int row_count, int width) {
  return round_up(static_cast<std::int64_t>(rows_input_bytes(row_count, width)), 256);
}

}  // namespace

bool attention_decode_serves(const DeviceTraits& traits, const AttentionArgs& args) {
  if (traits.compute_capability < 90 || args.cache.head_dim > kMaxHeadDim) return false;
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const DecodeChoice choice = decode_choice(args.cache.type, units.unit_heads);
  return fitting_groups(traits, choice.group_bytes(args.cache.head_dim)) > 0;
}

bool attention_decode_prepares(const DeviceTraits& traits, const AttentionArgs& args, const MatmulArgs& product) {
  const int width = args.head_count * args.cache.head_dim;
  return attention_decode_serves(traits, args) && args.cache.head_dim % kBlockWidth == 0 && width % kTileWidth == 0 &&
         product.input.address() == args.out.address() && !product.norm_weight && product.row_count == args.row_count &&
         product.input_stride == width && product.outputs[0].matrix.cols == width &&
         product.scratch.address() == args.scratch.address() && matmul_rows_serves(traits, product);
}

std::size_t attention_decode_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions) {
  return static_cast<std::size_t>(prepared_bytes(std::min(row_count, kMaxRows), head_count * head_dim)) +
         attention_scratch_bytes(row_count, head_count, head_dim, max_positions);
}

void prepare_attention_decode(const DeviceTraits& traits) {
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (int heads = 1; heads <= kMaxUnitHeads; ++heads)
      CUDA_CHECK(cudaFuncSetAttribute(decode_choice(type, heads).kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      traits.shared_bytes_per_block - kStaticBytes));
}

void launch_attention_decode(const LaunchTarget& target, const AttentionArgs& args,
                             const AttentionNeighbours& neighbours) {
  DecodePlan plan = {};
  plan.units = head_units(args.head_count, args.cache.kv_head_count);
  plan.unit_count = args.cache.kv_head_count * plan.units.units_per_kv;
  const DecodeChoice choice = decode_choice(args.cache.type, plan.units.unit_heads);
  const int bytes = choice.group_bytes(args.cache.head_dim);
  plan.groups = fitting_groups(target.traits, bytes);
  GENAI_EXPECT(plan.groups > 0, "attention does not fit");
  plan.reads_early = neighbours.reads_early && rows_at_once(args) == args.row_count;
  RowsInput prepared = {};
  AttentionArgs behind = args;
  if (neighbours.prepares) {
    prepared = {reinterpret_cast<unsigned char*>(args.scratch.address()), rows_columns(args.row_count)};
    behind.scratch = args.scratch.byte_offset(prepared_bytes(args.row_count, args.head_count * args.cache.head_dim));
  }
  for_each_row_group(behind, [&](const SplitScratch& scratch) {
    // One block on every multiprocessor, whatever the context: NOTE [Neighbours].
    const int shared_bytes = std::max(plan.groups * bytes, lone_shared_bytes(target.traits) - kStaticBytes);
    launch_kernel("attention_decode_kernel", choice.kernel,
                  {dim3(static_cast<unsigned>(target.traits.sm_count)),
                   dim3(static_cast<unsigned>(plan.groups * kGroupThreads)), static_cast<std::size_t>(shared_bytes)},
                  target, behind, plan, scratch);
    launch_attention_merge(target, behind, scratch, prepared);
  });
}

}  // namespace genai::cuda
