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
#include "cuda/kernels/attention_rows.cuh"
#include "engine/error.h"

namespace genai::cuda {
namespace {

constexpr int kLeader = kGroupThreads - kWarpLanes;  // the thread of a group that asks for copies
// Of a thread: beside a block of this kernel there is room for one of a product (matmul_row.cu: 512 threads of 64
// registers) in 64 K.
constexpr int kMaxRegisters = 80;

// oc of all heads to scratch. Ends with a barrier of the group.
template <class T, int kHeads, int kDims>
__device__ __forceinline__ void weigh_values(const DecodeLaunch<T, kHeads>& launch,
                                             const GroupShared<T, kHeads>& shared, const DecodeItem& item) {
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
    decode_group_barrier();  // all have read the values, and what the last pass left in the exchange
    if (dim < head_dim) put_partials<kHeads, kDims>(thread_afresh(), width, sum, shared.exchange());
    order_before_bulk_loads();
    decode_group_barrier();
    const Unit unit = launch.unit(afresh(item.unit));
    const GroupThread again = thread_afresh();
    float* outputs =
        launch.scratch.output(item.row, launch.args.head_count, unit.first_head, item.chunk, base + 4 * again.lane);
    const int stride = launch.scratch.head_stride();
    add_partials<kHeads>(again, shared.exchange(), width, min(head_dim - base, kDimsAtOnce), unit.head_count,
                         [outputs, stride](int head, const float4& sums) {
                           *reinterpret_cast<float4*>(outputs + head * stride) = sums;
                         });
  }
  decode_group_barrier();
}

// Keys and values of the launch's rows that lie in an item's chunk and count for it: nobody has written them to the
// cache when the chunk is copied. Two warps put them in their places, and those of the item's own row into the cache,
// where its unit is the first one of its key-value head. True where there are any.
template <class T, int kHeads>
__device__ __forceinline__ bool put_new_positions(const DecodeLaunch<T, kHeads>& launch,
                                                  const GroupShared<T, kHeads>& shared, const DecodeItem& item,
                                                  unsigned parity) {
  constexpr int kKeyWarp = 3;  // these have the fewest queries
  constexpr int kValueWarp = 2;
  const GroupThread own = thread_afresh();
  const RowItems& seen_by = launch.rows[item.row];
  const int chunk = seen_by.span.first_chunk + item.chunk;
  bool counts = false;
  if (own.lane < launch.scratch.row_count) {
    const RowItems& other = launch.rows[own.lane];
    counts = other.sequence == seen_by.sequence && other.position() / kChunkPositions == chunk &&
             other.position() <= seen_by.position();
  }
  const unsigned found = __ballot_sync(kFullWarp, counts);
  if (found == 0) return false;
  if (own.warp != kKeyWarp && own.warp != kValueWarp) return true;
  const RotationPlan& plan = launch.plan.rotation;
  const int head_dim = shared.head_dim;
  const int kv_heads = launch.args.cache.kv_head_count;
  const Unit unit = launch.unit(item.unit);
  const CacheHead<T> cache = launch.cache(item, unit.kv_head);
  const bool first_unit = unit.first_head == unit.kv_head * launch.plan.units.heads_per_kv;
#pragma unroll 1
  for (unsigned left = found; left != 0; left &= left - 1) {
    const int row = __ffs(static_cast<int>(left)) - 1;
    const int position = launch.rows[row].position();
    const int slot = position % kChunkPositions;
    const bool stores = first_unit && row == item.row;
    const std::int64_t source = (std::int64_t{launch.scratch.first_row + row} * kv_heads + unit.kv_head) * head_dim;
    if (own.warp == kKeyWarp) {
      const HeadRotation rotation(plan, plan.k_norm, position, head_dim);
      float* staged = shared.weights();
      for (int i = own.lane; i < head_dim; i += kWarpLanes) staged[i] = __ldcg(plan.keys + source + i);
      rotation(staged);
      __syncwarp();
      wait_phase(shared.keys_full(), parity);
      for (int i = own.lane; i < head_dim; i += kWarpLanes) {
        const int place = (i / 8 * kChunkPositions + slot) * 8 + i % 8;
        to_cache(shared.keys() + place, staged[i]);
        if (stores) to_cache(cache.keys + place, staged[i]);
      }
      __syncwarp();
    } else {
      wait_phase(shared.values_full(), parity);
      for (int i = own.lane; i < head_dim; i += kWarpLanes) {
        const float value = __ldcg(plan.values + source + i);
        to_cache(shared.values() + slot * head_dim + i, value);
        if (stores) to_cache(cache.values + slot * head_dim + i, value);
      }
    }
  }
  order_before_bulk_loads();
  return true;
}

// The rotation's part of an item, ahead of its dots. Ends with a barrier of the group where it did anything.
template <class T, int kHeads>
__device__ __forceinline__ void begin_item(const DecodeLaunch<T, kHeads>& launch, const GroupShared<T, kHeads>& shared,
                                           const DecodeItem& item, bool begins_unit, unsigned parity) {
  const RotationPlan& plan = launch.plan.rotation;
  const bool has_new = put_new_positions(launch, shared, item, parity);
  if (!has_new && !begins_unit) return;
  const GroupThread own = thread_afresh();
  const Unit unit = launch.unit(item.unit);
  const int head_dim = shared.head_dim;
  if (begins_unit) {
    const HeadRotation rotation(plan, plan.q_norm, launch.rows[item.row].position(), head_dim);
    wait_phase(shared.keys_full(), parity);
#pragma unroll 1
    for (int head = own.warp; head < unit.head_count; head += kGroupWarps) rotation(shared.queries() + head * head_dim);
    order_before_bulk_loads();
  }
  decode_group_barrier();
  if (item.chunk + 1 < launch.rows[item.row].span.count) return;
  // All blocks read queries where they were; until the end, turned ones are in the place of the output.
  const std::int64_t m = launch.scratch.first_row + item.row;
  float* out = raw(launch.args.out) + (m * launch.args.head_count + unit.first_head) * head_dim;
  for (int i = own.warp * kWarpLanes + own.lane; i < unit.head_count * head_dim; i += kGroupThreads)
    out[i] = shared.queries()[i];
}

// All items of a group, the first of which has been asked for.
template <class T, int kHeads>
__device__ __forceinline__ void attend(const DecodeLaunch<T, kHeads>& launch, const GroupShared<T, kHeads>& shared,
                                       DecodeItem item, int left, bool leads) {
  const AttentionArgs& args = launch.args;
  const bool rotates = launch.plan.rotation.keys != nullptr;
  const int head_dim = args.cache.head_dim;
  bool begins_unit = true;
  for (unsigned parity = 0;; parity ^= 1u) {
    left -= launch.plan.groups;  // items of the block behind this one
    if (rotates) begin_item(launch, shared, item, begins_unit, parity);
    wait_phase(shared.keys_full(), parity);
    dot_keys<T, kHeads>(thread_afresh(), shared.keys(), shared.queries(), head_dim, shared.weights());
    decode_group_barrier();
    if (leads && left > 0) {
      const DecodeItem next = item_after(launch.rows, item, launch.plan.groups, launch.plan.unit_count);
      const bool with_queries = next.row != item.row || next.unit != item.unit;
      launch.request_keys(next, with_queries, shared);
      if (with_queries) launch.request_queries(next, shared);
    }
    if (const GroupThread own = thread_afresh(); 2 * own.warp < kHeads) {
      const ChunkSpan span = launch.rows[item.row].span;
      const ChunkSum sum = soften<kHeads>(own, args.scale, args.soft_cap, span.first_in(item.chunk),
                                          span.last_in(item.chunk), shared.weights());
      const int head = 2 * own.warp + own.lane / 16;
      const Unit unit = launch.unit(item.unit);
      if (own.lane % 16 == 0 && head < unit.head_count)
        launch.scratch.sums[launch.scratch.cell(item.row, args.head_count, unit.first_head + head, item.chunk)] = sum;
    }
    decode_group_barrier();
    wait_phase(shared.values_full(), parity);
    if (head_dim <= 2 * kWarpLanes)
      weigh_values<T, kHeads, 2>(launch, shared, item);
    else
      weigh_values<T, kHeads, 4>(launch, shared, item);
    if (left <= 0) return;
    const DecodeItem next = item_after(launch.rows, item, launch.plan.groups, launch.plan.unit_count);
    begins_unit = next.row != item.row || next.unit != item.unit;
    item = next;
    if (leads) launch.request_values(item, shared);
  }
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
  const DecodeLaunch<T, kHeads> launch = {args, plan, scratch, rows};

  allow_next_grid();
  if (leads) {
    init_barrier(shared.keys_full(), 1);
    init_barrier(shared.values_full(), 1);
    publish_barriers();
  }
  if (!plan.reads_early) wait_for_previous_grid();
  if (threadIdx.x < kWarpLanes) list_items(args, scratch, plan.unit_count, rows);
  __syncthreads();
  const unsigned item_count = static_cast<unsigned>(rows[scratch.row_count - 1].items_end);
  const int end = first_item(item_count, blockIdx.x + 1);
  const int index = first_item(item_count, blockIdx.x) + group;
  DecodeItem item = {};
  if (index < end) item = item_at(rows, index);
  if (leads && index < end) {
    launch.request_keys(item, true, shared);
    launch.request_values(item, shared);
  }
  wait_for_previous_grid();
  if (index < end) {
    if (leads) launch.request_queries(item, shared);
    attend(launch, shared, item, end - index, leads);
  }
  if (plan.finish.counters.arrived == nullptr) return;
  wait_for_grid(plan.finish.counters);
  float4* weights = reinterpret_cast<float4*>(shared_bytes) + threadIdx.x / kWarpLanes * group_chunks<DecodeMerge>();
  merge_items(args, scratch, plan.finish, plan.rotation.queries, weights,
              [&](int row) { return rows[row].span.count; });
  leave_grid(plan.finish.counters);
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
  return std::min(half >= 2 ? half : whole, kMaxDecodeGroups);
}

// Of scratch, ahead of what chunks leave behind.
std::int64_t prepared_bytes(int row_count, int width) {
  return round_up(static_cast<std::int64_t>(rows_input_bytes(row_count, width)), 256);
}

RotationPlan rotation_plan(const RotateArgs& args) {
  const auto raw = [](auto pointer) { return reinterpret_cast<const float*>(pointer.address()); };
  return {raw(args.k),       raw(args.v),      reinterpret_cast<float*>(args.q.address()),
          raw(args.q_norm),  raw(args.k_norm), raw(args.table),
          args.norm_epsilon, args.rotated,     args.interleaved};
}

}  // namespace

bool attention_decode_serves(const DeviceTraits& traits, const AttentionArgs& args) {
  if (traits.compute_capability < 90 || args.cache.head_dim > kMaxDecodeHeadDim) return false;
  const HeadUnits units = head_units(args.head_count, args.cache.kv_head_count);
  const DecodeChoice choice = decode_choice(args.cache.type, units.unit_heads);
  return fitting_groups(traits, choice.group_bytes(args.cache.head_dim)) > 0;
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

bool attention_decode_rotates(const DeviceTraits& traits, const RotateArgs& rotate, const AttentionArgs& args) {
  return attention_decode_serves(traits, args) && args.handover && rotate.rows == args.rows &&
         rotate.row_count == args.row_count && rotate.head_count == args.head_count &&
         rotate.q.address() == args.q.address() && rotate.q.address() != args.out.address() &&
         rotate.cache == args.cache && rotate.table.address() % sizeof(float2) == 0 &&
         rows_at_once(args) == args.row_count;
}

bool attention_decode_prepares(const DeviceTraits& traits, const AttentionArgs& args, const MatmulArgs& product) {
  const int width = args.head_count * args.cache.head_dim;
  return attention_decode_serves(traits, args) && args.handover && args.cache.head_dim % kBlockWidth == 0 &&
         width % kTileWidth == 0 && product.input.address() == args.out.address() && !product.norm_weight &&
         product.row_count == args.row_count && product.input_stride == width &&
         product.outputs[0].matrix.cols == width && product.scratch.address() == args.scratch.address() &&
         matmul_rows_serves(traits, product);
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
  plan.reads_early = neighbours.reads_early;
  if (neighbours.rotate != nullptr) plan.rotation = rotation_plan(*neighbours.rotate);
  if (args.handover)
    plan.finish.counters =
        GridCounters::at(HandoverMemory{reinterpret_cast<unsigned char*>(args.handover.address())}.counters());
  AttentionArgs behind = args;  // the prepared input, where the product looks for it
  if (neighbours.prepares) {
    plan.finish.prepared = {reinterpret_cast<unsigned char*>(args.scratch.address()), rows_columns(args.row_count)};
    behind.scratch = args.scratch.byte_offset(prepared_bytes(args.row_count, args.head_count * args.cache.head_dim));
  }
  for_each_row_group(behind, [&](const SplitScratch& scratch) {
    // One block on every multiprocessor, whatever the context: NOTE [Neighbours].
    const int shared_bytes = std::max(plan.groups * bytes, lone_shared_bytes(target.traits) - kStaticBytes);
    launch_kernel("attention_decode_kernel", choice.kernel,
                  {dim3(static_cast<unsigned>(target.traits.sm_count)),
                   dim3(static_cast<unsigned>(plan.groups * kGroupThreads)), static_cast<std::size_t>(shared_bytes)},
                  target, behind, plan, scratch);
    if (!args.handover) launch_attention_merge(target, behind, scratch);
    plan.reads_early = false;
  });
}

}  // namespace genai::cuda
