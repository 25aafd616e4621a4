// program.cu - the operations of a decode step, one after the other, by one kernel (NOTE [Program] in program.cuh).
// Shapes   as those of matmul_row.cu and of attention with one row. sm_90.
// Mapping  one block a multiprocessor: sixteen warps that multiply and attend, in four groups, one that copies what
//          they read, and one that finishes what they have added up.
// Bound    memory: the packed bytes of all matrices and the visible keys and values, once.
// Twin     engine/host: the same operations in the same order (engine/README.md).
#include <algorithm>

#include "cuda/kernels/program_attention_wide.cuh"
#include "cuda/kernels/program_builder.cuh"
#include "cuda/kernels/program_finish.cuh"
#include "cuda/kernels/program_host.cuh"
#include "cuda/kernels/program_merge.cuh"
#include "cuda/kernels/program_product.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

// Of every kind of product the block's share.
__device__ __forceinline__ BlockShare share_of(const RowProgram& program, unsigned char* shared,
                                               const ProductKind& kind) {
  return BlockShare(reinterpret_cast<int*>(shared + program.layout.shares) + kind.share);
}

// All of them, worked out before the first operation begins.
template <DType kFirst, DType kSecond>
__device__ __forceinline__ void plan_program(const RowProgram& program, unsigned char* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= program.product_kind_count) return;
  const ProductKind& kind = program.product_kinds[thread];
  share_of(program, shared, kind).plan<kFirst, kSecond>(kind, program.unit_strips);
}

__device__ __forceinline__ ProgramRing ring_of(const RowProgram& program, unsigned char* shared) {
  SharedBarrier* barriers = reinterpret_cast<SharedBarrier*>(shared + program.layout.barriers);
  return {shared, barriers, barriers + kRingBarriers, program.layout.slot_bytes};
}

__device__ __forceinline__ ProgramExchange exchange_of(const RowProgram& program, unsigned char* shared) {
  SharedBarrier* barriers =
      reinterpret_cast<SharedBarrier*>(shared + program.layout.barriers) + kRingBarriers + kRingSlots;
  return {reinterpret_cast<float*>(shared + program.layout.exchange), barriers, barriers + 2, barriers + 4,
          program.unit_strips};
}

__device__ __forceinline__ RowVector vector_of(const RowProgram& program, unsigned char* shared) {
  const ProgramLayout& layout = program.layout;
  return {reinterpret_cast<uint2*>(shared + layout.quants), reinterpret_cast<float*>(shared + layout.scales),
          reinterpret_cast<float*>(shared + layout.sums), reinterpret_cast<float*>(shared + layout.reduce)};
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void feed_program(const RowProgram& program, unsigned char* shared) {
  RingFeeder feeder(ring_of(program, shared));
  feeder.set_window(program.window);
  StepRow row = {-1, -1, 0, 0};
#pragma unroll 1
  for (int index = 0; index < program.op_count; ++index) {
    const ProgramOp& op = program.ops[index];
    if (op.type == ProgramOpKind::product) {
      const ProgramProduct product = program.product(op);
      feed_product<kFirst, kSecond>(product, share_of(program, shared, product.kind), feeder);
      continue;
    }
    if (row.position < 0) {
      wait_for_previous_grid();
      row = *program.rows;
    }
    feed_attention(program.attention(op), row, program.window, feeder);
  }
}

__device__ __forceinline__ volatile Progress& progress_of(const RowProgram& program, unsigned char* shared) {
  return *(reinterpret_cast<volatile Progress*>(shared + program.layout.progress) + own_warp());
}

// All about a consumer that is not its progress is computed anew for each operation: kept, it would take registers from
// sums.
__device__ __forceinline__ Consumer consumer_of(const RowProgram& program, unsigned char* shared) {
  const ProgramLayout& layout = program.layout;
  const volatile Progress& progress = progress_of(program, shared);
  const int warp = own_warp();
  Consumer consumer;
  consumer.ring = ring_of(program, shared);
  consumer.exchange = exchange_of(program, shared);
  consumer.words = program.handover.words(progress.launch);
  consumer.row = vector_of(program, shared);
  consumer.staged = reinterpret_cast<float*>(shared + layout.staged);
  consumer.group = warp / kProgramGroupWarps;
  consumer.warp_in_group = warp % kProgramGroupWarps;
  consumer.stage = progress.stage;
  consumer.round = progress.round;
  return consumer;
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_product(const RowProgram& program, const ProgramOp& op, unsigned char* shared) {
  const ProgramProduct product = program.product(op);
  Consumer consumer = consumer_of(program, shared);
  consume_product<kFirst, kSecond>(product, share_of(program, shared, product.kind), consumer);
  volatile Progress& progress = progress_of(program, shared);
  __syncwarp();
  progress.stage = consumer.stage;
  progress.round = consumer.round;
  if (product.call.host_rows >= 0) wait_until_asked(product, consumer.exchange);
}

__device__ __forceinline__ AttentionStep attention_step(const RowProgram& program, unsigned char* shared) {
  return {program.handover, *program.rows, progress_of(program, shared).launch, shared + program.layout.scales};
}

__device__ __forceinline__ void attend(const RowProgram& program, const ProgramOp& op, unsigned char* shared) {
  const ProgramAttention attention = program.attention(op);
  const AttentionStep step = attention_step(program, shared);
  volatile Progress& progress = progress_of(program, shared);
  const int first_stage = progress.stage;
  __syncwarp();
  progress.stage = first_stage + attention_stages(attention, step.row);
  attend(attention, step, ring_of(program, shared), first_stage);
}

template <DType kFirst, DType kSecond>
__device__ __forceinline__ void consume_program(const RowProgram& program, unsigned char* shared, unsigned launch) {
  volatile Progress& first = progress_of(program, shared);
  first.launch = launch;
  first.stage = 0;
  first.round = 0;
  first.op = 0;
#pragma unroll 1
  while (true) {
    volatile Progress& progress = progress_of(program, shared);
    __syncwarp();  // what the last operation has left is there
    const int index = progress.op;
    if (index >= program.op_count) return;
    __syncwarp();
    progress.op = index + 1;
    const ProgramOp& op = program.ops[index];
    if (op.type == ProgramOpKind::product) {
      consume_product<kFirst, kSecond>(program, op, shared);
      continue;
    }
    consumer_barrier();  // the area is free
    attend(program, op, shared);
    // The operation is asked for anew: attention keeps nothing of it.
    merge_chunks(program.attention(program.ops[progress_of(program, shared).op - 1]), attention_step(program, shared));
  }
}

__device__ __forceinline__ void finish_program(const RowProgram& program, unsigned char* shared, unsigned launch) {
  clear_words<kWarpLanes, 4>(program.handover, launch, own_lane());  // nothing is to be finished yet
  const ProgramExchange exchange = exchange_of(program, shared);
  unsigned* words = program.handover.words(launch);
  int round = 0;
#pragma unroll 1
  for (int index = 0; index < program.op_count; ++index) {
    const ProgramOp& op = program.ops[index];
    if (op.type != ProgramOpKind::product) continue;
    const ProgramProduct product = program.product(op);
    const bool has_host_rows = product.call.host_rows >= 0;
    if (has_host_rows) ask_for_rows(program, product, exchange, vector_of(program, shared));
    finish_product(product, share_of(program, shared, product.kind), exchange, words, round);
    if (has_host_rows) take_rows(program, product, words);
  }
}

template <DType kFirst, DType kSecond>
__global__ void __launch_bounds__(kProgramThreads, 1) row_program_kernel(const __grid_constant__ RowProgram program) {
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_grid();
  const ProgramRing ring = ring_of(program, shared);
  if (threadIdx.x < kRingBarriers) init_barrier(ring.full + threadIdx.x, 1);
  if (threadIdx.x < kRingSlots)
    init_barrier(ring.empty + threadIdx.x, kProgramGroups * kProgramGroupWarps * kWarpArrivals);
  const ProgramExchange exchange = exchange_of(program, shared);
  if (threadIdx.x < 2) {
    init_barrier(exchange.full + threadIdx.x, kProgramGroups * kProgramGroupWarps * kWarpArrivals);
    init_barrier(exchange.empty + threadIdx.x, kWarpArrivals);
    init_barrier(exchange.asks + threadIdx.x, threadIdx.x == 0 ? kAskArrivals : kWarpArrivals);
  }
  if (threadIdx.x < kRingBarriers) publish_barriers();
  init_numbered_barriers(program_barrier_threads);
  plan_program<kFirst, kSecond>(program, shared);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (warp == kCopyingWarp) return feed_program<kFirst, kSecond>(program, shared);
  wait_for_previous_grid();
  const unsigned launch = program.handover.launches()[blockIdx.x];
  if (warp == kFinishingWarp) return finish_program(program, shared, launch);
  consume_program<kFirst, kSecond>(program, shared, launch);
  consumer_barrier();
  count_launch(program.handover, launch);
}

struct Choice {
  template <DType kFirst, DType kSecond>
  static constexpr auto kernel() {
    return row_program_kernel<kFirst, kSecond>;
  }
};
constexpr auto kKernels = program_kernels<Choice>();

// How many of the calls are the program's next operation; 0: it cannot have them.
std::size_t add_next(ProgramBuilder& builder, const RowCall* calls, std::size_t call_count) {
  if (const MatmulArgs* matmul = call_at<MatmulArgs>(calls, call_count, 0)) return builder.add(*matmul) ? 1 : 0;
  if (const AskHostArgs* ask = call_at<AskHostArgs>(calls, call_count, 0)) {
    const MatmulArgs* matmul = call_at<MatmulArgs>(calls, call_count, 1);
    const TakeAnswerArgs* answer = call_at<TakeAnswerArgs>(calls, call_count, 2);
    return matmul != nullptr && answer != nullptr && builder.add(*ask, *matmul, *answer) ? 3 : 0;
  }
  const RotateArgs* rotate = call_at<RotateArgs>(calls, call_count, 0);
  const AttentionArgs* attention = call_at<AttentionArgs>(calls, call_count, 1);
  return rotate != nullptr && attention != nullptr && builder.add(*rotate, *attention) ? 2 : 0;
}

constexpr int kFewestOps = 12;  // that are worth a kernel that shares its multiprocessors with no other

}  // namespace

void prepare_row_program(const DeviceTraits& traits) { allow_shared_bytes(kKernels, whole_shared_bytes(traits)); }

ProgramLaunch launch_row_program(const LaunchTarget& target, const RowCall* calls, std::size_t call_count) {
  if (call_count < kFewestOps) return {call_count, false};
  ProgramBuilder builder(target.traits);
  std::size_t count = 0;
  while (count < call_count) {
    const std::size_t added = add_next(builder, calls + count, call_count - count);
    if (added == 0) break;
    count += added;
  }
  if (builder.op_count() < kFewestOps) return {std::max<std::size_t>(count, 1), false};
  const RowProgram* const program = builder.finish();
  if (program == nullptr) return {count, false};
  launch_kernel("row_program_kernel", kKernels[index_of(builder.types())],
                {dim3(static_cast<unsigned>(program->block_count)), dim3(kProgramThreads),
                 static_cast<std::size_t>(program->layout.total)},
                target, *program);
  return {count, true};
}

}  // namespace genai::cuda
