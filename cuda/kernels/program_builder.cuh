// program_builder.cuh - makes a program (program.cuh) of calls, on the host: which vectors are handed over inside of
// it, and how shared memory is laid out.
#pragma once
#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/program_attention.cuh"
#include "cuda/kernels/program_host_call.cuh"
#include "cuda/kernels/program_product.cuh"
#include "cuda/kernels/program_types.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

// Stages on their way at once. With more, the memory is faster, but what is handed over comes later, and a step is
// slower (measured on an H200: 2 % with three, 4 % with four).
inline constexpr int kRingWindow = 2;

// A gated product's outputs from so many on are handed over as int8: for fewer, gathering them takes longer than it
// saves (measured on an H200: 2 % of a step slower with 4864, 2 % faster with 13824).
inline constexpr int kFewestGathered = 8192;

class ProgramBuilder {
 public:
  explicit ProgramBuilder(const DeviceTraits& traits) : traits_(traits), program_(std::make_unique<RowProgram>()) {
    program_->window = kRingWindow;
    program_->block_count = std::min(traits.sm_count, HandoverMemory::kMaxBlocks);
  }

  // False where the call cannot be part of this program; it is then as it was.
  bool add(const MatmulArgs& args) { return add(args, HostCall{}); }
  // Three calls as the forward pass makes them.
  bool add(const AskHostArgs& ask, const MatmulArgs& args, const TakeAnswerArgs& answer) {
    const HostCall host{&ask, &answer};
    return host.goes_with(args) && add(args, host);
  }
  bool add(const RotateArgs& rotate, const AttentionArgs& attention);

  int op_count() const { return program_->op_count; }
  ProgramTypes types() const { return candidates_.front(); }
  // Null where shared memory does not do.
  const RowProgram* finish();

 private:
  // Vectors, as numbers: an operation's outputs are 3 * index and on.
  using VectorSet = std::bitset<kMaxStreamOutputs * kMaxProgramOps>;

  using OutputTypes = std::array<DType, kMaxStreamOutputs>;

  struct OpFacts {
    VectorSet outputs;
    VectorSet known;  // what was written whole before any block writes an output
  };

  enum class Handover { none, values, blocks };  // blocks: of 32, or values

  // A vector of the program, in its latest generation.
  struct Vector {
    std::uint64_t address;
    int width;
    unsigned generation;  // 0: from before the program
    int output;           // of the operation that wrote it
    bool handed_over;     // this generation
    int first_place;      // of its words; negative: it has none
    int words;            // of a place
    int place;            // that of the last generation handed over; negative: there is none
    bool quantized;  // as int8: all who read it, in any generation, round it, and all who write it have whole blocks
    std::vector<int> readers;

    std::uint64_t end() const { return address + 4 * static_cast<std::uint64_t>(width); }
  };

  bool add(const MatmulArgs& args, const HostCall& host);
  bool takes_host(const HostCall& host, const VectorSet& known) const;
  void add_host_rows(const HostCall& host, const MatmulArgs& args, ProductCall& call);
  int kind_of(const MatmulArgs& args);

  Vector* find(std::uint64_t address, int width);
  Vector& find_or_add(std::uint64_t address, int width);
  bool is_whole(std::uint64_t address, int width);
  static int most_sharing_blocks(const MatmulArgs& args);
  static bool is_readable(const Vector* vector) {
    return vector == nullptr || vector->generation == 0 || vector->handed_over;
  }
  VectorSet known_behind(const Vector* input) const;
  // Every block has written its share of the operation's outputs by the time when any block knows what is in `known`.
  bool is_over(int op, const VectorSet& known) const {
    return (facts_[static_cast<std::size_t>(op)].outputs & ~known).none();
  }
  bool may_write(std::uint64_t address, int width, bool adds, const VectorSet& known);
  int read(std::uint64_t address, int width, bool rounds);
  OutputPlace write(std::uint64_t address, int width, int output, Handover handover);
  void quantize_handovers();
  bool takes_handover(DevicePtr<std::byte> handover);
  bool takes_types(const MatmulArgs& args);
  ProgramLayout layout(int unit_strips) const;
  UnitCut cut(int kind) const;
  int most_fitting_strips() const;
  void spread_attention(AttentionKind& kind) const;

  const DeviceTraits& traits_;
  std::vector<ProgramTypes> candidates_{kProgramTypes.begin(), kProgramTypes.end()};  // that read all matrices so far
  std::unique_ptr<RowProgram> program_;
  std::vector<OpFacts> facts_;           // an operation each
  std::vector<OutputTypes> kind_types_;  // a kind of product each
  std::vector<Vector> vectors_;
  int used_words_ = 0;
  int host_rows_count_ = 0;
  int last_asking_op_ = -1;
  int share_numbers_ = 0;
  int widest_ = 0;         // input
  int widest_normed_ = 0;  // input that has a norm
  int attention_count_ = 0;
  int slot_bytes_needed_ = 2 * tile_layout(DType::Q8_0).tile_bytes;  // an octet of blocks at least
};

inline ProgramBuilder::Vector* ProgramBuilder::find(std::uint64_t address, int width) {
  for (Vector& vector : vectors_)
    if (vector.address == address && vector.width == width) return &vector;
  return nullptr;
}

inline ProgramBuilder::Vector& ProgramBuilder::find_or_add(std::uint64_t address, int width) {
  if (Vector* const vector = find(address, width)) return *vector;
  return vectors_.emplace_back(Vector{address, width, 0, 0, false, -1, 0, -1, true, {}});
}

// Nothing of the program lies there, or exactly one of its vectors does.
inline bool ProgramBuilder::is_whole(std::uint64_t address, int width) {
  if (find(address, width) != nullptr) return true;
  const std::uint64_t end = address + 4 * static_cast<std::uint64_t>(width);
  return std::none_of(vectors_.begin(), vectors_.end(),
                      [&](const Vector& vector) { return address < vector.end() && vector.address < end; });
}

// So many blocks all get a strip of the product: a block owns those whose middle lies in its part of the bytes.
inline int ProgramBuilder::most_sharing_blocks(const MatmulArgs& args) {
  std::int64_t bytes = 0;
  std::int64_t widest = 1;
  for (int i = 0; i < args.output_count; ++i) {
    const std::int64_t tile_bytes = tile_layout(args.outputs[i].matrix.dtype).tile_bytes;
    bytes += tile_bytes * strip_count(args.outputs[i].matrix.rows);
    widest = std::max(widest, tile_bytes);
  }
  return static_cast<int>(std::min<std::int64_t>(bytes / widest, HandoverMemory::kMaxBlocks));
}

// What was written whole once a block has read all of `input`.
inline ProgramBuilder::VectorSet ProgramBuilder::known_behind(const Vector* input) const {
  if (input == nullptr || input->generation == 0) return {};
  VectorSet known = facts_[input->generation - 1].known;
  known.set(kMaxStreamOutputs * (input->generation - 1) + static_cast<unsigned>(input->output));
  return known;
}

// Whether by the time when any block writes the next generation every block has read and written the last one. `adds`:
// an element is read by whoever writes it.
inline bool ProgramBuilder::may_write(std::uint64_t address, int width, bool adds, const VectorSet& known) {
  const Vector* vector = find(address, width);
  if (vector == nullptr) return is_whole(address, width);
  if (vector->generation > 0 && !adds && !is_over(static_cast<int>(vector->generation) - 1, known)) return false;
  return std::all_of(vector->readers.begin(), vector->readers.end(), [&](int op) { return is_over(op, known); });
}

// Where its words begin; negative: it is in memory. `rounds`: as the quantised input of a product and nothing else.
inline int ProgramBuilder::read(std::uint64_t address, int width, bool rounds) {
  Vector* const vector = &find_or_add(address, width);
  vector->readers.push_back(program_->op_count - 1);
  vector->quantized &= rounds;
  return vector->handed_over ? vector->place : -1;
}

// The next generation, by the youngest operation.
inline OutputPlace ProgramBuilder::write(std::uint64_t address, int width, int output, Handover handover) {
  Vector* const vector = &find_or_add(address, width);
  vector->quantized &= handover == Handover::blocks;
  if (vector->generation > 0)  // these two cut vectors in ways of their own
    vector->quantized &= program_->ops[vector->generation - 1].type == program_->ops[program_->op_count - 1].type;
  const int words = ((vector->quantized ? quantized_words(width) : width) + 3) / 4 * 4;  // quads are read together
  if (handover != Handover::none && vector->first_place < 0 &&
      used_words_ + HandoverMemory::kPlaces * words <= HandoverMemory::kRegionWords) {
    vector->first_place = used_words_;
    vector->words = words;
    used_words_ += HandoverMemory::kPlaces * words;
  }
  OutputPlace written = {-1, -1};
  if (handover != Handover::none && vector->first_place >= 0) {
    written.before = vector->place;
    const int places = HandoverMemory::kPlaces * vector->words;
    vector->place = vector->place < 0
                        ? vector->first_place
                        : vector->first_place + (vector->place - vector->first_place + vector->words) % places;
    written.words = vector->place;
  }
  vector->generation = static_cast<unsigned>(program_->op_count);
  vector->output = output;
  vector->handed_over = written.words >= 0;
  vector->readers.clear();
  return written;
}

inline void ProgramBuilder::quantize_handovers() {
  const auto address = [](const float* values) { return reinterpret_cast<std::uint64_t>(values); };
  for (const Vector& vector : vectors_) {
    if (!vector.quantized || vector.first_place < 0) continue;
    for (int i = 0; i < program_->product_kind_count; ++i) {
      ProductKind& kind = program_->product_kinds[i];
      if (address(kind.shape.outputs[0].out) == vector.address) kind.quantized_width = vector.width;
      if (address(kind.input) == vector.address) kind.input_quantized = true;
    }
    for (int i = 0; i < program_->attention_kind_count; ++i)
      if (AttentionKind& kind = program_->attention_kinds[i]; address(kind.out) == vector.address)
        kind.quantizes = true;
  }
}

inline bool ProgramBuilder::takes_handover(DevicePtr<std::byte> handover) {
  unsigned char* base = reinterpret_cast<unsigned char*>(handover.address());
  if (program_->op_count > 0) return base == program_->handover.base;
  program_->handover.base = base;
  return base != nullptr;
}

inline bool ProgramBuilder::takes_types(const MatmulArgs& args) {
  std::vector<ProgramTypes> left = candidates_;
  std::erase_if(left, [&](const ProgramTypes& types) { return !types.read(args); });
  if (left.empty()) return false;
  candidates_ = std::move(left);
  return true;
}

// Whether there is room for the request, and all answers to the one before are taken when it is made.
inline bool ProgramBuilder::takes_host(const HostCall& host, const VectorSet& known) const {
  if (host_rows_count_ == kMaxProgramHostRows) return false;
  if (host_rows_count_ == 0) return true;
  return is_over(last_asking_op_, known) && host.place().request == program_->host.request &&
         host.place().finished == program_->host.finished;
}

// Those of the youngest operation.
inline void ProgramBuilder::add_host_rows(const HostCall& host, const MatmulArgs& args, ProductCall& call) {
  program_->host = host.place();
  program_->host_rows[host_rows_count_] = host.rows_of(args);
  call.host_rows = host_rows_count_++;
  last_asking_op_ = program_->op_count - 1;
}

// The number of its kind; negative: there is no room for another one.
inline int ProgramBuilder::kind_of(const MatmulArgs& args) {
  ProductKind kind = {};
  OutputTypes types = {};
  kind.shape.output_count = args.output_count;
  kind.shape.tile_count = static_cast<int>(padded_width(args.outputs[0].matrix.cols) / kTileWidth);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.output_count); ++i) {
    types[i] = args.outputs[i].matrix.dtype;
    kind.shape.outputs[i] = stream_output(args.outputs[i], types[i]);
    kind.shape.outputs[i].weights = nullptr;
    kind.shape.outputs[i].bias = nullptr;
  }
  kind.input = reinterpret_cast<const float*>(args.input.address());
  kind.norm_epsilon = args.norm_epsilon;
  kind.cols = args.outputs[0].matrix.cols;
  kind.soft_cap = args.soft_cap;
  kind.epilogue = args.epilogue;
  int& count = program_->product_kind_count;
  for (int i = 0; i < count; ++i) {
    kind.share = program_->product_kinds[i].share;
    if (kind == program_->product_kinds[i] && types == kind_types_[static_cast<std::size_t>(i)]) return i;
  }
  if (count == kMaxProductKinds) return -1;
  kind.share = share_numbers_;
  share_numbers_ += BlockShare::numbers(args.output_count);
  kind_types_.push_back(types);
  program_->product_kinds[count] = kind;
  return count++;
}

inline bool ProgramBuilder::add(const MatmulArgs& args, const HostCall& host) {
  if (program_->op_count == kMaxProgramOps || !matmul_row_serves(traits_, args)) return false;
  const bool adds = args.epilogue == Epilogue::add;
  const int cols = args.outputs[0].matrix.cols;
  if (!is_whole(args.input.address(), cols)) return false;
  const Vector* source = find(args.input.address(), cols);
  if (!is_readable(source)) return false;
  const VectorSet known = known_behind(source);
  for (int i = 0; i < args.output_count; ++i) {
    const MatmulOutput& output = args.outputs[i];
    const int width = host.whole_width(output, args.epilogue);
    if (output.matrix.rows == 0 || !may_write(output.out.address(), width, adds, known)) return false;
    const Vector* before = find(output.out.address(), width);
    if (adds && !is_readable(before)) return false;
    if (adds && args.output_count != 1) return false;
  }
  if (host.ask != nullptr && !takes_host(host, known)) return false;
  if (!takes_handover(args.handover) || !takes_types(args)) return false;

  const int kind = kind_of(args);
  if (kind < 0) return false;

  const int index = program_->op_count++;
  ProgramOp& op = program_->ops[index];
  op.type = ProgramOpKind::product;
  op.kind = kind;
  ProductCall& product = op.product;
  product = {};
  product.host_rows = -1;
  product.input_words = read(args.input.address(), cols, !args.norm_weight);
  product.norm_weight = reinterpret_cast<const float*>(args.norm_weight.address());
  facts_.push_back({{}, known});
  program_->block_count = std::min(program_->block_count, most_sharing_blocks(args));
  for (int i = 0; i < args.output_count; ++i) {
    const MatmulOutput& output = args.outputs[i];
    const int width = host.whole_width(output, args.epilogue);
    product.weights[i] = reinterpret_cast<const TileBytes*>(output.matrix.data.address());
    product.biases[i] = reinterpret_cast<const float*>(output.bias.address());
    facts_.back().outputs.set(static_cast<std::size_t>(kMaxStreamOutputs * index + i));
    // What host cores compute of it comes as values.
    const bool gathers = is_gated(args.epilogue) && args.output_count == 1 && host.ask == nullptr &&
                         width % kBlockWidth == 0 && width >= kFewestGathered;
    product.places[i] = write(output.out.address(), width, i, gathers ? Handover::blocks : Handover::values);
  }
  if (host.ask != nullptr) add_host_rows(host, args, product);
  widest_ = std::max(widest_, cols);
  if (args.norm_weight) widest_normed_ = std::max(widest_normed_, cols);
  return true;
}

// A pair of calls as the forward pass makes them: attention over what the rotation has turned.
inline bool ProgramBuilder::add(const RotateArgs& rotate, const AttentionArgs& attention) {
  if (program_->op_count == 0 || program_->op_count == kMaxProgramOps) return false;
  const CacheView& cache = attention.cache;
  const int head_dim = cache.head_dim;
  const int q_width = attention.head_count * head_dim;
  const int kv_width = cache.kv_head_count * head_dim;
  if (!program_attention_serves(rotate, attention)) return false;
  Vector* const q = find(rotate.q.address(), q_width);
  Vector* const k = find(rotate.k.address(), kv_width);
  Vector* const v = find(rotate.v.address(), kv_width);
  for (const Vector* vector : {q, k, v})
    if (vector == nullptr || vector->generation == 0 || !vector->handed_over) return false;
  VectorSet known;
  for (const Vector* vector : {q, k, v}) known |= known_behind(vector);
  if (!may_write(attention.out.address(), q_width, false, known)) return false;
  if (program_->rows != nullptr && program_->rows != reinterpret_cast<const StepRow*>(attention.rows.address()))
    return false;
  if (!takes_handover(attention.handover)) return false;

  const int kind =
      number_of(attention_kind(rotate, attention), program_->attention_kinds, program_->attention_kind_count);
  if (kind < 0) return false;

  const int index = program_->op_count++;
  program_->rows = reinterpret_cast<const StepRow*>(attention.rows.address());
  ProgramOp& op = program_->ops[index];
  op.type = ProgramOpKind::attention;
  op.kind = kind;
  AttentionCall& own = op.attention;
  own = attention_call(rotate);
  own.turn = attention_count_++ % kPartialTurns;
  own.q_words = read(rotate.q.address(), q_width, false);
  own.k_words = read(rotate.k.address(), kv_width, false);
  own.v_words = read(rotate.v.address(), kv_width, false);
  facts_.push_back({{}, known});
  facts_.back().outputs.set(static_cast<std::size_t>(kMaxStreamOutputs * index));
  own.place =
      write(attention.out.address(), q_width, 0, head_dim % kBlockWidth == 0 ? Handover::blocks : Handover::values);
  write(rotate.q.address(), q_width, 1, Handover::none);
  slot_bytes_needed_ = std::max(slot_bytes_needed_, attention_slot_bytes(head_dim));
  return true;
}

inline ProgramLayout ProgramBuilder::layout(int unit_strips) const {
  const bool sums = types().have_minimum();
  const int scales = octet_count(widest_) * kOctetBlocks * 4;
  const int normed_quants = octet_count(widest_normed_) * kOctetWidth;
  const int vector = std::max(octet_count(widest_) * kOctetWidth, normed_quants + widest_normed_ * 4);
  // Attention uses the vector's place.
  const int area =
      (std::max(scales * (sums ? 2 : 1) + vector, attention_count_ > 0 ? kAttentionAreaBytes : 0) + 127) / 128 * 128;
  constexpr int kReduce = kVectorThreads / 2 * 4;
  const int exchange = kProgramGroups * 2 * unit_strips * kStripRows * kPartialStride * 4;
  const int shares = (share_numbers_ + 1) / 2 * 2 * static_cast<int>(sizeof(int));  // barriers follow
  constexpr int kProgress = kConsumerWarps * static_cast<int>(sizeof(Progress));
  const int others = area + kReduce + exchange + kProgress + shares + kProgramBarriers * 8;
  ProgramLayout layout = {};
  layout.slot_bytes = std::max((whole_shared_bytes(traits_) - others) / kRingSlots / 128 * 128, 0);
  layout.scales = kRingSlots * layout.slot_bytes;
  layout.sums = layout.scales + scales;
  layout.quants = layout.sums + (sums ? scales : 0);
  layout.staged = layout.quants + normed_quants;
  layout.reduce = layout.scales + area;
  layout.exchange = layout.reduce + kReduce;
  layout.progress = layout.exchange + exchange;
  layout.shares = layout.progress + kProgress;
  layout.barriers = layout.shares + shares;
  layout.total = layout.barriers + kProgramBarriers * 8;
  return layout;
}

// How strips of a kind of product are cut, so that all outputs have the same pieces, in a slot of the present layout.
inline UnitCut ProgramBuilder::cut(int kind) const {
  const StreamShape& shape = program_->product_kinds[kind].shape;
  const OutputTypes& types = kind_types_[static_cast<std::size_t>(kind)];
  int tile_bytes = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.output_count); ++i)
    tile_bytes = std::max(tile_bytes, tile_layout(types[i]).tile_bytes);
  return unit_cut(tile_bytes, shape.tile_count, program_->layout.slot_bytes);
}

inline int ProgramBuilder::most_fitting_strips() const {
  int most = 0;
  for (int i = 0; i < program_->product_kind_count; ++i) most = std::max(most, cut(i).fitting_strips);
  return most;
}

// Units of fewer heads, so that each block has one where a row sees 1024 positions, as long as none has more than two.
inline void ProgramBuilder::spread_attention(AttentionKind& kind) const {
  constexpr int kChunks = 1024 / kChunkPositions;
  const int kv_heads = kind.cache.kv_head_count;
  const int blocks = program_->block_count;
  const int heads = kind.units.heads_per_kv;
  const int units = std::clamp(blocks / (kChunks * kv_heads), kind.units.units_per_kv, heads);
  const int unit_heads = (heads + units - 1) / units;
  kind.small_units = {heads, (heads + unit_heads - 1) / unit_heads, unit_heads};
  kind.most_small_chunks = 2 * blocks / (kv_heads * kind.small_units.units_per_kv);
}

// Lays out shared memory, chooses the kernel, and finds what must be in memory when the program is over.
inline const RowProgram* ProgramBuilder::finish() {
  for (program_->unit_strips = kMaxUnitStrips;; program_->unit_strips /= 2) {
    program_->layout = layout(program_->unit_strips);
    if (program_->unit_strips == 1 || most_fitting_strips() >= program_->unit_strips) break;
  }
  if (program_->layout.slot_bytes < slot_bytes_needed_) return nullptr;
  for (int i = 0; i < program_->attention_kind_count; ++i) spread_attention(program_->attention_kinds[i]);
  for (int i = 0; i < program_->product_kind_count; ++i) {
    ProductKind& kind = program_->product_kinds[i];
    kind.cut = cut(i);
    for (int k = 0; k < kind.shape.output_count; ++k)
      kind.shape.outputs[k].second_type =
          kind_types_[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)] != types().first;
  }
  quantize_handovers();
  for (const Vector& vector : vectors_) {
    if (vector.generation == 0) continue;
    ProgramOp& op = program_->ops[vector.generation - 1];
    if (op.type == ProgramOpKind::product)
      op.product.stores |= 1u << vector.output;
    else
      (vector.output == 0 ? op.attention.stores : op.attention.stores_q) = true;
  }
  return program_.get();
}

}  // namespace genai::cuda
