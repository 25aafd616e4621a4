#include "cuda/row_calls.h"

namespace genai::cuda {

void RowCalls::enqueue(cudaStream_t stream) {
  const LaunchTarget target = {stream, traits_};
  std::size_t first = 0;
  while (first < calls_.size()) {
    const ProgramLaunch program = launch_row_program(target, calls_.data() + first, calls_.size() - first);
    const std::size_t end = first + program.call_count;
    for (; !program.launched && first < end; ++first)
      std::visit([&](const auto& args) { launch_call(target, args); }, calls_[first]);
    first = end;
  }
}

}  // namespace genai::cuda
