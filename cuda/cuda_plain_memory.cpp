#include "cuda/cuda_plain_memory.h"

#include <cuda_runtime_api.h>

#include "cuda/cuda_error.h"

namespace genai::cuda {

void* allocate_plain(Placement placement, std::size_t bytes) {
  const bool on_device = placement == Placement::device;
  void* begin = nullptr;
  const cudaError_t status =
      on_device ? cudaMalloc(&begin, bytes) : cudaHostAlloc(&begin, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaSuccess) return begin;
  (void)cudaGetLastError();
  if (status == cudaErrorMemoryAllocation || !on_device) return nullptr;
  throw_cuda_error(status, "cudaMalloc", __FILE__, __LINE__);
}

void free_plain(Placement placement, void* begin) noexcept {
  (void)(placement == Placement::device ? cudaFree(begin) : cudaFreeHost(begin));
}

}  // namespace genai::cuda
