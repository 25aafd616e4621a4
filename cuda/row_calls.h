// row_calls.h - calls of one row, and products of a few, that a stream has been given but not yet launched, so that one
// kernel may serve many of them (NOTE [Program] in cuda/kernels/program.cuh, NOTE [Rows program] in rows_program.cuh).
// Launched when anything else is enqueued on the stream.
#pragma once
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/cuda_stream.h"
#include "cuda/launch.h"

namespace genai::cuda {

class RowCalls final : public PendingWork {
 public:
  explicit RowCalls(const DeviceTraits& traits) : traits_(traits) {}
  void add(const RowCall& call) { calls_.push_back(call); }
  // In programs where enough calls come together, else one by one.
  void enqueue(cudaStream_t stream) override;

 private:
  const DeviceTraits& traits_;
  std::vector<RowCall> calls_;
};

}  // namespace genai::cuda
