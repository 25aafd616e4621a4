// cuda_plain_memory.h - ordinary allocations of the runtime, for the arm that is there to compare with. No other source
// may make such calls (scripts/check_device_allocations.py); only CudaMemory calls these, on the device that is
// current.
#pragma once
#include <cstddef>

#include "engine/device/virtual_memory.h"

namespace genai::cuda {

// Null when that memory is exhausted, or the host's cannot be locked. REQUIRES: not Placement::pageable.
void* allocate_plain(Placement placement, std::size_t bytes);
void free_plain(Placement placement, void* begin) noexcept;

}  // namespace genai::cuda
