// row_calls.h - calls of one row, or of the same few rows, that a stream has been given but not yet launched, so that
// what follows each other is known. One kernel may serve many calls of one row (NOTE [Program] in
// cuda/kernels/program.cuh), or of a few (NOTE [Rows program] in cuda/kernels/rows_program.cuh); else attention of
// up to 16 reads ahead and prepares the next product's input. Launched when anything else is enqueued on the stream.
#pragma once
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/cuda_stream.h"
#include "cuda/launch.h"

namespace genai::cuda {

inline constexpr int kMaxGatheredRows = 16;

class RowCalls final : public PendingWork {
 public:
  RowCalls(const DeviceTraits& traits, int row_count) : traits_(traits), row_count_(row_count) {}
  int row_count() const { return row_count_; }
  void add(const RowCall& call) { calls_.push_back(call); }
  void enqueue(cudaStream_t stream) override;

 private:
  // In programs where enough calls come together.
  void launch_programs(const LaunchTarget& target);
  // Calls first .. end - 1, together where they are products of a few rows that follow each other.
  void launch_in_turn(const LaunchTarget& target, std::size_t first, std::size_t end);
  // A rotation, the attention behind it, and the product behind that where its input comes prepared. Returns the first
  // call that is left.
  std::size_t launch_attention(const LaunchTarget& target, std::size_t first, std::size_t end);

  const DeviceTraits& traits_;
  int row_count_;
  std::vector<RowCall> calls_;
};

}  // namespace genai::cuda
