#include "cuda/row_calls.h"

namespace genai::cuda {
namespace {

// Whether the last kernel of the call is such a product as NOTE [Early reads] (launch.h) speaks of.
bool waits_before_the_next(const DeviceTraits& traits, const RowCall& call) {
  const MatmulArgs* product = std::get_if<MatmulArgs>(&call);
  if (product == nullptr || traits.wide_products != WideProducts::by_cost || !matmul_rows_serves(traits, *product))
    return false;
  for (int i = 0; i < product->output_count; ++i)
    if (product->outputs[i].matrix.rows > 0) return true;
  return false;
}

}  // namespace

void RowCalls::enqueue(cudaStream_t stream) {
  const LaunchTarget target = {stream, traits_};
  if (row_count_ == 1) return launch_programs(target);
  launch_in_turn(target, 0, calls_.size());
}

void RowCalls::launch_programs(const LaunchTarget& target) {
  std::size_t first = 0;
  while (first < calls_.size()) {
    const ProgramLaunch program = launch_row_program(target, calls_.data() + first, calls_.size() - first);
    const std::size_t end = first + program.call_count;
    if (!program.launched) launch_in_turn(target, first, end);
    first = end;
  }
}

void RowCalls::launch_in_turn(const LaunchTarget& target, std::size_t first, std::size_t end) {
  while (first < end) {
    if (const std::size_t next = launch_attention(target, first, end); next > first) {
      first = next;
      continue;
    }
    const ProgramLaunch chain = launch_rows_program(target, calls_.data() + first, end - first);
    if (!chain.launched) std::visit([&](const auto& args) { launch_call(target, args); }, calls_[first]);
    first += chain.call_count;
  }
}

std::size_t RowCalls::launch_attention(const LaunchTarget& target, std::size_t first, std::size_t end) {
  const RotateArgs* rotate = call_at<RotateArgs>(calls_.data(), end, first);
  const AttentionArgs* attention = call_at<AttentionArgs>(calls_.data(), end, first + 1);
  const MatmulArgs* product = call_at<MatmulArgs>(calls_.data(), end, first + 2);
  if (rotate == nullptr || attention == nullptr || !attention_decode_serves(traits_, *attention)) return first;
  AttentionNeighbours neighbours = {};
  neighbours.reads_early = first > 0 && waits_before_the_next(traits_, calls_[first - 1]) &&
                           rotate->rows == attention->rows && rotate->row_count == attention->row_count;
  neighbours.prepares = traits_.wide_products == WideProducts::by_cost && product != nullptr &&
                        attention_decode_prepares(traits_, *attention, *product) &&
                        !rows_program_serves(traits_, calls_.data() + first + 2, end - first - 2);
  launch_rotate(target, *rotate, neighbours.reads_early);
  launch_attention_decode(target, *attention, neighbours);
  if (neighbours.prepares) launch_matmul_rows(target, *product, true);
  return first + (neighbours.prepares ? 3 : 2);
}

}  // namespace genai::cuda
