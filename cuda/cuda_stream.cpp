#include "cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "cuda/cuda_error.h"
#include "cuda/cuda_memory.h"

namespace genai::cuda {
namespace {

constexpr const char* kCaptureHint =
    "this is a bug in genai: waiting belongs outside the captured step; please report it";

}  // namespace

CudaEvent::CudaEvent(int ordinal) : ordinal_(ordinal) {
  CUDA_CHECK(cudaSetDevice(ordinal_));
  CUDA_CHECK(cudaEventCreate(&event_));
}

CudaEvent::~CudaEvent() {
  (void)cudaSetDevice(ordinal_);
  (void)cudaEventDestroy(event_);
}

void CudaEvent::synchronize() {
  if (capture_ != 0) throw Error("the host waited for an event that marks a place inside a graph", kCaptureHint);
  CUDA_CHECK(cudaSetDevice(ordinal_));
  CUDA_CHECK(cudaEventSynchronize(event_));
}

double CudaEvent::seconds_since(Event& earlier) {
  CudaEvent& begin = static_cast<CudaEvent&>(earlier);
  if (!recorded_ || !begin.recorded_)
    throw Error("the time to or from an event that no stream has recorded", "record both events first");
  begin.synchronize();
  synchronize();
  float milliseconds = 0.0f;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return 1e-3 * static_cast<double>(milliseconds);
}

CudaGraph::CudaGraph(cudaGraph_t graph, cudaStream_t stream) : graph_(graph) {
  std::size_t free_before = 0, free_after = 0, total_bytes = 0;
  cudaError_t status = cudaGraphGetNodes(graph_, nullptr, &node_count_);
  if (status == cudaSuccess) status = cudaMemGetInfo(&free_before, &total_bytes);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable_, graph_, 0);
  if (status == cudaSuccess) status = cudaGraphUpload(executable_, stream);
  if (status == cudaSuccess) status = cudaMemGetInfo(&free_after, &total_bytes);
  if (status != cudaSuccess) {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
    throw_cuda_error(status, "making a graph ready", __FILE__, __LINE__);
  }
  if (free_after <= free_before) device_bytes_ = free_before - free_after;
}

CudaGraph::~CudaGraph() {
  (void)cudaGraphExecDestroy(executable_);
  (void)cudaGraphDestroy(graph_);
}

CudaStream::CudaStream(int ordinal, const CudaMemory& memory, ActiveCaptures& captures)
    : ordinal_(ordinal), memory_(memory), captures_(captures) {
  CUDA_CHECK(cudaSetDevice(ordinal_));
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  (void)cudaSetDevice(ordinal_);
  if (begun_capture_ != 0) {
    cudaGraph_t abandoned = nullptr;
    (void)cudaStreamEndCapture(stream_, &abandoned);
    if (abandoned != nullptr) (void)cudaGraphDestroy(abandoned);
    (void)cudaGetLastError();
    captures_.erase(begun_capture_);
  }
  (void)cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::use() {
  CUDA_CHECK(cudaSetDevice(ordinal_));
  if (const std::unique_ptr<PendingWork> work = std::move(pending_)) work->enqueue(stream_);
  return stream_;
}

void CudaStream::postpone(std::unique_ptr<PendingWork> work) {
  (void)use();
  pending_ = std::move(work);
}

CaptureId CudaStream::capture() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CaptureId id = 0;
  CUDA_CHECK(cudaStreamGetCaptureInfo(stream_, &status, &id));
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

// One copy may touch several granules, of device and of host memory: it is cut where the placement changes.
void CudaStream::copy_run(std::uint64_t destination, std::uint64_t source, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaStream_t stream = use();
  while (bytes > 0) {
    std::size_t run = bytes;
    if (kind != cudaMemcpyDeviceToHost) run = std::min(run, memory_.placement_run(destination, bytes));
    if (kind != cudaMemcpyHostToDevice) run = std::min(run, memory_.placement_run(source, bytes));
    const std::uint64_t to = kind == cudaMemcpyDeviceToHost ? destination : memory_.transfer_address(destination);
    const std::uint64_t from = kind == cudaMemcpyHostToDevice ? source : memory_.transfer_address(source);
    CUDA_CHECK(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), run, cudaMemcpyDefault,
                               stream));
    destination += run;
    source += run;
    bytes -= run;
  }
}

void CudaStream::upload(DevicePtr<std::byte> destination, const void* source, std::size_t bytes) {
  copy_run(destination.address(), reinterpret_cast<std::uintptr_t>(source), bytes, cudaMemcpyHostToDevice);
}

void CudaStream::download(void* destination, DevicePtr<const std::byte> source, std::size_t bytes) {
  copy_run(reinterpret_cast<std::uintptr_t>(destination), source.address(), bytes, cudaMemcpyDeviceToHost);
}

void CudaStream::copy(DevicePtr<std::byte> destination, DevicePtr<const std::byte> source, std::size_t bytes) {
  copy_run(destination.address(), source.address(), bytes, cudaMemcpyDeviceToDevice);
}

void CudaStream::fill_zero(DevicePtr<std::byte> destination, std::size_t bytes) {
  const cudaStream_t stream = use();
  std::uint64_t address = destination.address();
  while (bytes > 0) {
    const std::size_t run = memory_.placement_run(address, bytes);
    CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(address), 0, run, stream));
    address += run;
    bytes -= run;
  }
}

void CudaStream::record(Event& event) {
  CudaEvent& recorded = static_cast<CudaEvent&>(event);
  CUDA_CHECK(cudaEventRecord(recorded.event_, use()));
  recorded.recorded_ = true;
  recorded.capture_ = capture();
}

// Checked here and not left to the runtime, whose refusal would end the capture.
void CudaStream::wait(Event& event) {
  const cudaStream_t stream = use();
  const CudaEvent& awaited = static_cast<CudaEvent&>(event);
  if (!awaited.recorded_) return;
  if (awaited.capture_ != 0 && !captures_.contains(awaited.capture_))
    throw Error("a stream waited for an event of a capture that is over", kCaptureHint);
  const CaptureId own = capture();
  if (own != 0 && awaited.capture_ != own)
    throw Error("a captured stream waited for work outside the capture", kCaptureHint);
  CUDA_CHECK(cudaStreamWaitEvent(stream, awaited.event_, cudaEventWaitDefault));
}

void CudaStream::begin_capture() {
  const cudaStream_t stream = use();
  GENAI_EXPECT(capture() == 0, "the stream is already being captured");
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  begun_capture_ = capture();
  captures_.insert(begun_capture_);
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  GENAI_EXPECT(begun_capture_ != 0, "the capture was not begun on this stream");
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(use(), &graph);
  captures_.erase(begun_capture_);
  begun_capture_ = 0;
  if (status != cudaSuccess) {
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw_cuda_error(status, "cudaStreamEndCapture", __FILE__, __LINE__);
  }
  return std::make_unique<CudaGraph>(graph, stream_);
}

void CudaStream::launch(Graph& graph) {
  const cudaStream_t stream = use();
  GENAI_EXPECT(capture() == 0, "a graph was launched inside a capture");
  CUDA_CHECK(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable_, stream));
}

void CudaStream::synchronize() {
  const cudaStream_t stream = use();
  if (capture() != 0) throw Error("a stream was synchronised while it is being captured", kCaptureHint);
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace genai::cuda
