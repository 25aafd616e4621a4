// program.cuh - what the kernel of a decode step's operations is told (program.cu), and the memory it has.
//
// NOTE [Program]
// A program is a list of operations for one row, run by one kernel whose blocks, one a multiprocessor, stay until its
// end: products, and attention with the rotation ahead of it. One warp of a block copies weights, keys and values into
// a ring in shared memory in the order of the list and never waits for an operation to begin, so that the memory works
// while vectors are handed over; sixteen warps consume, and one more finishes what they have added up. What an
// operation writes and a later one of the same program reads is handed over from block to block (cells.cuh): no barrier
// of the grid, no fence, no flag. Rows that host cores compute are asked for and handed over by the blocks in the same
// way (program_host.cuh); one request is open at a time, since whoever publishes a tile of the next one has read what
// was made of all answers to the last. No block can write a vector's next generation while another still reads the last
// one: whoever reads a vector writes something that every block waits for before (program_builder.cuh). Nor can a block
// come to a vector before its time and take an old generation for the one that it waits for: every block has a share of
// every product, so that none is ahead of the others by more than one operation; where a product has few rows, there
// are fewer blocks. All blocks must be there at the same time: at most one a multiprocessor, and nothing that waits for
// them before them.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/row_units.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kProgramGroups = 4;
inline constexpr int kProgramGroupWarps = 4;
inline constexpr int kConsumerThreads = kProgramGroups * kProgramGroupWarps * 32;
inline constexpr int kFinishingWarp = kConsumerThreads / 32;
inline constexpr int kCopyingWarp = kFinishingWarp + 1;
inline constexpr int kProgramThreads = (kCopyingWarp + 1) * 32;

// A vector that an operation writes.
struct ProgramOutput {
  int words;    // index of its first word; negative: not handed over
  int before;   // of the last generation, which is cleared; negative: there is none
  bool stores;  // this is the last one, which must be in memory in the end
};

// One element of it, which `out` is in memory.
__device__ __forceinline__ void store_output(const ProgramOutput& vector, unsigned* words, float* out, int place,
                                             float value) {
  if (vector.words >= 0) hand_over(words + vector.words + place, value);
  if (vector.before >= 0) store_word(words + vector.before + place, kNoWord);
  if (vector.stores) out[place] = value;
}

// A vector that an operation reads: in memory from before the program, or handed over inside of it.
struct ProgramInput {
  const float* values;
  int words;  // index of its first word; negative: in `values`
};

struct ProgramProduct {
  int share;      // its place in the table of shares, BlockShare
  int host_rows;  // in the table of those; negative: none
  StreamShape shape;
  UnitCut cut;  // of a strip of the type that takes the most bytes
  ProgramOutput outputs[kMaxStreamOutputs];
  ProgramInput input;
  const float* norm_weight;  // null: none
  float norm_epsilon;
  int cols;
  float soft_cap;
  Epilogue epilogue;
};

// Rotation, attention over all chunks, and their merge.
struct ProgramAttention {
  ProgramInput q;
  ProgramInput k;
  ProgramInput v;
  const float* q_norm;
  const float* k_norm;
  const float* table;
  float* q_out;  // rotated queries, where RotateArgs wants them
  float* out;
  ProgramOutput output;  // `out`
  bool stores_q;
  int partials;  // the first cell of what chunks leave behind (program_partials.cuh)
  float norm_epsilon;
  int rotated;
  bool interleaved;
  int head_count;
  HeadUnits units;
  HeadUnits small_units;  // for no more chunks than the next number
  int most_small_chunks;
  float scale;
  int window;
  float soft_cap;
  int chunk_capacity;
  CacheView cache;

  // Where there are few chunks, fewer heads at a time give more blocks something to do.
  __device__ __forceinline__ const HeadUnits& units_of(bool small) const { return small ? small_units : units; }
};

enum class ProgramOpKind : int { product, attention };

struct ProgramOp {
  ProgramOp() : kind(ProgramOpKind::product), product{} {}
  ProgramOpKind kind;
  union {
    ProgramProduct product;
    ProgramAttention attention;
  };
};

// Offsets in dynamic shared memory. The ring is at 0.
struct ProgramLayout {
  int slot_bytes;
  int scales;
  int sums;
  int quants;
  int staged;    // floats of a row that has a norm, behind its quants
  int reduce;    // the norm's partial sums
  int exchange;  // ProgramExchange
  int shares;    // [operation] BlockShare
  int barriers;
  int total;
};

// Rows of a product's outputs, behind its own, that host cores compute (program_host.cuh).
struct ProgramHostRows {
  struct Answer {
    const ExchangeWord* results;
    int width;  // 0: none
  };
  unsigned number;  // of the request, within the pass
  int job;
  Answer answers[kMaxStreamOutputs];
};
inline constexpr int kMaxProgramHostRows = 32;

// Where they are asked; the number in words of a request is *finished plus its own.
struct ProgramHost {
  ExchangeWord* request;
  const std::uint32_t* finished;
};

inline constexpr int kProgramParameterBytes = 32 * 1024 - 4;  // that a launch can carry
inline constexpr int kMaxProgramOps =
    (kProgramParameterBytes - 144 - kMaxProgramHostRows * static_cast<int>(sizeof(ProgramHostRows))) /
    static_cast<int>(sizeof(ProgramOp));
static_assert(kMaxProgramOps < 256, "a tag has eight bits for the generation");

struct RowProgram {
  HandoverMemory handover;
  const StepRow* rows;
  ProgramLayout layout;
  int unit_strips;
  int window;  // stages on their way at once
  int block_count;
  int op_count;
  ProgramHost host;
  ProgramHostRows host_rows[kMaxProgramHostRows];
  ProgramOp ops[kMaxProgramOps];
};
static_assert(sizeof(RowProgram) <= kProgramParameterBytes);

}  // namespace genai::cuda
