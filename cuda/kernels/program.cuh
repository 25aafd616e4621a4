// program.cuh - what the kernel of a decode step's operations is told (program.cu), and the memory it has.
//
// NOTE [Program]
// A program is a list of operations for one row, run by one kernel whose blocks, one a multiprocessor, stay until its
// end: products, and attention with the rotation ahead of it. One warp of a block copies weights, keys and values into
// a ring in shared memory in the order of the list and never waits for an operation to begin, so that the memory works
// while vectors are handed over; sixteen warps consume, and one more finishes what they have added up. What an
// operation writes and a later one of the same program reads is handed over from block to block (handover.cuh): no
// barrier of the grid, no fence, no flag. Rows that host cores compute are asked for and handed over by the blocks in
// the same way (program_host.cuh); one request is open at a time, since whoever publishes a tile of the next one has
// read what was made of all answers to the last. No block can write a vector's next generation while another still
// reads the last one: whoever reads a vector writes something that every block waits for before (program_builder.cuh).
// Nor can a block come to a vector before its time and take an old generation for the one that it waits for: every
// block has a share of every product, so that none is ahead of the others by more than one operation; where a product
// has few rows, there are fewer blocks. All blocks must be there at the same time: at most one a multiprocessor, and
// nothing that waits for them before them.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/attention_split.cuh"
#include "cuda/kernels/handover.cuh"
#include "cuda/kernels/row_units.cuh"
#include "cuda/kernels/weight_stream.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

inline constexpr int kProgramGroups = 4;
inline constexpr int kProgramGroupWarps = 4;
inline constexpr int kConsumerThreads = kProgramGroups * kProgramGroupWarps * 32;
inline constexpr int kConsumerWarps = kConsumerThreads / 32;
inline constexpr int kFinishingWarp = kConsumerWarps;
inline constexpr int kCopyingWarp = kFinishingWarp + 1;
inline constexpr int kProgramThreads = (kCopyingWarp + 1) * 32;

// A vector that an operation writes.
struct ProgramOutput {
  int words;            // index of its first word; negative: not handed over
  int before;           // of the last generation, which is cleared; negative: there is none
  int quantized_width;  // not 0: so many elements, handed over as int8 (program_quants.cuh)
  bool stores;          // this is the last one, which must be in memory in the end
};

// One element of it, which `out` is in memory. Blocks of int8 are handed over for themselves.
__device__ __forceinline__ void store_output(const ProgramOutput& vector, unsigned* words, float* out, int place,
                                             float value) {
  if (vector.stores) out[place] = value;
  if (vector.quantized_width != 0) return;
  if (vector.words >= 0) hand_over(words + vector.words + place, value);
  if (vector.before >= 0) store_word(words + vector.before + place, kNoWord);
}

// A vector that an operation reads: in memory from before the program, or handed over inside of it.
struct ProgramInput {
  const float* values;
  int words;  // index of its first word; negative: in `values`
  bool quantized;
};

// An operation is told of in two parts, since what a launch can carry is little: what is the same in all layers, and
// what is not.

// Where a generation of an output lies, as in ProgramOutput.
struct OutputPlace {
  int words;
  int before;
};

struct ProductKind {
  int share;          // its place in the table of shares, BlockShare
  StreamShape shape;  // without weights and biases
  UnitCut cut;        // of a strip of the type that takes the most bytes
  const float* input;
  bool input_quantized;  // where it is handed over
  int quantized_width;   // of the first output, where it is handed over
  float norm_epsilon;
  int cols;
  float soft_cap;
  Epilogue epilogue;

  bool operator==(const ProductKind&) const = default;
};

struct ProductCall {
  int host_rows;  // in the table of those; negative: none
  int input_words;
  const TileBytes* weights[kMaxStreamOutputs];
  const float* biases[kMaxStreamOutputs];
  const float* norm_weight;  // null: none
  OutputPlace places[kMaxStreamOutputs];
  unsigned stores;  // a bit for each output
};

// Rotation, attention over all chunks, and their merge.
struct AttentionKind {
  const float* table;
  float* q_out;  // rotated queries, where RotateArgs wants them
  float* out;
  bool quantizes;  // the output, where it is handed over
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
  CacheView cache;  // of layer 0

  // Where there are few chunks, fewer heads at a time give more blocks something to do.
  __device__ __forceinline__ const HeadUnits& units_of(bool small) const { return small ? small_units : units; }
  bool operator==(const AttentionKind&) const = default;
};

struct AttentionCall {
  int q_words;  // of what it reads
  int k_words;
  int v_words;
  int turn;  // where chunks leave something behind (program_partials.cuh)
  const float* q_norm;
  const float* k_norm;
  OutputPlace place;
  bool stores;
  bool stores_q;
  std::int64_t layer_offset_bytes;  // CacheView
};

enum class ProgramOpKind : int { product, attention };

struct ProgramOp {
  ProgramOp() : type(ProgramOpKind::product), kind(0), product{} {}
  ProgramOpKind type;
  int kind;  // in the table of those of its type
  union {
    ProductCall product;
    AttentionCall attention;
  };
};

// Both parts together, as a kernel sees them.
struct ProgramProduct {
  const ProductKind& kind;
  const ProductCall& call;

  __device__ __forceinline__ ProgramInput input() const {
    return {kind.input, call.input_words, kind.input_quantized && call.input_words >= 0};
  }
  __device__ __forceinline__ ProgramOutput output(int index) const {
    const OutputPlace& place = call.places[index];
    return {place.words, place.before, place.words >= 0 && index == 0 ? kind.quantized_width : 0,
            (call.stores >> index & 1) != 0};
  }
};

struct ProgramAttention {
  const AttentionKind& kind;
  const AttentionCall& call;

  __device__ __forceinline__ ProgramOutput output() const {
    return {call.place.words, call.place.before,
            kind.quantizes && call.place.words >= 0 ? kind.head_count * kind.cache.head_dim : 0, call.stores};
  }
};

// How far a consuming warp is. In shared memory, and read where it is needed: in registers attention would spill it,
// and what is spilled takes a microsecond to come back, as hardly any first-level cache is left beside shared memory.
// All lanes write the same, and meet between reading and writing.
struct alignas(16) Progress {
  unsigned launch;
  int op;
  int stage;
  int round;
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
  int progress;  // [consuming warp] Progress
  int shares;    // [kind of product] BlockShare
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
inline constexpr int kMaxProductKinds = 12;
inline constexpr int kMaxAttentionKinds = 4;
inline constexpr int kMaxProgramOps =
    (kProgramParameterBytes - 160 - kMaxProgramHostRows * static_cast<int>(sizeof(ProgramHostRows)) -
     kMaxProductKinds * static_cast<int>(sizeof(ProductKind)) -
     kMaxAttentionKinds * static_cast<int>(sizeof(AttentionKind))) /
    static_cast<int>(sizeof(ProgramOp));

struct RowProgram {
  HandoverMemory handover;
  const StepRow* rows;
  ProgramLayout layout;
  int unit_strips;
  int window;  // stages on their way at once
  int block_count;
  int op_count;
  int product_kind_count;
  int attention_kind_count;
  ProgramHost host;
  ProgramHostRows host_rows[kMaxProgramHostRows];
  ProductKind product_kinds[kMaxProductKinds];
  AttentionKind attention_kinds[kMaxAttentionKinds];
  ProgramOp ops[kMaxProgramOps];

  __device__ __forceinline__ ProgramProduct product(const ProgramOp& op) const {
    return {product_kinds[op.kind], op.product};
  }
  __device__ __forceinline__ ProgramAttention attention(const ProgramOp& op) const {
    return {attention_kinds[op.kind], op.attention};
  }
};
static_assert(sizeof(RowProgram) <= kProgramParameterBytes);

}  // namespace genai::cuda
