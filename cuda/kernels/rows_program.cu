// rows_program.cu - a chain of products of quantised matrices with 2 to 4 rows of activations, and of attention between
// them, by one kernel (NOTE [Rows program] in rows_program.cuh).   Y = W norm(X), and Y is the next X
// Shapes   as those of matmul_rows.cu, for inputs that shared memory holds whole. sm_90.
// Mapping  one block a multiprocessor, of two halves: eight warps that compute, one that copies, one that finishes.
//          A half takes up to four strips at a time and walks K in chunks of eight tiles: warp w has tile w of each
//          (rows_few_product.cuh).
// Bound    memory: the packed bytes of all matrices, once. Between two products: latency.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/rows_chain.cuh"
#include "cuda/kernels/rows_few_product.cuh"
#include "cuda/kernels/rows_program.cuh"
#include "cuda/kernels/rows_program_finish.cuh"
#include "cuda/kernels/rows_program_input.cuh"
#include "cuda/kernels/rows_program_merge.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kMaxRegisters = 96;  // of 20 warps a quarter of a multiprocessor has five
constexpr int kComputingThreads = kHalves * kRowsThreads;
constexpr int kBeginningThreads = kComputingThreads + kHalves * kWarpLanes;

// A pass of kStrips strips over all of K, whose partials are handed over. All stages but the last are full: with an odd
// number of strips, one has the last strip of a chunk and the first one of the next chunk. That the number is known
// lets the products of one stage overlap with the next wait.
template <DType kType, class Slices, int kStrips>
__device__ __forceinline__ void compute_pass(const RowsProgram& program, const RowsStep& step, HalfRing& ring,
                                             HalfExchange& exchange, unsigned char* shared, const HalfThread& own) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  constexpr int kChunks = kStrips % kStageStrips == 0 ? 1 : kStageStrips;  // in which stages begin and end alike
  static_assert(kStageStrips == 2);
  const FewPlaces places = FewPlaces::of<Slices>(own.lane);
  const bool second = own.lane % 4 >= 2;
  FewPartials partials[kStrips] = {};
  const unsigned char* slice = shared + own.warp * Slices::kBytes;
#pragma unroll 1
  for (int left = step.shape.tile_count - own.warp; left > 0; left -= kChunks * kChunkTiles) {
    const bool has_both = kChunks == 1 || left > kChunkTiles;
    FewInput inputs[2];
    const auto load_inputs = [&] {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) inputs[pair] = load_few<Slices, has_minimum(kType)>(slice, places, pair);
      slice += kChunkTiles * Slices::kBytes;
    };
    const auto accumulate = [&](const FewTile<kType>& tile, int strip) {
      accumulate_few<kType, 0>(tile, inputs[0], second, partials[strip]);
      accumulate_few<kType, 1>(tile, inputs[1], second, partials[strip]);
    };
    load_inputs();
#pragma unroll
    for (int first = 0; first < kChunks * kStrips; first += kStageStrips) {
      if (first >= kStrips && !has_both) break;
      const bool is_full = first + 1 < kStrips || has_both;
      ring.wait_full();
      const TileBytes* bytes = ring.stage() + own.warp * kTileBytes;
      FewTile<kType> tiles[kStageStrips];
      tiles[0].load(bytes, own.lane);
      if (is_full) tiles[1].load(bytes + kChunkTiles * kTileBytes, own.lane);
      __syncwarp();
      ring.release(own.lane);
      ring.advance(program);
      accumulate(tiles[0], first % kStrips);
      if (!is_full) break;
      if (first + 1 == kStrips) load_inputs();
      accumulate(tiles[1], (first + 1) % kStrips);
    }
  }
  // Where the last chunk has no tile for the warp: what is left of its stages.
  if (own.warp > (step.shape.tile_count - 1) % kChunkTiles) {
    const bool begins = kChunks == 1 || chunk_count(step.shape.tile_count) % kChunks != 0;
#pragma unroll 1
    for (int stages = (kStrips + (begins ? 1 : 0)) / kStageStrips; stages > 0; --stages) {
      ring.wait_full();
      ring.release(own.lane);
      ring.advance(program);
    }
  }
  hand_over_partials<kStrips>(program, shared, own, exchange, second, partials);
}

template <DType kType, class Slices>
__device__ __forceinline__ void compute_strips(const RowsProgram& program, const RowsStep& step, int strips,
                                               HalfRing& ring, HalfExchange& exchange, unsigned char* shared,
                                               const HalfThread& own) {
  static_assert(kPassStrips == 4);
  switch (strips) {
    case 1:
      return compute_pass<kType, Slices, 1>(program, step, ring, exchange, shared, own);
    case 2:
      return compute_pass<kType, Slices, 2>(program, step, ring, exchange, shared, own);
    case 3:
      return compute_pass<kType, Slices, 3>(program, step, ring, exchange, shared, own);
    default:
      return compute_pass<kType, Slices, 4>(program, step, ring, exchange, shared, own);
  }
}

template <DType kFirst, DType kSecond, class Slices>
__device__ __forceinline__ void compute_share(const RowsProgram& program, const RowsStep& step, const ChainShare& share,
                                              HalfRing& ring, HalfExchange& exchange, unsigned char* shared,
                                              const HalfThread& own) {
  const bool is_second = kFirst != kSecond && step.shape.outputs[share.output].second_type;
#pragma unroll 1
  for (int strip = share.first; strip < share.end; strip += share.pass_strips) {
    const int strips = min(share.pass_strips, share.end - strip);
    if (is_second)
      compute_strips<kSecond, Slices>(program, step, strips, ring, exchange, shared, own);
    else
      compute_strips<kFirst, Slices>(program, step, strips, ring, exchange, shared, own);
  }
}

// Asks for the weights of a half's share, by one thread.
template <DType kType>
__device__ __forceinline__ void feed_share(const RowsProgram& program, const RowsStep& step, const ChainShare& share,
                                           HalfRing& ring, HalfRing& arriving, int& ahead) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int strip_bytes = step.shape.tile_count * kTileBytes;
  const std::uint64_t policy = read_once_policy();
  int early = program.slot_count;  // stages of a ring without their input, at most
#pragma unroll 1
  for (int strip = share.first; strip < share.end; strip += share.pass_strips) {
    const int strips = min(share.pass_strips, share.end - strip);
    const TileBytes* chunk = step.shape.outputs[share.output].weights + static_cast<std::int64_t>(strip) * strip_bytes;
    int left = step.shape.tile_count;  // from this chunk on
    int of_chunk = 0;
#pragma unroll 1
    while (left > 0) {
      for (const int most = early-- > 0 ? program.window : share.ahead; ahead >= most; --ahead) {
        arriving.wait_full();
        arriving.advance(program);
      }
      ++ahead;
      const TileBytes* sources[kStageStrips];
      unsigned bytes[kStageStrips] = {};
#pragma unroll
      for (int i = 0; i < kStageStrips; ++i) {
        if (left <= 0) break;
        bytes[i] = static_cast<unsigned>(min(left, kChunkTiles) * kTileBytes);
        sources[i] = chunk + of_chunk * strip_bytes;
        if (++of_chunk < strips) continue;
        of_chunk = 0;
        left -= kChunkTiles;
        chunk += kChunkTiles * kTileBytes;
      }
      ring.wait_empty(bytes[0] + bytes[1]);
#pragma unroll
      for (int i = 0; i < kStageStrips; ++i)
        if (bytes[i] > 0)
          bulk_load_shared(ring.bytes() + i * kChunkTiles * kTileBytes, sources[i], bytes[i], ring.slot, policy);
      ring.advance(program);
    }
  }
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_program(const RowsProgram& program, int half, unsigned char* shared) {
  const ChainShare* shares = reinterpret_cast<const ChainShare*>(shared + program.shares);
  HalfRing ring(program, shared, half);
  HalfRing arriving = ring;
  int ahead = 0;
#pragma unroll 1
  for (int index = 0; index < program.step_count; ++index) {
    const RowsStep& step = program.steps[index];
    const ChainShare share = shares[index * kHalves + half];
    if (step.attention >= 0)
      wait_phase(attention_barrier(program, kChunksRequested, shared), static_cast<unsigned>(step.attention & 1));
    if (kFirst != kSecond && step.shape.outputs[share.output].second_type)
      feed_share<kSecond>(program, step, share, ring, arriving, ahead);
    else
      feed_share<kFirst>(program, step, share, ring, arriving, ahead);
  }
}

// A step's input by attention.
template <class Slices>
__device__ __forceinline__ void attend_step(const RowsProgram& program, const RowsStep& step,
                                            const HalfExchange& exchange, unsigned char* shared) {
  const ProgramAttention op = program.attention(step);
  const PassAttention attention = {program, op, program.attentions[step.attention].kind, shared};
  attend_rows(attention, static_cast<unsigned>(step.attention & 1), exchange);
  merge_rows<Slices>(attention, step);
  numbered_barrier<kBlockBarrier, kComputingThreads>();  // nobody reads keys, values and sums any more
}

template <DType kFirst, DType kSecond, class Slices>
__device__ __forceinline__ void compute_program(const RowsProgram& program, unsigned char* shared) {
  const ChainShare* shares = reinterpret_cast<const ChainShare*>(shared + program.shares);
  HalfRing ring(program, shared, HalfThread().half());
  HalfExchange exchange(program, shared, HalfThread().half());
#pragma unroll 1
  for (int index = 0; index < program.step_count; ++index) {
    const HalfThread own;  // what follows from it is worked out anew: kept, it would take registers from sums
    const RowsStep& step = program.steps[index];
    const ChainShare& share = shares[index * kHalves + own.half()];
    if (step.attention >= 0)
      attend_step<Slices>(program, step, exchange, shared);
    else
      prepare_step<Slices>(program, step, launch_words(program, shared), own,
                           reinterpret_cast<float*>(shared + program.squares) + own.half() * kRowsThreads);
    take_slices<Slices>(step, launch_words(program, shared), own, shared);
    if (index == 0)
      clear_words<kComputingThreads, 1>(program.handover, launch_number(program, shared),
                                        static_cast<int>(threadIdx.x));
    compute_share<kFirst, kSecond, Slices>(program, step, share, ring, exchange, shared, own);
  }
}

// What is the same for all attentions of a launch.
__device__ __forceinline__ void begin_attention(const RowsProgram& program, unsigned char* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kWarpLanes) return;
  if (thread < kRowsGroups) reinterpret_cast<unsigned*>(shared + program.phases)[thread] = 0;
  if (thread < program.row_count)
    reinterpret_cast<RowPosition*>(shared + program.positions)[thread] = {program.rows[thread].position,
                                                                          program.rows[thread].sequence};
  __syncwarp();
  const int kind = thread / kRowsGroups;
  if (kind >= program.attention_kind_count) return;
  const ProgramAttention op = {program.attention_kinds[kind], program.attentions[0].call};
  plan_items({program, op, kind, shared}, thread % kRowsGroups);
}

template <DType kFirst, DType kSecond>
__global__ void __maxnreg__(kMaxRegisters) rows_program_kernel(const __grid_constant__ RowsProgram program) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  unsigned char* shared = keep_shared(dynamic_shared);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHalves * program.slot_count) {
    SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + program.slots + thread * program.slot_bytes);
    init_barrier(barriers, 1);
    init_barrier(barriers + 1, kRowsWarps * kWarpArrivals);
    publish_barriers();
  } else if (thread < kHalves * (program.slot_count + 1)) {
    SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + program.exchange_barriers) +
                              2 * (thread - kHalves * program.slot_count);
    init_barrier(barriers, kRowsWarps * kWarpArrivals);
    init_barrier(barriers + 1, kWarpArrivals);
    publish_barriers();
  }
  if (program.attention_count > 0 && thread < kRowsAttentionBarriers) {
    init_barrier(attention_barrier(program, thread, shared),
                 thread == kProjectionsRead ? kHalves * kRowsWarps * kWarpArrivals : 1);
    publish_barriers();
  }
  init_numbered_barriers([](int id) {
    return id == kBlockBarrier        ? kComputingThreads
           : id == kBeginningBarrier  ? kBeginningThreads
           : id >= kFirstGroupBarrier ? kGroupThreads
           : id <= kHalves            ? kRowsThreads
                                      : kHalves * kWarpLanes;
  });
  if (const int index = thread - kWarpLanes * 2; index >= 0 && index < kHalves * program.step_count) {
    const RowsStep& step = program.steps[index / kHalves];
    const int own = kHalves * static_cast<int>(blockIdx.x) + index % kHalves;
    reinterpret_cast<ChainShare*>(shared + program.shares)[index] = chain_share(program, step, own);
  }
  __syncthreads();
  const int extra = thread / kWarpLanes - kHalves * kRowsWarps;  // warps that do not compute
  if (extra >= 0 && extra < kHalves) {
    if (thread % kWarpLanes == 0) feed_program<kFirst, kSecond>(program, extra, shared);
    return;
  }
  wait_for_previous_grid();
  allow_next_grid();  // NOTE [Early reads]
  if (thread == 0) *reinterpret_cast<unsigned*>(shared + program.launch) = program.handover.launches()[blockIdx.x];
  if (program.attention_count > 0) begin_attention(program, shared);
  numbered_barrier<kBeginningBarrier, kBeginningThreads>();
  if (extra >= 0) return finish_program(program, extra - kHalves, shared);
  using Slices = RowsSlices<has_minimum(kFirst) || has_minimum(kSecond)>;
  compute_program<kFirst, kSecond, Slices>(program, shared);
  numbered_barrier<kBlockBarrier, kComputingThreads>();
  count_launch(program.handover, launch_number(program, shared));
}

struct Choice {
  template <DType kFirst, DType kSecond>
  static constexpr auto kernel() {
    return rows_program_kernel<kFirst, kSecond>;
  }
};
constexpr auto kKernels = program_kernels<Choice>();

// The first of the calls, as many as can follow each other. Behind an attention no chain ends with projections whose
// own attention it cannot have: where the next one begins with them it can.
std::size_t add_calls(ChainBuilder& chain, const DeviceTraits& traits, const RowCall* calls, std::size_t call_count) {
  std::size_t count = 0;
  if (traits.compute_capability < 90 || traits.wide_products != WideProducts::by_cost) return count;
  while (count < call_count) {
    if (const MatmulArgs* const args = call_at<MatmulArgs>(calls, call_count, count); args != nullptr) {
      const RotateArgs* const rotate = call_at<RotateArgs>(calls, call_count, count + 1);
      const AttentionArgs* const attention = call_at<AttentionArgs>(calls, call_count, count + 2);
      const MatmulArgs* const product = call_at<MatmulArgs>(calls, call_count, count + 3);
      const bool attends = rotate != nullptr && attention != nullptr && product != nullptr;
      const ChainBuilder before = chain;
      if (!chain.add(*args)) break;
      ++count;
      if (!attends) continue;
      if (chain.add(*rotate, *attention, *product)) {
        count += 3;
        continue;
      }
      if (chain.program().attention_count > 0) {
        chain = before;
        --count;
      }
      break;
    }
    break;
  }
  return count;
}

}  // namespace

void prepare_rows_program(const DeviceTraits& traits) { allow_shared_bytes(kKernels, whole_shared_bytes(traits)); }

bool rows_program_serves(const DeviceTraits& traits, const RowCall* calls, std::size_t call_count) {
  constexpr std::size_t kFewest = 2;
  ChainBuilder chain(traits);
  return add_calls(chain, traits, calls, std::min(call_count, kFewest)) == kFewest;
}

ProgramLaunch launch_rows_program(const LaunchTarget& target, const RowCall* calls, std::size_t call_count) {
  ChainBuilder chain(target.traits);
  const std::size_t count = add_calls(chain, target.traits, calls, call_count);
  if (count < 2) return {1, false};
  chain.finish();
  launch_kernel("rows_program_kernel", kKernels[index_of(chain.types())],
                {dim3(static_cast<unsigned>(target.traits.sm_count)), dim3(kRowsProgramThreads),
                 static_cast<std::size_t>(chain.shared_bytes())},
                target, chain.program());
  return {count, true};
}

}  // namespace genai::cuda
