// program_builder.cuh - makes a program (program.cuh) of calls, on the host: which vectors are handed over inside of it,
// and how shared memory is laid out.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/kernels/program_product.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

// The types of a program's matrices that one kernel reads.
struct ProgramTypes {
  DType first;
  DType second;
};

class ProgramBuilder {
 public:
  // One kernel for each of `kernels`; the first that reads all types of the program is taken.
  ProgramBuilder(const DeviceTraits& traits, const std::vector<ProgramTypes>& kernels)
      : traits_(traits), candidates_(kernels), program_(std::make_unique<RowProgram>()) {
    program_->layout = {};
    program_->op_count = 0;
  }

  // False where the call cannot be part of this program; it is then as it was.
  bool add(const MatmulArgs& args);

  int op_count() const { return program_->op_count; }
  ProgramTypes types() const { return candidates_.front(); }
  // Completes the program. Of kMaxProgramOps operations, only op_count are copied to the device.
  const RowProgram& finish();

 private:
  // A vector that was written in the program.
  struct Written {
    std::uint64_t address;
    int width;
    int cells;
    unsigned generation;
  };

  static std::uint64_t end_of(const Written& vector) { return vector.address + 4 * static_cast<std::uint64_t>(vector.width); }
  const Written* find(std::uint64_t address, int width) const;
  // Nothing written in the program lies there, or exactly one vector does.
  bool is_whole(std::uint64_t address, int width) const;
  bool takes_handover(DevicePtr<std::byte> handover);
  bool takes_types(const MatmulArgs& args);
  ProgramInput input(std::uint64_t address, int width) const;
  int cells_for(std::uint64_t address, int width, unsigned generation);
  ProgramLayout layout(int unit_strips) const;

  const DeviceTraits& traits_;
  std::vector<ProgramTypes> candidates_;
  std::unique_ptr<RowProgram> program_;
  std::vector<std::array<DType, kMaxStreamOutputs>> dtypes_;  // an operation each
  std::vector<Written> written_;
  int used_cells_ = 0;
  int widest_ = 0;         // input
  int widest_normed_ = 0;  // input that has a norm
};

inline const ProgramBuilder::Written* ProgramBuilder::find(std::uint64_t address, int width) const {
  for (const Written& vector : written_)
    if (vector.address == address && vector.width == width) return &vector;
  return nullptr;
}

inline bool ProgramBuilder::is_whole(std::uint64_t address, int width) const {
  if (find(address, width) != nullptr) return true;
  const std::uint64_t end = address + 4 * static_cast<std::uint64_t>(width);
  return std::none_of(written_.begin(), written_.end(),
                      [&](const Written& vector) { return address < end_of(vector) && vector.address < end; });
}

inline bool ProgramBuilder::takes_handover(DevicePtr<std::byte> handover) {
  unsigned char* base = reinterpret_cast<unsigned char*>(handover.address());
  if (program_->op_count > 0) return base == program_->handover.base;
  program_->handover.base = base;
  return base != nullptr && traits_.sm_count <= HandoverMemory::kMaxBlocks;
}

inline bool ProgramBuilder::takes_types(const MatmulArgs& args) {
  std::vector<ProgramTypes> left;
  for (const ProgramTypes& types : candidates_) {
    bool reads_all = true;
    for (int i = 0; i < args.output_count; ++i) {
      const DType dtype = args.outputs[i].matrix.dtype;
      reads_all = reads_all && (dtype == types.first || dtype == types.second);
    }
    if (reads_all) left.push_back(types);
  }
  if (left.empty()) return false;
  candidates_ = left;
  return true;
}

inline ProgramInput ProgramBuilder::input(std::uint64_t address, int width) const {
  const Written* vector = find(address, width);
  if (vector == nullptr) return {reinterpret_cast<const float*>(address), 0, 0};
  return {reinterpret_cast<const float*>(address), vector->cells, vector->generation};
}

inline int ProgramBuilder::cells_for(std::uint64_t address, int width, unsigned generation) {
  for (Written& vector : written_) {
    if (vector.address != address || vector.width != width) continue;
    vector.generation = generation;
    return vector.cells;
  }
  written_.push_back({address, width, used_cells_, generation});
  used_cells_ += (width + 3) / 4 * 4;  // quads of cells are read together
  return written_.back().cells;
}

inline bool ProgramBuilder::add(const MatmulArgs& args) {
  if (program_->op_count == kMaxProgramOps || !matmul_row_serves(traits_, args)) return false;
  if (args.epilogue == Epilogue::add && args.output_count != 1) return false;
  const int cols = args.outputs[0].matrix.cols;
  if (!is_whole(args.input.address(), cols)) return false;
  int cells = 0;
  for (int i = 0; i < args.output_count; ++i) {
    const int width = output_width(args.outputs[i], args.epilogue);
    if (args.outputs[i].matrix.rows == 0 || !is_whole(args.outputs[i].out.address(), width)) return false;
    if (find(args.outputs[i].out.address(), width) == nullptr) cells += (width + 3) / 4 * 4;
  }
  // Logits are wider than what is left: then nobody in this program can read them.
  const bool hands_over = used_cells_ + cells <= HandoverMemory::kVectorCells;
  if (!takes_handover(args.handover) || !takes_types(args)) return false;

  ProgramOp& op = program_->ops[program_->op_count++];
  op.kind = ProgramOpKind::product;
  ProgramProduct& product = op.product;
  product = {};
  const unsigned generation = static_cast<unsigned>(program_->op_count);
  product.input = input(args.input.address(), cols);
  product.norm_weight = reinterpret_cast<const float*>(args.norm_weight.address());
  product.norm_epsilon = args.norm_epsilon;
  product.cols = cols;
  product.soft_cap = args.soft_cap;
  product.epilogue = args.epilogue;
  product.shape.output_count = args.output_count;
  product.shape.tile_count = static_cast<int>(padded_width(cols) / kTileWidth);
  dtypes_.push_back({});
  for (int i = 0; i < args.output_count; ++i) {
    const MatmulOutput& output = args.outputs[i];
    const int width = output_width(output, args.epilogue);
    product.shape.outputs[i] = stream_output(output, output.matrix.dtype);
    dtypes_.back()[static_cast<std::size_t>(i)] = output.matrix.dtype;
    if (args.epilogue == Epilogue::add)
      if (const Written* before = find(output.out.address(), width)) product.before = before->generation;
    product.cells[i] = hands_over ? cells_for(output.out.address(), width, generation) : -1;
  }
  widest_ = std::max(widest_, cols);
  if (product.norm_weight != nullptr) widest_normed_ = std::max(widest_normed_, cols);
  return true;
}

inline ProgramLayout ProgramBuilder::layout(int unit_strips) const {
  const bool sums = has_minimum(types().first) || has_minimum(types().second);
  const int octets = octet_count(widest_);
  ProgramLayout layout = {};
  const int quants = octets * kOctetWidth;
  const int scales = octets * kOctetBlocks * 4;
  const int staged = (widest_normed_ * 4 + 127) / 128 * 128;
  const int exchange = kProgramGroups * 2 * unit_strips * kStripRows * kPartialStride * 4;
  const int work = (kProgramWorkBytes + 127) / 128 * 128;
  const int barriers = (kRingBarriers + kRingSlots) * 8;
  const int others = quants + scales * (sums ? 2 : 1) + staged + exchange + work + barriers;
  layout.slot_bytes = std::max((traits_.shared_bytes_per_block - others) / kRingSlots / 128 * 128, 0);
  layout.quants = kRingSlots * layout.slot_bytes;
  layout.scales = layout.quants + quants;
  layout.sums = layout.scales + scales;
  layout.staged = layout.sums + (sums ? scales : 0);
  layout.exchange = layout.staged + staged;
  layout.work = layout.exchange + exchange;
  layout.barriers = layout.work + work;
  layout.total = layout.barriers + barriers;
  return layout;
}

inline const RowProgram& ProgramBuilder::finish() {
  const ProgramTypes pair = types();
  // As many strips in a unit as some matrix has in a slot.
  for (program_->unit_strips = kMaxUnitStrips;; program_->unit_strips /= 2) {
    program_->layout = layout(program_->unit_strips);
    int fitting = 0;
    for (int index = 0; index < program_->op_count; ++index) {
      if (program_->ops[index].kind != ProgramOpKind::product) continue;
      const ProgramProduct& product = program_->ops[index].product;
      for (int i = 0; i < product.shape.output_count; ++i) {
        const int tile_bytes = tile_layout(dtypes_[static_cast<std::size_t>(index)][static_cast<std::size_t>(i)]).tile_bytes;
        fitting = std::max(fitting, unit_cut(tile_bytes, product.shape.tile_count, program_->layout.slot_bytes).fitting_strips);
      }
    }
    if (program_->unit_strips == 1 || fitting >= program_->unit_strips) break;
  }
  for (int index = 0; index < program_->op_count; ++index) {
    if (program_->ops[index].kind != ProgramOpKind::product) continue;
    ProgramProduct& product = program_->ops[index].product;
    product.shape.stage_bytes = program_->layout.slot_bytes;
    for (int i = 0; i < product.shape.output_count; ++i)
      product.shape.outputs[i].second_type =
          dtypes_[static_cast<std::size_t>(index)][static_cast<std::size_t>(i)] != pair.first;
  }
  return *program_;
}

}  // namespace genai::cuda
