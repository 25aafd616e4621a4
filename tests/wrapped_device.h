// wrapped_device.h - a Device that passes everything on to another one. What a test wants to go wrong, it overrides.
#pragma once
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace genai::test {

class WrappedStream : public Stream {
 public:
  explicit WrappedStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  Stream& inner() { return *inner_; }

  void upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) override {
    inner_->upload(destination, source, bytes);
  }
  void download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) override {
    inner_->download(destination, source, bytes);
  }
  void copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) override {
    inner_->copy(destination, source, bytes);
  }
  void fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) override {
    inner_->fill_zero(destination, bytes);
  }
  void record(Event& event) override { inner_->record(event); }
  void wait(Event& event) override { inner_->wait(event); }
  void begin_capture() override { inner_->begin_capture(); }
  std::unique_ptr<Graph> end_capture() override { return inner_->end_capture(); }
  void launch(Graph& graph) override { inner_->launch(graph); }
  void synchronize() override { inner_->synchronize(); }

 private:
  std::unique_ptr<Stream> inner_;
};

// Streams are WrappedStreams.
class WrappedKernels : public Kernels {
 public:
  explicit WrappedKernels(Kernels& inner) : inner_(inner) {}

  std::size_t scratch_bytes(const ScratchLimits& limits) const override { return inner_.scratch_bytes(limits); }
  std::size_t handover_bytes(const ScratchLimits& limits) const override { return inner_.handover_bytes(limits); }
  void embed(Stream& stream, const EmbedArgs& args) override { inner_.embed(unwrapped(stream), args); }
  void matmul(Stream& stream, const MatmulArgs& args) override { inner_.matmul(unwrapped(stream), args); }
  void norm_add(Stream& stream, const NormAddArgs& args) override { inner_.norm_add(unwrapped(stream), args); }
  void gate(Stream& stream, const GateArgs& args) override { inner_.gate(unwrapped(stream), args); }
  void rotate(Stream& stream, const RotateArgs& args) override { inner_.rotate(unwrapped(stream), args); }
  void attention(Stream& stream, const AttentionArgs& args) override { inner_.attention(unwrapped(stream), args); }
  void argmax(Stream& stream, const ArgmaxArgs& args) override { inner_.argmax(unwrapped(stream), args); }
  void advance_step(Stream& stream, const AdvanceArgs& args) override { inner_.advance_step(unwrapped(stream), args); }
  void ask_host(Stream& stream, const AskHostArgs& args) override { inner_.ask_host(unwrapped(stream), args); }
  void take_answer(Stream& stream, const TakeAnswerArgs& args) override { inner_.take_answer(unwrapped(stream), args); }
  void finish_requests(Stream& stream, const FinishRequestsArgs& args) override {
    inner_.finish_requests(unwrapped(stream), args);
  }

 private:
  static Stream& unwrapped(Stream& stream) { return static_cast<WrappedStream&>(stream).inner(); }

  Kernels& inner_;
};

}  // namespace genai::test
