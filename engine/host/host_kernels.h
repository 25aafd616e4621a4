// host_kernels.h - Kernels on the processor's cores. Work is cut among the threads of a pool by strips, rows, heads and
// chunks, in ways that depend on counts only and never reach inside a sum; the operations themselves come from a
// HostMath table. Device addresses are addresses of this process.
#pragma once
#include <cstddef>

#include "engine/device/kernels.h"
#include "engine/host/math.h"
#include "engine/host/thread_pool.h"

namespace genai {

class HostKernels final : public Kernels {
 public:
  // Both outlive the kernels and whatever is enqueued through them. Streams must be HostStreams.
  explicit HostKernels(ThreadPool& pool, const HostMath& math = best_host_math()) : pool_(pool), math_(math) {}

  const HostMath& math() const { return math_; }

  std::size_t scratch_bytes(const ScratchLimits& limits) const override;
  std::size_t handover_bytes(const ScratchLimits&) const override { return 0; }
  void embed(Stream& stream, const EmbedArgs& args) override;
  // Outputs must not overlap the input: threads write some while others still read.
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
  void run_matmul(const MatmulArgs& args) const;
  void run_rotate(const RotateArgs& args) const;
  void run_argmax(const ArgmaxArgs& args) const;

  ThreadPool& pool_;
  const HostMath& math_;
};

}  // namespace genai
