// rows_program.cuh - what the kernel of a chain of products with 2 to 4 rows is told (rows_program.cu).
//
// NOTE [Rows program]
// A chain is a few products of which each reads what the one before it wrote. One kernel runs them all: one block a
// multiprocessor, of two halves that share an input and are otherwise on their own: eight warps that compute, as in
// matmul_rows.cu; one that copies weights into the half's ring in the order of the chain; and one that finishes, which
// adds up the partials of a pass while the others compute the next one. The ring never waits for a product to begin, so
// that the memory works while rows are handed over from block to block (handover.cuh). That takes two steps. Outputs
// are words; a half that has a part of the next input takes what it needs of them, norms and rounds it, and its words
// are taken by all blocks into their shared memory. Every product has places of its own for both in a launch's region,
// so none is used twice; each launch clears the other region for the next one. A value that a product adds to is taken
// from where the product before it left it; what several steps write to the same place is stored once, by the last of
// them. Attention may stand between projections and the product that reads what it leaves (NOTE [Rows attention]): a
// few layers are one chain then. All blocks must be there at the same time, as NOTE [Program] says.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/numbered_barrier.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/rows_finish.cuh"
#include "cuda/kernels/rows_prepare.cuh"
#include "cuda/kernels/rows_share.cuh"
#include "cuda/kernels/rows_stream.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kHalves = 2;
inline constexpr int kMaxProgramRows = kMaxChainRows;
inline constexpr int kMaxRowsSteps = 12;
inline constexpr int kMaxRowsAttentions = kMaxRowsSteps / 4;
inline constexpr int kMaxRowsAttentionKinds = 2;
inline constexpr int kRowsGroups = 3;  // of warps that attend
// Barriers of attention: keys and values of each group; all are through with the projections; the first keys and values
// have been asked for. An attention has a phase of the last two.
inline constexpr int kProjectionsRead = 2 * kRowsGroups;
inline constexpr int kChunksRequested = kProjectionsRead + 1;
inline constexpr int kRowsAttentionBarriers = kChunksRequested + 1;
inline constexpr int kPassStrips = 4;  // at most
inline constexpr int kStageStrips = 2;
inline constexpr int kStripOutputs = kStripRows * kMaxProgramRows;
inline constexpr int kExchangeBytes = kPassStrips * kStripOutputs * kExchangeStride * static_cast<int>(sizeof(float));
static_assert(kStripOutputs == kWarpLanes, "an output of each strip for every lane that finishes");
inline constexpr int kBarrierPair = 2 * static_cast<int>(sizeof(SharedBarrier));
// In front of a slot's bytes: its barriers, and as much again as keeps the bytes at multiples of 128 (measured on an
// H200: where bulk copies go to other addresses, a step of four rows takes 4 % longer).
inline constexpr int kSlotFront = 128;
static_assert(kBarrierPair <= kSlotFront);
inline constexpr int kRowsProgramThreads = kHalves * (kRowsThreads + 2 * kWarpLanes);

// The input of a product, tile by tile: what a warp of each half reads of it is contiguous.
//   quants [pair of blocks][column][c][block of the pair][h][4 bytes], scales and sums as in rows_input.cuh
template <bool kWithSums>
struct RowsSlices {
  static constexpr int kColumns = kMaxProgramRows;
  static constexpr bool kSums = kWithSums;
  static constexpr int kUnits = (kSums ? 10 : 9) * kColumns;  // 16 bytes each: eight a column of quants, one of scales
  static constexpr int kBytes = 16 * kUnits;
  static constexpr int kScales = kTileWidth * kColumns;

  __device__ __forceinline__ static constexpr int scales() { return kScales; }
  __device__ __forceinline__ static constexpr int sums() { return kScales + kTileBlocks * 4 * kColumns; }
  __device__ __forceinline__ static constexpr int pair_quants() { return 64 * kColumns; }
  __device__ __forceinline__ static constexpr int pair_scales() { return 8 * kColumns; }
  // In a slice, of block `block` and column m, as RowsInput has it.
  __device__ __forceinline__ static constexpr int quant_offset(int block, int m) {
    return block / 2 * pair_quants() + m * 64 + block % 2 * 8;
  }
  __device__ __forceinline__ static constexpr int scale_offset(int block, int m) {
    return block / 2 * pair_scales() + (m / 2 * 4 + block % 2 * 2 + m % 2) * 4;
  }
};

// A half's strips of a product, and how many stages of its ring are on their way at once while it computes: as large a
// part of all as its strips are of those of a half that has most, so that all come to the end together.
struct ChainShare : RowsShare {
  int ahead;
};

// Places in the launch's region; negative: none, it is in memory.
struct RowsWords {
  int source;  // values of the rows that are the input
  int input;   // its slices
  int before;  // what the output is added to
  int outputs[kMaxStreamOutputs];
};

struct RowsStep {
  StreamShape shape;
  RowsSource source;
  RowsWords words;
  RowsDivision division;
  unsigned stores;  // a bit for each output: in memory
  int attention;    // that leaves the input as slices; negative: none
  Epilogue epilogue;
  float soft_cap;
};

// Attention ahead of a step (rows_program_attention.cuh).
struct RowsAttention {
  int kind;
  AttentionCall call;
};

// A row of the pass, as it lies in shared memory.
struct RowPosition {
  int position;
  int sequence;
};

// What a group of warps attends to at a time (rows_program_attention.cuh).
struct RowsItem {
  std::uint64_t keys;  // of layer 0
  int unit;
  int chunk;
  int first_head;  // of all rows' heads
  std::int16_t row;
  std::int16_t kv_head;
  std::int16_t head_count;
  std::int16_t first_in;  // visible positions
  std::int16_t last_in;
  std::uint8_t rows;   // those of the pass whose position lies in the chunk: a bit each
  bool ends_row;       // the last chunk of the row
  bool leads_kv_head;  // the first unit of its key-value head
  bool begins_unit;    // the group's item before it is of another one
};
inline constexpr int kItemPlaces = 2;  // of a group: the item that it has, and the one behind it

// A group's items of a kind of attention.
struct RowsPlan {
  RowsItem item;  // the first
  int count;      // of the block's items, from that one on
  HeadUnits units;
};

struct RowsProgram {
  HandoverMemory handover;
  int slots;       // offsets in shared memory: the rings of both halves. A stage is two strips of a chunk
  int slot_bytes;  // with its barriers
  int slot_count;
  int ring_bytes;
  int window;    // stages of a ring on their way at once before their input
  int exchange;  // where a half's partials meet, twice
  int exchange_barriers;
  int squares;             // of a row, a thread's part
  int shares;              // [step][half]
  int launch;              // its number
  int queries;             // of attention: a group's queries and weights
  int positions;           // RowPosition [row]
  int plans;               // RowsPlan [kind of attention][group]
  int items;               // RowsItem [group][kItemPlaces]
  int attention_barriers;  // kRowsAttentionBarriers
  int phases;              // [group]: of keys and values
  const StepRow* rows;
  int row_count;
  int step_count;
  int attention_count;
  int attention_kind_count;
  AttentionKind attention_kinds[kMaxRowsAttentionKinds];
  RowsAttention attentions[kMaxRowsAttentions];
  RowsStep steps[kMaxRowsSteps];

  __device__ __forceinline__ ProgramAttention attention(const RowsStep& step) const {
    const RowsAttention& own = attentions[step.attention];
    return {attention_kinds[own.kind], own.call};
  }
};
static_assert(sizeof(RowsProgram) <= kProgramParameterBytes);

__device__ __forceinline__ ChainShare chain_share(const RowsProgram& program, const RowsStep& step, int own) {
  ChainShare share = {rows_share(step.shape, step.division, own), 0};
  const int first_own = share.output > 0 ? step.division.ends[share.output - 1] : 0;
  const unsigned count = static_cast<unsigned>(step.division.ends[share.output] - first_own);
  const unsigned strips = static_cast<unsigned>(step.shape.outputs[share.output].strip_count);
  const unsigned most = (strips + count - 1) / count;
  const unsigned stages = static_cast<unsigned>(program.slot_count * (share.end - share.first));
  share.ahead = max(static_cast<int>(stages / most), 2);
  return share;
}

// One end of a half's ring. In front of a slot's bytes are its barriers, so that one address does for all.
struct HalfRing {
  unsigned slot;    // addresses in shared memory
  unsigned end;     // of the last slot
  unsigned parity;  // of the round that the next stage belongs to

  __device__ __forceinline__ HalfRing(const RowsProgram& program, unsigned char* shared, int half)
      : slot(shared_address(shared) + program.slots + half * program.ring_bytes),
        end(slot + program.ring_bytes),
        parity(0) {}
  __device__ __forceinline__ unsigned bytes() const { return slot + kSlotFront; }
  __device__ __forceinline__ const unsigned char* stage() const {
    return reinterpret_cast<const unsigned char*>(__cvta_shared_to_generic(slot)) + kSlotFront;
  }
  __device__ __forceinline__ void wait_full() const { wait_shared(slot, parity); }
  __device__ __forceinline__ void advance(const RowsProgram& program) {
    slot += program.slot_bytes;
    if (slot != end) return;
    slot -= program.ring_bytes;
    parity ^= 1u;
  }
  // By a whole warp, after all its lanes have read the slot; the empty barrier counts the warps.
  __device__ __forceinline__ void release(int lane) const {
    if (arrives_for_warp(lane)) arrive_shared(slot + sizeof(SharedBarrier));
  }
  // By the copying thread: waits until the slot is free; its barrier then expects `bytes`.
  __device__ __forceinline__ void wait_empty(unsigned bytes) const {
    wait_shared(slot + sizeof(SharedBarrier), parity ^ 1u);  // the first round passes
    expect_shared(slot, bytes);
  }
};

// Where a half's partials meet: those that compute come with a pass, the finishing warp takes it.
struct HalfExchange {
  unsigned barrier;  // full; the one that says free is behind it
  unsigned parity;

  __device__ __forceinline__ HalfExchange(const RowsProgram& program, unsigned char* shared, int half)
      : barrier(shared_address(shared) + program.exchange_barriers + half * kBarrierPair), parity(0) {}
  __device__ __forceinline__ float* values(const RowsProgram& program, unsigned char* shared, int half) const {
    return reinterpret_cast<float*>(shared + program.exchange + half * kExchangeBytes);
  }
  __device__ __forceinline__ void wait_full() const { wait_shared(barrier, parity); }
  __device__ __forceinline__ void wait_free() const {
    wait_shared(barrier + sizeof(SharedBarrier), parity ^ 1u);  // the first time passes
  }
  // By a whole warp, after all its lanes.
  __device__ __forceinline__ void arrive_full(int lane) const {
    if (arrives_for_warp(lane)) arrive_shared(barrier);
  }
  __device__ __forceinline__ void arrive_free(int lane) const {
    if (arrives_for_warp(lane)) arrive_shared(barrier + sizeof(SharedBarrier));
  }
  __device__ __forceinline__ void advance() { parity ^= 1u; }
};

// The launch's number and region, looked up anew where they are used: kept, they would take registers from sums.
__device__ __forceinline__ unsigned launch_number(const RowsProgram& program, const unsigned char* shared) {
  return *reinterpret_cast<const volatile unsigned*>(shared + program.launch);
}
__device__ __forceinline__ unsigned* launch_words(const RowsProgram& program, const unsigned char* shared) {
  return program.handover.words(launch_number(program, shared));
}

// A thread of a half that computes.
struct HalfThread {
  int warp;  // of the half
  int lane;

  __device__ __forceinline__ HalfThread()
      : warp(keep(static_cast<int>(threadIdx.x / kWarpLanes % kRowsWarps))),
        lane(keep(static_cast<int>(threadIdx.x % kWarpLanes))) {}
  __device__ __forceinline__ int half() const { return static_cast<int>(threadIdx.x / kRowsThreads); }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x % kRowsThreads); }
  // Of the half.
  __device__ __forceinline__ void barrier() const { numbered_barrier<kRowsThreads>(1 + half()); }
  // Of the two warps, one of each half, that read the same slices.
  __device__ __forceinline__ void pair_barrier() const { numbered_barrier<kHalves * kWarpLanes>(1 + kHalves + warp); }
};

// Barriers of a block: those of HalfThread, of groups that attend, of all that compute, and of these and those that
// finish.
inline constexpr int kFirstGroupBarrier = 1 + kHalves + kRowsWarps;
inline constexpr int kBeginningBarrier = kFirstGroupBarrier + kRowsGroups;
inline constexpr int kBlockBarrier = kBeginningBarrier + 1;
static_assert(kBlockBarrier < kNumberedBarriers);

}  // namespace genai::cuda
