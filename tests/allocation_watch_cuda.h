// allocation_watch_cuda.h - every allocation of device or page-locked memory in this program. The linker sends the
// runtime's allocating calls here (allocation_watch_cuda.txt), where they are counted and refused; of the driver's,
// which are looked up by name, cuMemCreate and cuMemRelease are counted and passed on. So what the program holds is
// known to the byte, and a call from anywhere but cuda/cuda_memory.cpp shows. Tests of plain allocations say so, and
// the calls that these are made of are passed on meanwhile. One thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace genai::test {

struct AllocationWatch {
  std::vector<std::string> refused_calls;  // of the runtime, by name
  std::vector<std::string> looked_up;      // names of entry points of the driver
  std::uint64_t plain_allocations = 0;     // by the runtime, where they were allowed
  std::uint64_t created_granules = 0;      // by cuMemCreate
  std::uint64_t live_bytes = 0;            // created and not released
};

// Of this program, since it began.
const AllocationWatch& allocation_watch();

// While one lives, cudaMalloc and cudaHostAlloc are counted and not refused.
class PlainAllocationsAllowed {
 public:
  PlainAllocationsAllowed();
  ~PlainAllocationsAllowed();
  PlainAllocationsAllowed(const PlainAllocationsAllowed&) = delete;
  PlainAllocationsAllowed& operator=(const PlainAllocationsAllowed&) = delete;
};

}  // namespace genai::test
