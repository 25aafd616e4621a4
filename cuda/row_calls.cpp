#include "cuda/row_calls.h"

namespace genai::cuda {

namespace {

ProgramLaunch launch_program(const LaunchTarget& target, const RowCall* calls, std::size_t call_count) {
  const MatmulArgs* const matmul = std::get_if<MatmulArgs>(calls);
  if (matmul == nullptr || matmul->row_count == 1) return launch_row_program(target, calls, call_count);
  return launch_rows_program(target, calls, call_count);
}

}  // namespace

void RowCalls::enqueue(cudaStream_t stream) {
  const LaunchTarget target = {stream, traits_};
  std::size_t first = 0;
  while (first < calls_.size()) {
    const ProgramLaunch program = launch_program(target, calls_.data() + first, calls_.size() - first);
    const std::size_t end = first + program.call_count;
    for (; !program.launched && first < end; ++first)
      std::visit([&](const auto& args) { launch_call(target, args); }, calls_[first]);
    first = end;
  }
}

}  // namespace genai::cuda
