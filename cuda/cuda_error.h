// cuda_error.h - turns a failed CUDA call into a DeviceError that says what failed, why, and what the user can do. The
// runtime's sticky error is cleared before the throw, so that the next unrelated call is not blamed. Nothing here
// allocates on the device or needs a current device.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "engine/error.h"

namespace genai::cuda {

struct DriverApi;

[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_driver_error(const DriverApi& driver, CUresult status, const char* call, const char* file,
                                     int line);

}  // namespace genai::cuda

#define CUDA_CHECK(call)                                                             \
  do {                                                                               \
    const cudaError_t cuda_check_status = (call);                                    \
    if (cuda_check_status != cudaSuccess)                                            \
      ::genai::cuda::throw_cuda_error(cuda_check_status, #call, __FILE__, __LINE__); \
  } while (false)

#define DRIVER_CHECK(driver, call)                                                                 \
  do {                                                                                             \
    const CUresult driver_check_status = (driver).call;                                            \
    if (driver_check_status != CUDA_SUCCESS)                                                       \
      ::genai::cuda::throw_driver_error((driver), driver_check_status, #call, __FILE__, __LINE__); \
  } while (false)

// After a launch: reports a launch that was refused (a bad shape, too much shared memory). What goes wrong while a
// kernel runs is reported by the next synchronising call.
#define CUDA_CHECK_LAUNCH(kernel_name)                                                                  \
  do {                                                                                                  \
    const cudaError_t cuda_check_status = cudaPeekAtLastError();                                        \
    if (cuda_check_status != cudaSuccess)                                                               \
      ::genai::cuda::throw_cuda_error(cuda_check_status, "launch of " kernel_name, __FILE__, __LINE__); \
  } while (false)
