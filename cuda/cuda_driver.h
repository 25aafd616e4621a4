// cuda_driver.h - the driver's entry points that the runtime has no equal for, looked up when a device is opened, so
// that nothing links against libcuda and the binary starts on a machine without a driver. Plain function pointers; any
// thread.
#pragma once
#include <cuda.h>

#include <optional>
#include <string>

namespace genai::cuda {

struct DriverApi {
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&::cuMemAddressFree) mem_address_free = nullptr;
  decltype(&::cuMemCreate) mem_create = nullptr;
  decltype(&::cuMemRelease) mem_release = nullptr;
  decltype(&::cuMemMap) mem_map = nullptr;
  decltype(&::cuMemUnmap) mem_unmap = nullptr;
  decltype(&::cuMemSetAccess) mem_set_access = nullptr;
  decltype(&::cuMemGetAllocationGranularity) mem_get_allocation_granularity = nullptr;
};

struct DriverLookup {
  std::optional<DriverApi> api;
  std::string problem;  // why there is no api
};

DriverLookup find_driver_api();

}  // namespace genai::cuda
