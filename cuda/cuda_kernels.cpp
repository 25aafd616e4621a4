#include "cuda/cuda_kernels.h"

#include <algorithm>

#include "cuda/cuda_stream.h"
#include "cuda/launch.h"
#include "cuda/row_calls.h"
#include "engine/error.h"

namespace genai::cuda {
namespace {

LaunchTarget target_of(Stream& stream, const DeviceTraits& traits) {
  return {static_cast<CudaStream&>(stream).use(), traits};
}

void expect_cache(const CacheView& cache, int head_count) {
  GENAI_EXPECT(cache.head_dim > 0 && cache.head_dim % 8 == 0, "head_dim must be a multiple of 8");
  GENAI_EXPECT(cache.kv_head_count > 0 && head_count % cache.kv_head_count == 0,
               "query heads must be a multiple of key-value heads");
}

// A launcher for products of many rows, or null.
using LaunchProduct = void (*)(const LaunchTarget&, const MatmulArgs&);
LaunchProduct wide_product(const DeviceTraits& traits, const MatmulArgs& args) {
  const bool bytes = traits.wide_products != WideProducts::by_halves && matmul_tiles_serves(traits, args);
  const bool halves = traits.wide_products != WideProducts::by_bytes && matmul_half_tiles_serves(traits, args);
  if (halves && !(bytes && matmul_tiles_cost(traits, args) < matmul_half_tiles_cost(traits, args)))
    return launch_matmul_half_tiles;
  return bytes ? launch_matmul_tiles : nullptr;
}

}  // namespace

void launch_call(const LaunchTarget& target, const MatmulArgs& args) {
  const DeviceTraits& traits = target.traits;
  if (traits.wide_products == WideProducts::by_cost) {
    if (matmul_row_serves(traits, args)) return launch_matmul_row(target, args);
    if (matmul_rows_serves(traits, args)) return launch_matmul_rows(target, args);
  }
  if (const LaunchProduct launch = wide_product(traits, args); launch != nullptr) return launch(target, args);
  const PreparedInput prepared = PreparedInput::in_scratch(args.scratch, args.row_count, args.outputs[0].matrix.cols);
  launch_prepare_input(target, args, prepared);
  launch_matmul_plain(target, args, prepared);
}

void launch_call(const LaunchTarget& target, const RotateArgs& args) { launch_rotate(target, args); }

void launch_call(const LaunchTarget& target, const AttentionArgs& args) {
  if (attention_tiles_serves(target.traits, args)) return launch_attention_tiles(target, args);
  if (attention_decode_serves(target.traits, args)) return launch_attention_decode(target, args);
  launch_attention_plain(target, args);
}

void launch_call(const LaunchTarget& target, const AskHostArgs& args) { launch_ask_host(target, args); }

void launch_call(const LaunchTarget& target, const TakeAnswerArgs& args) { launch_take_answer(target, args); }

CudaKernels::CudaKernels(const DeviceTraits& traits) : traits_(traits) {
  traits_.compute_capability = std::min(traits_.compute_capability, compiled_capability());
  if (traits_.compute_capability < 90) return;
  prepare_matmul_row(traits_);
  prepare_row_program(traits_);
  prepare_rows_program(traits_);
  prepare_matmul_rows(traits_);
  prepare_matmul_tiles(traits_);
  traits_.has_half_tiles = prepare_matmul_half_tiles();
  prepare_attention_decode(traits_);
  prepare_attention_merge(traits_);
  prepare_attention_tiles(traits_);
}

std::size_t CudaKernels::scratch_bytes(const ScratchLimits& limits) const {
  return std::max(
      {PreparedInput::bytes(limits.row_count, limits.input_width),
       rows_input_bytes(limits.row_count, limits.input_width),
       tile_input_bytes(limits.row_count, limits.input_width, traits_.has_half_tiles),
       attention_decode_scratch_bytes(limits.row_count, limits.head_count, limits.head_dim, limits.max_positions)});
}

std::size_t CudaKernels::handover_bytes(const ScratchLimits& limits) const {
  return traits_.compute_capability < 90 ? 0 : program_handover_bytes(limits);
}

void CudaKernels::embed(Stream& stream, const EmbedArgs& args) {
  if (args.row_count == 0) return;
  launch_embed(target_of(stream, traits_), args);
}

void CudaKernels::matmul(Stream& stream, const MatmulArgs& args) {
  GENAI_EXPECT(args.output_count >= 1 && args.output_count <= MatmulArgs::kMaxOutputs, "one to three outputs");
  for (int index = 0; index < args.output_count; ++index)
    GENAI_EXPECT(args.outputs[index].matrix.cols == args.outputs[0].matrix.cols, "outputs read inputs of one width");
  if (args.row_count == 0) return;
  if (args.handover && args.row_count <= kMaxGatheredRows) return gather(stream, args, args.row_count);
  launch_call(target_of(stream, traits_), args);
}

void CudaKernels::norm_add(Stream& stream, const NormAddArgs& args) {
  if (args.row_count == 0) return;
  launch_norm_add(target_of(stream, traits_), args);
}

void CudaKernels::gate(Stream& stream, const GateArgs& args) {
  if (args.row_count == 0) return;
  launch_gate(target_of(stream, traits_), args);
}

void CudaKernels::rotate(Stream& stream, const RotateArgs& args) {
  expect_cache(args.cache, args.head_count);
  if (args.row_count == 0) return;
  if (args.row_count <= kMaxGatheredRows && static_cast<CudaStream&>(stream).pending() != nullptr)
    return gather(stream, args, args.row_count);
  launch_call(target_of(stream, traits_), args);
}

void CudaKernels::attention(Stream& stream, const AttentionArgs& args) {
  expect_cache(args.cache, args.head_count);
  if (args.row_count == 0) return;
  if (args.handover && args.row_count <= kMaxGatheredRows) return gather(stream, args, args.row_count);
  launch_call(target_of(stream, traits_), args);
}

void CudaKernels::gather(Stream& stream, const RowCall& call, int row_count) {
  CudaStream& own = static_cast<CudaStream&>(stream);
  RowCalls* pending = static_cast<RowCalls*>(own.pending());  // nothing else is put off
  if (pending == nullptr || pending->row_count() != row_count) {
    auto calls = std::make_unique<RowCalls>(traits_, row_count);
    pending = calls.get();
    own.postpone(std::move(calls));
  }
  pending->add(call);
}

void CudaKernels::argmax(Stream& stream, const ArgmaxArgs& args) {
  if (args.row_count == 0) return;
  launch_argmax(target_of(stream, traits_), args);
}

void CudaKernels::advance_step(Stream& stream, const AdvanceArgs& args) {
  if (args.row_count == 0) return;
  launch_advance_step(target_of(stream, traits_), args);
}

void CudaKernels::ask_host(Stream& stream, const AskHostArgs& args) {
  if (args.row_count == 1) return gather(stream, args, 1);
  launch_call(target_of(stream, traits_), args);
}

void CudaKernels::take_answer(Stream& stream, const TakeAnswerArgs& args) {
  if (args.row_count == 1) return gather(stream, args, 1);
  launch_call(target_of(stream, traits_), args);
}

void CudaKernels::finish_requests(Stream& stream, const FinishRequestsArgs& args) {
  launch_finish_requests(target_of(stream, traits_), args);
}

}  // namespace genai::cuda
