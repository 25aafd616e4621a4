// kernels.h - every operation of a forward pass, one method each. Methods enqueue on the stream and return; they never
// allocate, synchronise or read device memory on the host, so all of them are legal inside a capture. Arguments are
// plain structs, copied when enqueued. The arithmetic of each, to the bit, is in engine/README.md.
//
// Letters in comments: M rows of activations in this pass (prompt tokens, or one token of each sequence), K width of
// the input, N rows of a matrix, H query heads, G key-value heads, D head_dim. Activations are f32, row-major.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device/device_ptr.h"
#include "engine/device/stream.h"
#include "engine/dtype.h"

namespace genai {

// A matrix in the layout of packed_layout.h.
struct MatrixView {
  DevicePtr<const std::byte> data;
  DType dtype = DType::F32;
  std::int32_t rows = 0;  // N
  std::int32_t cols = 0;  // K
};

// One row of a pass: which token stands where in which sequence. Lives in device memory, so that a captured graph sees
// new values without being captured again.
struct StepRow {
  std::int32_t token;
  std::int32_t position;  // 0-based, absolute; also the number of positions before it in the cache
  std::int32_t sequence;
  std::int32_t reserved;
};

// x[m] = scale * matrix[rows[m].token]                                    x (M, cols)
struct EmbedArgs {
  MatrixView matrix;  // rows a multiple of 8 where more follow elsewhere
  DevicePtr<const StepRow> rows;
  std::int32_t row_count;
  float scale;
  DevicePtr<float> out;
  MatrixView rest{};  // the rows behind those of `matrix`, of the same type and width; rows == 0: none
};

enum class Epilogue : std::uint8_t {
  store,       // out = y
  add,         // out = out + y
  gated_silu,  // matrix rows alternate gate, up: out[i] = silu(y[2i]) * y[2i+1]
  gated_gelu,  // the same with the tanh form of GELU
};

constexpr bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::gated_silu || epilogue == Epilogue::gated_gelu;
}

struct MatmulOutput {
  MatrixView matrix;
  DevicePtr<const float> bias;  // (N), may be null
  DevicePtr<float> out;         // (M, N), or (M, N/2) for a gated epilogue
  std::int32_t out_stride;      // elements from one row of out to the next
};

// Outputs of a row of activations: gate and up rows give one together.
constexpr std::int32_t output_width(const MatmulOutput& output, Epilogue epilogue) {
  return is_gated(epilogue) ? output.matrix.rows / 2 : output.matrix.rows;
}

// y = matrix * norm(x) + bias for up to three matrices that read the same input; then the epilogue.
struct MatmulArgs {
  static constexpr int kMaxOutputs = 3;
  DevicePtr<const float> input;        // (M, K)
  std::int32_t input_stride;           // elements
  std::int32_t row_count;              // M
  DevicePtr<const float> norm_weight;  // (K): RMS norm before the product; null: none
  float norm_epsilon;
  MatmulOutput outputs[kMaxOutputs];
  std::int32_t output_count;
  Epilogue epilogue;
  float soft_cap;  // out = soft_cap * tanh(out / soft_cap) after all else; 0: none
  DevicePtr<std::byte> scratch;
  DevicePtr<std::byte> handover{};  // null: every call is kernels of its own (Kernels::handover_bytes)
};

// x = x + norm(y) * weight                                                x, y (M, width)
struct NormAddArgs {
  DevicePtr<float> x;
  DevicePtr<const float> y;
  DevicePtr<const float> weight;
  float epsilon;
  std::int32_t row_count;
  std::int32_t width;
};

// out[i] = act(gate[i]) * up[i], for gate and up matrices that could not be interleaved.   all (M, width)
struct GateArgs {
  DevicePtr<const float> gate;
  DevicePtr<const float> up;
  DevicePtr<float> out;
  Epilogue activation;  // gated_silu or gated_gelu
  std::int32_t row_count;
  std::int32_t width;
};

enum class CacheType : std::uint8_t { f16, f32 };

inline constexpr int kChunkPositions = 64;

// Where keys and values lie: chunks of 64 positions, each [layer][k|v][G][64*D], contiguous for one sequence.
// Keys of one head in one chunk are stored [D/8][64][8], values [64][D].
struct CacheView {
  DevicePtr<std::byte> base;
  std::int64_t sequence_stride_bytes;
  std::int64_t chunk_bytes;
  std::int64_t layer_offset_bytes;  // of this layer inside a chunk; values follow the keys
  CacheType type;
  std::int32_t kv_head_count;  // G
  std::int32_t head_dim;       // D, a multiple of 8

  bool operator==(const CacheView&) const = default;
};

// Normalises and rotates q in place, normalises and rotates k into the cache, stores v into the cache.
struct RotateArgs {
  DevicePtr<float> q;             // (M, H, D)
  DevicePtr<const float> k;       // (M, G, D)
  DevicePtr<const float> v;       // (M, G, D)
  DevicePtr<const float> q_norm;  // (D) or null
  DevicePtr<const float> k_norm;  // (D) or null
  float norm_epsilon;
  DevicePtr<const float> table;  // [position][rotated/2] pairs (cosine, sine)
  std::int32_t rotated;          // leading elements of a head that turn; even, <= D
  bool interleaved;              // pairs (2i, 2i+1), else (i, i + rotated/2)
  DevicePtr<const StepRow> rows;
  std::int32_t row_count;
  std::int32_t head_count;  // H
  CacheView cache;
};

// out = softmax(scale * q k^T) v over the positions up to and including the row's own.
struct AttentionArgs {
  DevicePtr<const float> q;  // (M, H, D)
  DevicePtr<float> out;      // (M, H, D)
  DevicePtr<const StepRow> rows;
  std::int32_t row_count;
  std::int32_t head_count;
  float scale;
  std::int32_t window;         // positions visible, the row's own included; 0: all
  float soft_cap;              // score = soft_cap * tanh(score / soft_cap); 0: none
  std::int32_t max_positions;  // capacity of a sequence, for launch shapes and scratch
  CacheView cache;
  DevicePtr<std::byte> scratch;
  DevicePtr<std::byte> handover{};
};

// token[m] = index of the highest logit, the lowest one on a tie, NaN never; -1 where all are NaN.
// Also counts non-finite logits, and adds to the logits hash (engine/README.md).
struct ArgmaxArgs {
  DevicePtr<const float> logits;  // (M, width)
  std::int32_t row_count;
  std::int32_t width;
  DevicePtr<const StepRow> rows;      // position keys the hash
  DevicePtr<std::int32_t> tokens;     // (M)
  DevicePtr<std::uint64_t> hashes;    // (M): hash of this row's logits
  DevicePtr<std::int32_t> nonfinite;  // (M): how many are NaN or infinite
};

// rows[m].token = tokens[m]; rows[m].position += 1
struct AdvanceArgs {
  DevicePtr<StepRow> rows;
  DevicePtr<const std::int32_t> tokens;
  std::int32_t row_count;
};

// A word of host memory by which a device and host cores talk. What is in it (engine/exchange_words.h) is none of the
// seam's business; where both names are known, they must be of one type.
using ExchangeWord = std::uint64_t;

// Requests to host cores, in such words, are numbered within a pass, from 1 on. The number in their words is *finished
// plus that. `finished` lies in device memory, is 0 at first, and changes nowhere but in finish_requests: so a kernel
// may read it, and look for results, while kernels ahead of it still run.

// Puts norm(input), quantised or as it is, and the header of `job` into the words of a request.
struct AskHostArgs {
  DevicePtr<const float> input;  // (M, K)
  std::int32_t input_stride;     // elements
  std::int32_t row_count;
  std::int32_t width;                  // K
  DevicePtr<const float> norm_weight;  // (K): RMS norm; null: none
  float norm_epsilon;
  bool quantize;
  DevicePtr<ExchangeWord> request;  // in host memory: header, then M rows
  DevicePtr<const std::uint32_t> finished;
  std::uint32_t number;
  std::int32_t job;
};

// Once all results of the request are there: out = result, or out = out + result.
struct TakeAnswerArgs {
  struct Output {
    DevicePtr<const ExchangeWord> result;  // (M, width), in host memory
    std::int32_t width;
    DevicePtr<float> out;
    std::int32_t out_stride;  // elements
  };
  Output outputs[MatmulArgs::kMaxOutputs];
  std::int32_t output_count;
  std::int32_t row_count;
  bool add;
  DevicePtr<const std::uint32_t> finished;
  std::uint32_t number;
};

// *finished += count. Nothing enqueued behind it begins before.
struct FinishRequestsArgs {
  DevicePtr<std::uint32_t> finished;
  std::uint32_t count;
};

// The largest shapes that scratch memory must serve.
struct ScratchLimits {
  std::int32_t row_count;
  std::int32_t input_width;
  std::int32_t head_count;
  std::int32_t head_dim;
  std::int32_t max_positions;
};

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::size_t scratch_bytes(const ScratchLimits& limits) const = 0;
  // Memory by which one kernel may serve several calls of one row on one stream, one handing over to the next, and
  // parts of a call hand over to each other. All zero before the first call that has it, and nobody else's. 0: no use
  // for it.
  virtual std::size_t handover_bytes(const ScratchLimits& limits) const = 0;
  virtual void embed(Stream& stream, const EmbedArgs& args) = 0;
  virtual void matmul(Stream& stream, const MatmulArgs& args) = 0;
  virtual void norm_add(Stream& stream, const NormAddArgs& args) = 0;
  virtual void gate(Stream& stream, const GateArgs& args) = 0;
  virtual void rotate(Stream& stream, const RotateArgs& args) = 0;
  virtual void attention(Stream& stream, const AttentionArgs& args) = 0;
  virtual void argmax(Stream& stream, const ArgmaxArgs& args) = 0;
  virtual void advance_step(Stream& stream, const AdvanceArgs& args) = 0;
  // The other side of these is HostLane (residency/host_lane.h). Whatever is enqueued behind take_answer waits for it.
  virtual void ask_host(Stream& stream, const AskHostArgs& args) = 0;
  virtual void take_answer(Stream& stream, const TakeAnswerArgs& args) = 0;
  virtual void finish_requests(Stream& stream, const FinishRequestsArgs& args) = 0;
};

}  // namespace genai
