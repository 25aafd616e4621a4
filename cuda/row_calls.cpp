#include "cuda/row_calls.h"

namespace genai::cuda {

void RowCalls::enqueue(cudaStream_t stream) {
  const LaunchTarget target = {stream, traits_};
  std::size_t first = 0;
  while (first < calls_.size()) {
    std::size_t count = launch_row_program(target, calls_.data() + first, calls_.size() - first);
    if (count == 0) {
      std::visit([&](const auto& args) { launch_call(target, args); }, calls_[first]);
      count = 1;
    }
    first += count;
  }
}

}  // namespace genai::cuda
