// cuda_stream.h - Stream, Event and Graph on the CUDA runtime. Streams do not wait for the default stream; captures are
// local to the thread that begins them, so that other threads may go on copying and synchronising meanwhile. A graph is
// instantiated when the capture ends and never patched.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/cuda_capture.h"
#include "engine/device/stream.h"

namespace genai::cuda {

class CudaMemory;

// Work that a stream has been given and not yet enqueued, since more may come that goes with it.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual void enqueue(cudaStream_t stream) = 0;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int ordinal);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void synchronize() override;
  double seconds_since(Event& earlier) override;

 private:
  friend class CudaStream;
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
  bool recorded_ = false;
  CaptureId capture_ = 0;  // that of its stream when it was last recorded
};

class CudaGraph final : public Graph {
 public:
  // Takes the graph over, and makes it ready on the stream.
  CudaGraph(cudaGraph_t graph, cudaStream_t stream);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  std::size_t node_count() const override { return node_count_; }
  std::optional<std::uint64_t> device_bytes() const override { return device_bytes_; }

 private:
  friend class CudaStream;
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
  std::size_t node_count_ = 0;
  std::optional<std::uint64_t> device_bytes_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int ordinal, const CudaMemory& memory, ActiveCaptures& captures);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) override;
  void download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) override;
  void copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) override;
  void fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(Graph& graph) override;
  void synchronize() override;

  // Makes the stream's device current for this thread, enqueues pending work, and hands out the runtime's stream.
  cudaStream_t use();

  // Null: none.
  PendingWork* pending() const { return pending_.get(); }
  // Enqueued before anything that comes after it.
  void postpone(std::unique_ptr<PendingWork> work);

 private:
  // The capture that the stream takes part in, begun here or joined through an event.
  CaptureId capture() const;
  void copy_run(std::uint64_t destination, std::uint64_t source, std::size_t bytes, cudaMemcpyKind kind);

  const int ordinal_;
  const CudaMemory& memory_;
  ActiveCaptures& captures_;
  cudaStream_t stream_ = nullptr;
  CaptureId begun_capture_ = 0;
  std::unique_ptr<PendingWork> pending_;
};

}  // namespace genai::cuda
