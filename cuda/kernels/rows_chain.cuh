// rows_chain.cuh - makes a chain (NOTE [Rows program]) of calls, on the host: which calls follow each other, what is
// handed over where, and how shared memory is laid out.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/kernels/program_types.cuh"
#include "cuda/kernels/rows_program.cuh"
#include "cuda/kernels/rows_program_attention.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

// Bytes of a ring on their way at once while its half waits for an input. With more, the memory is faster, but what is
// handed over comes later, and so does what halves that are not as far still compute with (measured on an H200: with
// three stages of Q4_0 instead of two a step of four rows takes 1 % longer, with one 2 %).
inline constexpr int kRowsWindowBytes = 20 * 1024;
inline constexpr int kFewestRowsSlots = 3;  // of a ring
inline constexpr int kMostRowsSlots = 12;

class ChainBuilder {
  // Of shared memory, where there is attention: barriers, plans, items, positions and phases.
  static constexpr int kBarrierBytes = kRowsAttentionBarriers * static_cast<int>(sizeof(SharedBarrier));
  static constexpr int kPlanBytes = kMaxRowsAttentionKinds * kRowsGroups * static_cast<int>(sizeof(RowsPlan));
  static constexpr int kItemBytes = kItemPlaces * kRowsGroups * static_cast<int>(sizeof(RowsItem));
  static constexpr int kPositionBytes = kMaxProgramRows * static_cast<int>(sizeof(RowPosition));
  static constexpr int kAttentionBytes =
      kBarrierBytes + kPlanBytes + kItemBytes + kPositionBytes + kRowsGroups * static_cast<int>(sizeof(unsigned));

 public:
  explicit ChainBuilder(const DeviceTraits& traits) : traits_(&traits) {}

  // False where the call cannot follow those before; the chain is then as it was. The call must outlive the chain.
  bool add(const MatmulArgs& args);
  // Three calls as the forward pass makes them: the product reads what attention over what the rotation turns leaves.
  bool add(const RotateArgs& rotate, const AttentionArgs& attention, const MatmulArgs& args);
  // Once all have been added: weights and shares.
  void finish();

  const RowsProgram& program() const { return program_; }
  ProgramTypes types() const { return candidates_.front(); }
  int shared_bytes() const { return shared_bytes_; }

 private:
  static bool overlap(const MatmulArgs& left, const MatmulOutput& left_output, const MatmulArgs& right,
                      const MatmulOutput& right_output);
  bool follows(const MatmulArgs& args) const;
  bool can_add(const MatmulArgs& args) const;
  bool add_step(const MatmulArgs& args);
  int projection(std::uint64_t address, int width) const;
  bool fills_halves(const MatmulArgs& args) const;
  bool replaces(const MatmulArgs& args, const MatmulOutput& output, const MatmulArgs& earlier,
                const MatmulOutput& other) const;
  std::optional<int> step_before(const MatmulArgs& args) const;
  void store_last(const MatmulArgs& args);
  bool lay_out();
  int take_words(std::int64_t count) {
    return std::exchange(used_words_, used_words_ + static_cast<int>((count + 3) / 4 * 4));  // quads are read together
  }

  const DeviceTraits* traits_;
  std::vector<ProgramTypes> candidates_{kProgramTypes.begin(), kProgramTypes.end()};  // that read all matrices so far
  std::array<const MatmulArgs*, kMaxRowsSteps> calls_ = {};
  RowsProgram program_ = {};
  int used_words_ = 0;
  int most_tiles_ = 0;
  int most_tile_bytes_ = 0;
  int projection_tiles_ = 0;  // of products ahead of an attention
  int shared_bytes_ = 0;
};

inline bool ChainBuilder::lay_out() {
  const int slice_bytes = types().have_minimum() ? RowsSlices<true>::kBytes : RowsSlices<false>::kBytes;
  const bool attends = program_.attention_count > 0;
  const int shares = kHalves * (program_.step_count + 1) * static_cast<int>(sizeof(ChainShare));  // with the next step
  const int launch = static_cast<int>(sizeof(unsigned));
  const int rest = kHalves * kBarrierPair + static_cast<int>(round_up(shares, sizeof(SharedBarrier))) +
                   (attends ? kAttentionBytes : 0) + launch;
  program_.exchange = most_tiles_ * slice_bytes;
  if (attends) {
    program_.queries = std::max(2 * kRowsChunkBytes, projection_tiles_ * slice_bytes);
    const int rest_of_attention = kRowsQueryBytes + (kRowsGroups - 1) * 2 * kRowsChunkBytes;
    program_.exchange = std::max(program_.exchange, program_.queries + rest_of_attention - kHalves * kExchangeBytes);
  }
  program_.squares = program_.exchange + kHalves * kExchangeBytes;
  const int slots = program_.squares + kHalves * kRowsThreads * static_cast<int>(sizeof(float));
  program_.slots = static_cast<int>(round_up(slots, kSlotFront));
  program_.slot_bytes =
      static_cast<int>(round_up(kSlotFront + kStageStrips * kChunkTiles * most_tile_bytes_, kSlotFront));
  const int room = whole_shared_bytes(*traits_) - program_.slots - rest;
  program_.slot_count = std::min(room / (kHalves * program_.slot_bytes), kMostRowsSlots);
  if (program_.slot_count < kFewestRowsSlots) return false;
  program_.ring_bytes = program_.slot_count * program_.slot_bytes;
  program_.exchange_barriers = program_.slots + kHalves * program_.ring_bytes;
  program_.shares = program_.exchange_barriers + kHalves * kBarrierPair;
  program_.window = std::clamp(kRowsWindowBytes / program_.slot_bytes, 2, program_.slot_count);
  shared_bytes_ = program_.exchange_barriers + rest;
  program_.launch = shared_bytes_ - launch;
  if (!attends) return true;
  program_.attention_barriers = program_.launch - kAttentionBytes;
  program_.plans = program_.attention_barriers + kBarrierBytes;
  program_.items = program_.plans + kPlanBytes;
  program_.positions = program_.items + kItemBytes;
  program_.phases = program_.positions + kPositionBytes;
  return true;
}

inline bool ChainBuilder::overlap(const MatmulArgs& left, const MatmulOutput& left_output, const MatmulArgs& right,
                                  const MatmulOutput& right_output) {
  const auto end = [](const MatmulArgs& args, const MatmulOutput& output) {
    const std::int64_t count =
        std::int64_t{output.out_stride} * (args.row_count - 1) + output_width(output, args.epilogue);
    return output.out.address() + sizeof(float) * static_cast<std::uint64_t>(count);
  };
  return left_output.out.address() < end(right, right_output) && right_output.out.address() < end(left, left_output);
}

// Whether the call reads what the last one writes, whole.
inline bool ChainBuilder::follows(const MatmulArgs& args) const {
  if (program_.step_count == 0) return true;
  const MatmulArgs& last = *calls_[static_cast<std::size_t>(program_.step_count - 1)];
  const MatmulOutput& vector = last.outputs[0];
  const int cols = args.outputs[0].matrix.cols;
  return last.output_count == 1 && args.row_count == last.row_count && cols % 4 == 0 &&
         args.handover.address() == last.handover.address() && args.input.address() == vector.out.address() &&
         args.input_stride == vector.out_stride && cols == output_width(vector, last.epilogue);
}

// Whether every half gets a strip. Where many do not, kernels of their own are faster (measured on an H200: by 6 % with
// a width of 896).
inline bool ChainBuilder::fills_halves(const MatmulArgs& args) const {
  std::int64_t strips = 0;
  for (int i = 0; i < args.output_count; ++i) {
    if (args.outputs[i].matrix.rows == 0) return false;
    strips += strip_count(args.outputs[i].matrix.rows);
  }
  return strips >= kHalves * traits_->sm_count;
}

// Whether they lie in the same place, element by element.
inline bool ChainBuilder::replaces(const MatmulArgs& args, const MatmulOutput& output, const MatmulArgs& earlier,
                                   const MatmulOutput& other) const {
  return output.out.address() == other.out.address() && output.out_stride == other.out_stride &&
         output_width(output, args.epilogue) == output_width(other, earlier.epilogue);
}

// The last step that wrote what the output is added to; negative: none did. Nothing where an output lies otherwise
// across what the chain has written.
inline std::optional<int> ChainBuilder::step_before(const MatmulArgs& args) const {
  int before = -1;
  for (int i = 0; i < program_.step_count; ++i) {
    const MatmulArgs& earlier = *calls_[static_cast<std::size_t>(i)];
    for (int k = 0; k < earlier.output_count; ++k)
      for (int own = 0; own < args.output_count; ++own) {
        const MatmulOutput& output = args.outputs[own];
        if (!overlap(args, output, earlier, earlier.outputs[k])) continue;
        if (!replaces(args, output, earlier, earlier.outputs[k])) return std::nullopt;
        // Nobody may read from memory what a step replaces.
        if (program_.steps[i].words.outputs[k] < 0) return std::nullopt;
        if (args.epilogue == Epilogue::add) before = i;
      }
  }
  return before;
}

// Of steps that write to the same place the last one stores.
inline void ChainBuilder::store_last(const MatmulArgs& args) {
  for (int i = 0; i < program_.step_count; ++i) {
    const MatmulArgs& earlier = *calls_[static_cast<std::size_t>(i)];
    for (int k = 0; k < earlier.output_count; ++k)
      for (int own = 0; own < args.output_count; ++own)
        if (overlap(args, args.outputs[own], earlier, earlier.outputs[k])) program_.steps[i].stores &= ~(1u << k);
  }
  for (int i = 0; i < program_.attention_count; ++i) {
    RowsAttention& earlier = program_.attentions[i];
    const float* const q = program_.attention_kinds[earlier.kind].q_out;
    for (int own = 0; own < args.output_count; ++own)
      if (reinterpret_cast<const float*>(args.outputs[own].out.address()) == q) earlier.call.stores_q = false;
  }
}

inline bool ChainBuilder::can_add(const MatmulArgs& args) const {
  return program_.step_count < kMaxRowsSteps && args.row_count >= 2 && args.row_count <= kMaxProgramRows &&
         args.handover && traits_->sm_count <= HandoverMemory::kMaxBlocks &&
         (args.epilogue != Epilogue::add || args.output_count == 1) && fills_halves(args);
}

inline bool ChainBuilder::add(const MatmulArgs& args) {
  if (!can_add(args) || !follows(args)) return false;
  const ChainBuilder unchanged = *this;
  if (const int count = program_.step_count; count > 0)
    program_.steps[count - 1].words.outputs[0] = take_words(std::int64_t{args.row_count} * args.outputs[0].matrix.cols);
  if (add_step(args)) return true;
  *this = unchanged;
  return false;
}

// Behind whatever hands over its input.
inline bool ChainBuilder::add_step(const MatmulArgs& args) {
  const int count = program_.step_count;
  const std::optional<int> before = step_before(args);
  if (!before) return false;
  std::erase_if(candidates_, [&](const ProgramTypes& types) { return !types.read(args); });
  if (candidates_.empty()) return false;
  program_.row_count = args.row_count;
  program_.handover.base = reinterpret_cast<unsigned char*>(args.handover.address());
  RowsStep& step = program_.steps[count];
  step.shape.output_count = args.output_count;
  step.shape.tile_count = static_cast<int>(padded_width(args.outputs[0].matrix.cols) / kTileWidth);
  most_tiles_ = std::max(most_tiles_, step.shape.tile_count);
  for (int i = 0; i < args.output_count; ++i)
    most_tile_bytes_ = std::max(most_tile_bytes_, tile_layout(args.outputs[i].matrix.dtype).tile_bytes);
  if (!lay_out()) return false;

  step.source = rows_source(args);
  step.words = {count > 0 ? program_.steps[count - 1].words.outputs[0] : -1, 0, -1, {-1, -1, -1}};
  step.attention = -1;
  store_last(args);
  step.stores = (1u << args.output_count) - 1;
  step.epilogue = args.epilogue;
  step.soft_cap = args.soft_cap;
  step.division.pass_strips = kPassStrips;
  if (*before >= 0) step.words.before = program_.steps[*before].words.outputs[0];
  step.words.input = take_words(std::int64_t{step.shape.tile_count} * RowsSlices<true>::kBytes / 4);
  if (used_words_ > HandoverMemory::kRegionWords) return false;
  calls_[static_cast<std::size_t>(count)] = &args;
  ++program_.step_count;
  return true;
}

// The output of the last step that lies there; negative: none.
inline int ChainBuilder::projection(std::uint64_t address, int width) const {
  const MatmulArgs& last = *calls_[static_cast<std::size_t>(program_.step_count - 1)];
  for (int i = 0; i < last.output_count; ++i)
    if (last.outputs[i].out.address() == address && last.outputs[i].out_stride == width &&
        output_width(last.outputs[i], last.epilogue) == width)
      return i;
  return -1;
}

inline bool ChainBuilder::add(const RotateArgs& rotate, const AttentionArgs& attention, const MatmulArgs& args) {
  const int count = program_.step_count;
  const int head_dim = attention.cache.head_dim;
  const int q_width = attention.head_count * head_dim;
  const int kv_width = attention.cache.kv_head_count * head_dim;
  if (count == 0 || program_.attention_count == kMaxRowsAttentions || !can_add(args) ||
      !rows_attention_serves(rotate, attention, args))
    return false;
  const MatmulArgs& last = *calls_[static_cast<std::size_t>(count - 1)];
  const StepRow* const rows = reinterpret_cast<const StepRow*>(attention.rows.address());
  if (args.row_count != last.row_count || args.handover.address() != last.handover.address() ||
      (program_.attention_count > 0 && program_.rows != rows))
    return false;
  const int outputs[] = {projection(rotate.q.address(), q_width), projection(rotate.k.address(), kv_width),
                         projection(rotate.v.address(), kv_width)};
  for (const int output : outputs)
    if (output < 0) return false;
  const ChainBuilder unchanged = *this;
  const auto give_up = [&] {
    *this = unchanged;
    return false;
  };
  RowsAttention& own = program_.attentions[program_.attention_count];
  own.kind = number_of(attention_kind(rotate, attention), program_.attention_kinds, program_.attention_kind_count);
  if (own.kind < 0) return give_up();
  own.call = attention_call(rotate);
  own.call.turn = program_.attention_count % kPartialTurns;
  RowsStep& projections = program_.steps[count - 1];
  const auto hand_over = [&](int output, int width) {
    return projections.words.outputs[output] = take_words(std::int64_t{args.row_count} * width);
  };
  own.call.q_words = hand_over(outputs[0], q_width);
  own.call.k_words = hand_over(outputs[1], kv_width);
  own.call.v_words = hand_over(outputs[2], kv_width);
  projections.stores &= ~(1u << outputs[0]);            // it is stored rotated
  for (int i = 0; i < program_.attention_count; ++i) {  // of the same place the last one stores
    AttentionCall& earlier = program_.attentions[i].call;
    earlier.stores = earlier.stores_q = false;
  }
  own.call.stores = own.call.stores_q = true;
  program_.rows = rows;
  projection_tiles_ = std::max(projection_tiles_, projections.shape.tile_count);
  const int index = program_.attention_count++;
  if (!add_step(args)) return give_up();
  program_.steps[count].attention = index;
  return true;
}

inline void ChainBuilder::finish() {
  for (int index = 0; index < program_.step_count; ++index) {
    const MatmulArgs& args = *calls_[static_cast<std::size_t>(index)];
    RowsStep& step = program_.steps[index];
    for (int i = 0; i < args.output_count; ++i) step.shape.outputs[i] = stream_output(args.outputs[i], types().second);
    divide_rows(step.shape, args.outputs, kHalves * traits_->sm_count, &step.division);
  }
}

}  // namespace genai::cuda
