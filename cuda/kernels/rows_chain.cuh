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
#include "cuda/launch.h"

namespace genai::cuda {

// Bytes of a ring on their way at once while its half waits for an input. With more, the memory is faster, but what is
// handed over comes later, and so does what halves that are not as far still compute with (measured on an H200: with
// three stages of Q4_0 instead of two a step of four rows takes 1 % longer, with one 2 %).
inline constexpr int kRowsWindowBytes = 20 * 1024;
inline constexpr int kFewestRowsSlots = 3;  // of a ring
inline constexpr int kMostRowsSlots = 12;

class ChainBuilder {
 public:
  explicit ChainBuilder(const DeviceTraits& traits) : traits_(&traits) {}

  // False where the call cannot follow those before; the chain is then as it was. The call must outlive the chain.
  bool add(const MatmulArgs& args);
  // Once all have been added: weights and shares.
  void finish();

  const RowsProgram& program() const { return program_; }
  ProgramTypes types() const { return candidates_.front(); }
  int shared_bytes() const { return shared_bytes_; }

 private:
  static bool overlap(const MatmulArgs& left, const MatmulOutput& left_output, const MatmulArgs& right,
                      const MatmulOutput& right_output);
  bool follows(const MatmulArgs& args) const;
  bool fills_halves(const MatmulArgs& args) const;
  std::optional<int> step_before(const MatmulArgs& args) const;
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
  int shared_bytes_ = 0;
};

inline bool ChainBuilder::lay_out() {
  const int slice_bytes = types().have_minimum() ? RowsSlices<true>::kBytes : RowsSlices<false>::kBytes;
  const int shares = kHalves * kMaxRowsSteps * static_cast<int>(sizeof(ChainShare));
  const int rest = kHalves * kBarrierPair + shares + static_cast<int>(sizeof(unsigned));
  program_.exchange = most_tiles_ * slice_bytes;
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
  program_.launch = shared_bytes_ - static_cast<int>(sizeof(unsigned));
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

// The last step that wrote what the output is added to; negative: none did. Nothing where an output lies otherwise
// across what the chain has written.
inline std::optional<int> ChainBuilder::step_before(const MatmulArgs& args) const {
  int before = -1;
  for (int i = 0; i < program_.step_count; ++i) {
    const MatmulArgs& earlier = *calls_[static_cast<std::size_t>(i)];
    const MatmulOutput& other = earlier.outputs[0];
    for (int own = 0; own < args.output_count; ++own) {
      const MatmulOutput& output = args.outputs[own];
      if (!overlap(args, output, earlier, other)) continue;
      if (args.epilogue != Epilogue::add || output.out.address() != other.out.address() ||
          output.out_stride != other.out_stride ||
          output_width(output, args.epilogue) != output_width(other, earlier.epilogue))
        return std::nullopt;
      before = i;
    }
  }
  return before;
}

inline bool ChainBuilder::add(const MatmulArgs& args) {
  const int count = program_.step_count;
  if (count == kMaxRowsSteps || args.row_count < 2 || args.row_count > kMaxProgramRows || !args.handover ||
      traits_->sm_count > HandoverMemory::kMaxBlocks || (args.epilogue == Epilogue::add && args.output_count != 1) ||
      !follows(args) || !fills_halves(args))
    return false;
  const std::optional<int> before = step_before(args);
  if (!before) return false;

  const ChainBuilder unchanged = *this;
  const auto give_up = [&] {
    *this = unchanged;
    return false;
  };
  std::erase_if(candidates_, [&](const ProgramTypes& types) { return !types.read(args); });
  if (candidates_.empty()) return give_up();
  const int cols = args.outputs[0].matrix.cols;
  program_.row_count = args.row_count;
  program_.handover.base = reinterpret_cast<unsigned char*>(args.handover.address());
  RowsStep& step = program_.steps[count];
  step.shape.output_count = args.output_count;
  step.shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  most_tiles_ = std::max(most_tiles_, step.shape.tile_count);
  for (int i = 0; i < args.output_count; ++i)
    most_tile_bytes_ = std::max(most_tile_bytes_, tile_layout(args.outputs[i].matrix.dtype).tile_bytes);
  if (!lay_out()) return give_up();

  step.source = rows_source(args);
  step.words = {-1, 0, -1, -1};
  step.stores = true;
  step.epilogue = args.epilogue;
  step.soft_cap = args.soft_cap;
  step.division.pass_strips = kPassStrips;
  if (count > 0) {
    step.words.source = take_words(std::int64_t{args.row_count} * cols);
    program_.steps[count - 1].words.output = step.words.source;
  }
  if (*before >= 0) {
    step.words.before = program_.steps[*before].words.output;
    program_.steps[*before].stores = false;
  }
  step.words.input = take_words(std::int64_t{step.shape.tile_count} * RowsSlices<true>::kBytes / 4);
  if (used_words_ > HandoverMemory::kRegionWords) return give_up();
  calls_[static_cast<std::size_t>(count)] = &args;
  ++program_.step_count;
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
