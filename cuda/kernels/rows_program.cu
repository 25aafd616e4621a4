// rows_program.cu - a chain of products of quantised matrices with 2 to 4 rows of activations by one kernel
// (NOTE [Rows program] in rows_program.cuh).   Y = W norm(X), and Y is the next X
// Shapes   as those of matmul_rows.cu, for inputs that shared memory holds whole. sm_90.
// Mapping  one block a multiprocessor, of two halves of eight warps. A half takes up to four strips at a time and
//          walks K in chunks of eight tiles: warp w has tile w of each (rows_few_product.cuh).
// Bound    memory: the packed bytes of all matrices, once. Between two products: latency.
// Twin     engine/host: the same operations in the same order (engine/README.md, "Matrix product").
#include <algorithm>

#include "cuda/kernels/rows_chain.cuh"
#include "cuda/kernels/rows_few_product.cuh"
#include "cuda/kernels/rows_program.cuh"
#include "cuda/kernels/rows_program_finish.cuh"
#include "cuda/kernels/rows_program_input.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kMaxRegisters = 96;  // of 18 warps a quarter of a multiprocessor has five
constexpr int kBlockBarrier = 15;  // of all that compute
static_assert(1 + kHalves + kRowsWarps <= kBlockBarrier, "HalfThread has those below");

// Where the last chunk has no tile for the warp.
__device__ __forceinline__ void pass_over_chunk(const RowsProgram& program, const RowsStep& step, int stages,
                                                HalfRing& ring, const HalfThread& own) {
  if (own.warp < (step.shape.tile_count - 1) % kChunkTiles + 1) return;
#pragma unroll 1
  for (; stages > 0; --stages) {
    ring.wait_full();
    ring.release(own.lane);
    ring.advance(program);
  }
}

// kStrips strips over all of K. That their number is known lets the products of one stage overlap with the next wait.
template <DType kType, class Slices, int kStrips>
__device__ __forceinline__ void compute_pass(const RowsProgram& program, const RowsStep& step,
                                             const StreamOutput& output, int first_strip, HalfRing& ring,
                                             unsigned char* shared, const HalfThread& own) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const FewPlaces places = FewPlaces::of<Slices>(own.lane);
  const bool second = own.lane % 4 >= 2;
  const RowsPass pass = {first_strip, kStrips};
  const unsigned before = request_terms(program, step, output, pass, shared, own);
  FewPartials partials[kStrips] = {};
  const unsigned char* slice = shared + own.warp * Slices::kBytes;
#pragma unroll 1
  for (int left = step.shape.tile_count - own.warp; left > 0; left -= kChunkTiles) {
    const FewInput inputs[2] = {load_few<Slices, has_minimum(kType)>(slice, places, 0),
                                load_few<Slices, has_minimum(kType)>(slice, places, 1)};
    FewTile<kType> tiles[kStrips];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      if (strip % kStageStrips == 0) ring.wait_full();
      tiles[strip].load(ring.stage() + (strip % kStageStrips * kChunkTiles + own.warp) * kTileBytes, own.lane);
      if (strip % kStageStrips + 1 < kStageStrips && strip + 1 < kStrips) continue;
      __syncwarp();
      ring.release(own.lane);
      ring.advance(program);
#pragma unroll
      for (int i = strip / kStageStrips * kStageStrips; i <= strip; ++i) {
        accumulate_few<kType, 0>(tiles[i], inputs[0], second, partials[i]);
        accumulate_few<kType, 1>(tiles[i], inputs[1], second, partials[i]);
      }
    }
    slice += kChunkTiles * Slices::kBytes;
  }
  pass_over_chunk(program, step, (kStrips + 1) / kStageStrips, ring, own);
  finish_pass<kStrips>(program, step, output, pass, before, shared, own, second, partials);
}

template <DType kType, class Slices>
__device__ __forceinline__ void compute_share(const RowsProgram& program, const RowsStep& step, const RowsShare& share,
                                              HalfRing& ring, unsigned char* shared, const HalfThread& own) {
  const StreamOutput& output = step.shape.outputs[share.output];
  static_assert(kPassStrips == 4);
#pragma unroll 1
  for (int strip = share.first; strip < share.end; strip += share.pass_strips) {
    switch (min(share.pass_strips, share.end - strip)) {
      case 1:
        compute_pass<kType, Slices, 1>(program, step, output, strip, ring, shared, own);
        break;
      case 2:
        compute_pass<kType, Slices, 2>(program, step, output, strip, ring, shared, own);
        break;
      case 3:
        compute_pass<kType, Slices, 3>(program, step, output, strip, ring, shared, own);
        break;
      default:
        compute_pass<kType, Slices, 4>(program, step, output, strip, ring, shared, own);
    }
  }
}

// Asks for the weights of a half's share, by one thread.
template <DType kType>
__device__ __forceinline__ void feed_share(const RowsProgram& program, const RowsStep& step, const RowsShare& share,
                                           HalfRing& ring, HalfRing& arriving, int& ahead) {
  constexpr int kTileBytes = tile_layout(kType).tile_bytes;
  const int strip_bytes = step.shape.tile_count * kTileBytes;
  const std::uint64_t policy = read_once_policy();
#pragma unroll 1
  for (int strip = share.first; strip < share.end; strip += share.pass_strips) {
    const int strips = min(share.pass_strips, share.end - strip);
    const TileBytes* source = step.shape.outputs[share.output].weights + static_cast<std::int64_t>(strip) * strip_bytes;
#pragma unroll 1
    for (int left = step.shape.tile_count; left > 0; left -= kChunkTiles) {
      const unsigned bytes = static_cast<unsigned>(min(left, kChunkTiles) * kTileBytes);
#pragma unroll 1
      for (int first = 0; first < strips; first += kStageStrips) {
        const bool both = first + 1 < strips;
        if (ahead == program.window) {
          arriving.wait_full();
          arriving.advance(program);
        } else {
          ++ahead;
        }
        ring.wait_empty(both ? 2 * bytes : bytes);
        const TileBytes* upper = source + first * strip_bytes;
        bulk_load_shared(ring.slot, upper, bytes, ring.barrier, policy);
        if (both)
          bulk_load_shared(ring.slot + kChunkTiles * kTileBytes, upper + strip_bytes, bytes, ring.barrier, policy);
        ring.advance(program);
      }
      source += kChunkTiles * kTileBytes;
    }
  }
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_program(const RowsProgram& program, int half, unsigned char* shared) {
  const RowsShare* shares = reinterpret_cast<const RowsShare*>(shared + program.shares);
  HalfRing ring(program, shared, half);
  HalfRing arriving = ring;
  int ahead = 0;
#pragma unroll 1
  for (int index = 0; index < program.step_count; ++index) {
    const RowsStep& step = program.steps[index];
    const RowsShare share = shares[index * kHalves + half];
    if (kFirst != kSecond && step.shape.outputs[share.output].second_type)
      feed_share<kSecond>(program, step, share, ring, arriving, ahead);
    else
      feed_share<kFirst>(program, step, share, ring, arriving, ahead);
  }
}

template <DType kFirst, DType kSecond, class Slices>
__device__ __forceinline__ void compute_program(const RowsProgram& program, unsigned char* shared) {
  const RowsShare* shares = reinterpret_cast<const RowsShare*>(shared + program.shares);
  HalfRing ring(program, shared, HalfThread().half());
#pragma unroll 1
  for (int index = 0; index < program.step_count; ++index) {
    const HalfThread own;  // what follows from it is worked out anew: kept, it would take registers from sums
    const RowsStep& step = program.steps[index];
    const RowsShare& share = shares[index * kHalves + own.half()];
    prepare_step<Slices>(program, step, launch_words(program, shared), own,
                         reinterpret_cast<float*>(shared + program.exchange + own.half() * kExchangeBytes));
    take_slices<Slices>(step, launch_words(program, shared), own, shared);
    if (index == 0)
      clear_words<kHalves * kRowsThreads, 1>(program.handover, launch_number(program, shared),
                                             static_cast<int>(threadIdx.x));
    if (kFirst != kSecond && step.shape.outputs[share.output].second_type)
      compute_share<kSecond, Slices>(program, step, share, ring, shared, own);
    else
      compute_share<kFirst, Slices>(program, step, share, ring, shared, own);
  }
}

template <DType kFirst, DType kSecond>
__global__ void __maxnreg__(kMaxRegisters) rows_program_kernel(const __grid_constant__ RowsProgram program) {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  unsigned char* shared = keep_shared(dynamic_shared);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHalves * program.slot_count) {
    SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + program.barriers) + 2 * thread;
    init_barrier(barriers, 1);
    init_barrier(barriers + 1, kRowsWarps * kWarpArrivals);
    publish_barriers();
  }
  init_numbered_barriers([](int id) {
    return id == kBlockBarrier ? kHalves * kRowsThreads : id <= kHalves ? kRowsThreads : kHalves * kWarpLanes;
  });
  if (const int index = thread - kWarpLanes * 2; index >= 0 && index < kHalves * program.step_count) {
    const RowsStep& step = program.steps[index / kHalves];
    const int own = kHalves * static_cast<int>(blockIdx.x) + index % kHalves;
    reinterpret_cast<RowsShare*>(shared + program.shares)[index] = rows_share(step.shape, step.division, own);
  }
  __syncthreads();
  if (thread >= kHalves * kRowsThreads) {
    if (thread % kWarpLanes == 0)
      feed_program<kFirst, kSecond>(program, (thread - kHalves * kRowsThreads) / kWarpLanes, shared);
    return;
  }
  wait_for_previous_grid();
  allow_next_grid();  // NOTE [Early reads]
  if (thread == 0) *reinterpret_cast<unsigned*>(shared + program.launch) = program.handover.launches()[blockIdx.x];
  numbered_barrier<kBlockBarrier, kHalves * kRowsThreads>();
  using Slices = RowsSlices<has_minimum(kFirst) || has_minimum(kSecond)>;
  compute_program<kFirst, kSecond, Slices>(program, shared);
  numbered_barrier<kBlockBarrier, kHalves * kRowsThreads>();
  count_launch(program.handover, launch_number(program, shared));
}

struct Choice {
  template <DType kFirst, DType kSecond>
  static constexpr auto kernel() {
    return rows_program_kernel<kFirst, kSecond>;
  }
};
constexpr auto kKernels = program_kernels<Choice>();

// The first of the calls, as many as can follow each other.
std::size_t add_calls(ChainBuilder& chain, const DeviceTraits& traits, const RowCall* calls, std::size_t call_count) {
  std::size_t count = 0;
  if (traits.compute_capability < 90 || traits.wide_products != WideProducts::by_cost) return count;
  for (; count < call_count; ++count) {
    const MatmulArgs* const args = call_at<MatmulArgs>(calls, call_count, count);
    if (args == nullptr || !chain.add(*args)) break;
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
