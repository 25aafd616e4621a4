#include "cuda/cuda_driver.h"

#include <cuda_runtime_api.h>

namespace genai::cuda {
namespace {

// The newest signature that any of the entry points below needs.
constexpr unsigned kDriverVersion = 12000;

template <class Function>
bool find_entry(const char* symbol, Function* function, std::string* problem) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(symbol, &address, kDriverVersion, cudaEnableDefault, &found);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    *problem = std::string("the CUDA driver does not answer: ") + cudaGetErrorString(status);
    return false;
  }
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    *problem = std::string("the CUDA driver has no ") + symbol + ": it is older than CUDA 12";
    return false;
  }
  *function = reinterpret_cast<Function>(address);
  return true;
}

}  // namespace

DriverLookup find_driver_api() {
  DriverLookup lookup;
  DriverApi api;
  const bool complete =
      find_entry("cuGetErrorName", &api.get_error_name, &lookup.problem) &&
      find_entry("cuGetErrorString", &api.get_error_string, &lookup.problem) &&
      find_entry("cuDeviceGetAttribute", &api.device_get_attribute, &lookup.problem) &&
      find_entry("cuMemAddressReserve", &api.mem_address_reserve, &lookup.problem) &&
      find_entry("cuMemAddressFree", &api.mem_address_free, &lookup.problem) &&
      find_entry("cuMemCreate", &api.mem_create, &lookup.problem) &&
      find_entry("cuMemRelease", &api.mem_release, &lookup.problem) &&
      find_entry("cuMemMap", &api.mem_map, &lookup.problem) &&
      find_entry("cuMemUnmap", &api.mem_unmap, &lookup.problem) &&
      find_entry("cuMemSetAccess", &api.mem_set_access, &lookup.problem) &&
      find_entry("cuMemGetAllocationGranularity", &api.mem_get_allocation_granularity, &lookup.problem);
  if (complete) lookup.api = api;
  return lookup;
}

}  // namespace genai::cuda
