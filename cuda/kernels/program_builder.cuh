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
#include "cuda/launch.h"

namespace genai::cuda {

// The types of a program's matrices that one kernel reads.
struct ProgramTypes {
  DType first;
  DType second;
};

// Stages on their way at once. With more, the memory is faster, but what is handed over comes later, and a step is
// slower (measured on an H200: 2 % with three, 4 % with four).
inline constexpr int kRingWindow = 2;

class ProgramBuilder {
 public:
  // One kernel for each of `kernels`; the first that reads all types of the program is taken.
  ProgramBuilder(const DeviceTraits& traits, const std::vector<ProgramTypes>& kernels)
      : traits_(traits), candidates_(kernels), program_(std::make_unique<RowProgram>()) {
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

  struct OpFacts {
    std::array<DType, kMaxStreamOutputs> dtypes;
    VectorSet outputs;
    VectorSet known;  // what was written whole before any block writes an output
  };

  // A vector of the program, in its latest generation.
  struct Vector {
    std::uint64_t address;
    int width;
    unsigned generation;  // 0: from before the program
    int output;           // of the operation that wrote it
    bool handed_over;     // this generation
    int first_place;      // of its words; negative: it has none
    int place;            // that of the last generation handed over; negative: there is none
    std::vector<int> readers;

    std::uint64_t end() const { return address + 4 * static_cast<std::uint64_t>(width); }
  };

  bool add(const MatmulArgs& args, const HostCall& host);
  bool takes_host(const HostCall& host, const VectorSet& known) const;
  void add_host_rows(const HostCall& host, const MatmulArgs& args, ProgramProduct& product);

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
  ProgramInput read(std::uint64_t address, int width);
  ProgramOutput write(std::uint64_t address, int width, int output, bool hands_over);
  bool takes_handover(DevicePtr<std::byte> handover);
  bool takes_types(const MatmulArgs& args);
  ProgramLayout layout(int unit_strips) const;
  UnitCut cut(int index) const;
  int most_fitting_strips() const;
  void spread_attention(ProgramAttention& op) const;

  const DeviceTraits& traits_;
  std::vector<ProgramTypes> candidates_;
  std::unique_ptr<RowProgram> program_;
  std::vector<OpFacts> facts_;  // an operation each
  std::vector<Vector> vectors_;
  int used_words_ = 0;
  int host_rows_count_ = 0;
  int last_asking_op_ = -1;
  int share_numbers_ = 0;
  int widest_ = 0;         // input
  int widest_normed_ = 0;  // input that has a norm
  bool has_attention_ = false;
  int slot_bytes_needed_ = 2 * tile_layout(DType::Q8_0).tile_bytes;  // an octet of blocks at least
};

inline ProgramBuilder::Vector* ProgramBuilder::find(std::uint64_t address, int width) {
  for (Vector& vector : vectors_)
    if (vector.address == address && vector.width == width) return &vector;
  return nullptr;
}

inline ProgramBuilder::Vector& ProgramBuilder::find_or_add(std::uint64_t address, int width) {
  if (Vector* const vector = find(address, width)) return *vector;
  return vectors_.emplace_back(Vector{address, width, 0, 0, false, -1, -1, {}});
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

inline ProgramInput ProgramBuilder::read(std::uint64_t address, int width) {
  Vector* const vector = &find_or_add(address, width);
  vector->readers.push_back(program_->op_count - 1);
  return {reinterpret_cast<const float*>(address), vector->handed_over ? vector->place : -1};
}

// The next generation, by the youngest operation.
inline ProgramOutput ProgramBuilder::write(std::uint64_t address, int width, int output, bool hands_over) {
  Vector* const vector = &find_or_add(address, width);
  const int words = (width + 3) / 4 * 4;  // quads are read together
  if (hands_over && vector->first_place < 0 &&
      used_words_ + HandoverMemory::kPlaces * words <= HandoverMemory::kRegionWords) {
    vector->first_place = used_words_;
    used_words_ += HandoverMemory::kPlaces * words;
  }
  ProgramOutput written = {-1, -1, false};
  if (hands_over && vector->first_place >= 0) {
    written.before = vector->place;
    const int places = HandoverMemory::kPlaces * words;
    vector->place = vector->place < 0 ? vector->first_place
                                      : vector->first_place + (vector->place - vector->first_place + words) % places;
    written.words = vector->place;
  }
  vector->generation = static_cast<unsigned>(program_->op_count);
  vector->output = output;
  vector->handed_over = written.words >= 0;
  vector->readers.clear();
  return written;
}

inline bool ProgramBuilder::takes_handover(DevicePtr<std::byte> handover) {
  unsigned char* base = reinterpret_cast<unsigned char*>(handover.address());
  if (program_->op_count > 0) return base == program_->handover.base;
  program_->handover.base = base;
  return base != nullptr;
}

inline bool ProgramBuilder::takes_types(const MatmulArgs& args) {
  std::vector<ProgramTypes> left = candidates_;
  std::erase_if(left, [&](const ProgramTypes& types) {
    return std::any_of(args.outputs, args.outputs + args.output_count, [&](const MatmulOutput& output) {
      return output.matrix.dtype != types.first && output.matrix.dtype != types.second;
    });
  });
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
inline void ProgramBuilder::add_host_rows(const HostCall& host, const MatmulArgs& args, ProgramProduct& product) {
  program_->host = host.place();
  program_->host_rows[host_rows_count_] = host.rows_of(args);
  product.host_rows = host_rows_count_++;
  last_asking_op_ = program_->op_count - 1;
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

  const int index = program_->op_count++;
  ProgramOp& op = program_->ops[index];
  op.kind = ProgramOpKind::product;
  ProgramProduct& product = op.product;
  product = {};
  product.share = share_numbers_;
  share_numbers_ += BlockShare::numbers(args.output_count);
  product.host_rows = -1;
  product.input = read(args.input.address(), cols);
  product.norm_weight = reinterpret_cast<const float*>(args.norm_weight.address());
  product.norm_epsilon = args.norm_epsilon;
  product.cols = cols;
  product.soft_cap = args.soft_cap;
  product.epilogue = args.epilogue;
  product.shape.output_count = args.output_count;
  product.shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  facts_.push_back({{}, {}, known});
  program_->block_count = std::min(program_->block_count, most_sharing_blocks(args));
  for (int i = 0; i < args.output_count; ++i) {
    const MatmulOutput& output = args.outputs[i];
    const int width = host.whole_width(output, args.epilogue);
    product.shape.outputs[i] = stream_output(output, output.matrix.dtype);
    facts_.back().dtypes[static_cast<std::size_t>(i)] = output.matrix.dtype;
    facts_.back().outputs.set(static_cast<std::size_t>(kMaxStreamOutputs * index + i));
    product.outputs[i] = write(output.out.address(), width, i, true);
  }
  if (host.ask != nullptr) add_host_rows(host, args, product);
  widest_ = std::max(widest_, cols);
  if (product.norm_weight != nullptr) widest_normed_ = std::max(widest_normed_, cols);
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

  const int index = program_->op_count++;
  program_->rows = reinterpret_cast<const StepRow*>(attention.rows.address());
  ProgramOp& op = program_->ops[index];
  op.kind = ProgramOpKind::attention;
  ProgramAttention& own = op.attention;
  own = program_attention(rotate, attention);
  own.q = read(rotate.q.address(), q_width);
  own.k = read(rotate.k.address(), kv_width);
  own.v = read(rotate.v.address(), kv_width);
  facts_.push_back({{}, {}, known});
  facts_.back().outputs.set(static_cast<std::size_t>(kMaxStreamOutputs * index));
  own.output = write(attention.out.address(), q_width, 0, true);
  write(rotate.q.address(), q_width, 1, false);
  has_attention_ = true;
  slot_bytes_needed_ = std::max(slot_bytes_needed_, attention_slot_bytes(head_dim));
  return true;
}

inline ProgramLayout ProgramBuilder::layout(int unit_strips) const {
  const bool sums = has_minimum(types().first) || has_minimum(types().second);
  const int scales = octet_count(widest_) * kOctetBlocks * 4;
  const int normed_quants = octet_count(widest_normed_) * kOctetWidth;
  const int vector = std::max(octet_count(widest_) * kOctetWidth, normed_quants + widest_normed_ * 4);
  // Attention uses the vector's place.
  const int area =
      (std::max(scales * (sums ? 2 : 1) + vector, has_attention_ ? kAttentionAreaBytes : 0) + 127) / 128 * 128;
  constexpr int kReduce = kVectorThreads / 2 * 4;
  const int exchange = kProgramGroups * 2 * unit_strips * kStripRows * kPartialStride * 4;
  const int shares = (share_numbers_ + 1) / 2 * 2 * static_cast<int>(sizeof(int));  // barriers follow
  const int others = area + kReduce + exchange + shares + kProgramBarriers * 8;
  ProgramLayout layout = {};
  layout.slot_bytes = std::max((traits_.shared_bytes_per_block - others) / kRingSlots / 128 * 128, 0);
  layout.scales = kRingSlots * layout.slot_bytes;
  layout.sums = layout.scales + scales;
  layout.quants = layout.sums + (sums ? scales : 0);
  layout.staged = layout.quants + normed_quants;
  layout.reduce = layout.scales + area;
  layout.exchange = layout.reduce + kReduce;
  layout.shares = layout.exchange + exchange;
  layout.barriers = layout.shares + shares;
  layout.total = layout.barriers + kProgramBarriers * 8;
  return layout;
}

// How strips of an operation are cut, so that all outputs have the same pieces, in a slot of the present layout.
inline UnitCut ProgramBuilder::cut(int index) const {
  const StreamShape& shape = program_->ops[index].product.shape;
  int tile_bytes = 0;
  for (int i = 0; i < shape.output_count; ++i)
    tile_bytes =
        std::max(tile_bytes,
                 tile_layout(facts_[static_cast<std::size_t>(index)].dtypes[static_cast<std::size_t>(i)]).tile_bytes);
  return unit_cut(tile_bytes, shape.tile_count, program_->layout.slot_bytes);
}

inline int ProgramBuilder::most_fitting_strips() const {
  int most = 0;
  for (int index = 0; index < program_->op_count; ++index)
    if (program_->ops[index].kind == ProgramOpKind::product) most = std::max(most, cut(index).fitting_strips);
  return most;
}

// Units of fewer heads, so that each block has one where a row sees 1024 positions, as long as none has more than two.
inline void ProgramBuilder::spread_attention(ProgramAttention& op) const {
  constexpr int kChunks = 1024 / kChunkPositions;
  const int kv_heads = op.cache.kv_head_count;
  const int blocks = program_->block_count;
  const int heads = op.units.heads_per_kv;
  const int units = std::clamp(blocks / (kChunks * kv_heads), op.units.units_per_kv, heads);
  const int unit_heads = (heads + units - 1) / units;
  op.small_units = {heads, (heads + unit_heads - 1) / unit_heads, unit_heads};
  op.most_small_chunks = 2 * blocks / (kv_heads * op.small_units.units_per_kv);
}

// Lays out shared memory, chooses the kernel, and finds what must be in memory when the program is over.
inline const RowProgram* ProgramBuilder::finish() {
  for (program_->unit_strips = kMaxUnitStrips;; program_->unit_strips /= 2) {
    program_->layout = layout(program_->unit_strips);
    if (program_->unit_strips == 1 || most_fitting_strips() >= program_->unit_strips) break;
  }
  if (program_->layout.slot_bytes < slot_bytes_needed_) return nullptr;
  for (int index = 0; index < program_->op_count; ++index) {
    if (program_->ops[index].kind == ProgramOpKind::attention) {
      spread_attention(program_->ops[index].attention);
      continue;
    }
    ProgramProduct& product = program_->ops[index].product;
    product.cut = cut(index);
    for (int i = 0; i < product.shape.output_count; ++i)
      product.shape.outputs[i].second_type =
          facts_[static_cast<std::size_t>(index)].dtypes[static_cast<std::size_t>(i)] != types().first;
  }
  for (const Vector& vector : vectors_) {
    if (vector.generation == 0) continue;
    ProgramOp& op = program_->ops[vector.generation - 1];
    if (op.kind == ProgramOpKind::product)
      op.product.outputs[vector.output].stores = true;
    else
      (vector.output == 0 ? op.attention.output.stores : op.attention.stores_q) = true;
  }
  return program_.get();
}

}  // namespace genai::cuda
