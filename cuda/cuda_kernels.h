// cuda_kernels.h - Kernels on CUDA: chooses the launcher for each call by shape, type and compute capability. Every
// choice gives the same bits, so none of them is visible outside.
#pragma once
#include "cuda/cuda_device.h"
#include "cuda/row_calls.h"
#include "engine/device/kernels.h"

namespace genai::cuda {

class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(const DeviceTraits& traits);
  // What the constructor was given, completed by what only kernels tell.
  const DeviceTraits& traits() const { return traits_; }
  std::size_t scratch_bytes(const ScratchLimits& limits) const override;
  std::size_t handover_bytes(const ScratchLimits& limits) const override;
  void embed(Stream& stream, const EmbedArgs& args) override;
  void matmul(Stream& stream, const MatmulArgs& args) override;
  void norm_add(Stream& stream, const NormAddArgs& args) override;
  void gate(Stream& stream, const GateArgs& args) override;
  void rotate(Stream& stream, const RotateArgs& args) override;
  void attention(Stream& stream, const AttentionArgs& args) override;
  void argmax(Stream& stream, const ArgmaxArgs& args) override;
  void advance_step(Stream& stream, const AdvanceArgs& args) override;
  void ask_host(Stream& stream, const AskHostArgs& args) override;
  void take_answer(Stream& stream, const TakeAnswerArgs& args) override;
  void finish_requests(Stream& stream, const FinishRequestsArgs& args) override;

 private:
  // Puts a call of a few rows off, to be launched with those that follow.
  void gather(Stream& stream, const RowCall& call, int row_count);

  DeviceTraits traits_;
};

}  // namespace genai::cuda
