#include "cuda/cuda_error.h"

#include <string>

#include "cuda/cuda_driver.h"

namespace genai::cuda {
namespace {

const char* hint_for(const std::string& name) {
  if (name == "cudaErrorMemoryAllocation" || name == "CUDA_ERROR_OUT_OF_MEMORY")
    return "lower --gpu-budget or the context size, or free memory that other programs hold (nvidia-smi lists them)";
  if (name == "cudaErrorInsufficientDriver" || name == "cudaErrorSystemDriverMismatch")
    return "install an NVIDIA driver that is at least as new as the CUDA version of this build, or use --device cpu";
  if (name == "cudaErrorNoDevice" || name == "CUDA_ERROR_NO_DEVICE")
    return "use --device cpu, or check with nvidia-smi that the GPU is visible to this process";
  if (name == "cudaErrorNoKernelImageForDevice" || name == "cudaErrorInvalidDeviceFunction")
    return "this build has no code for this GPU: build with -DCMAKE_CUDA_ARCHITECTURES=native";
  if (name == "cudaErrorIllegalAddress" || name == "cudaErrorLaunchFailure" || name == "cudaErrorAssert" ||
      name == "CUDA_ERROR_ILLEGAL_ADDRESS" || name == "CUDA_ERROR_LAUNCH_FAILED")
    return "this is a bug in genai or failing hardware: the device context is lost; please report it with the command "
           "line, and try --device cpu";
  if (name == "cudaErrorDevicesUnavailable")
    return "another process holds the GPU exclusively; wait for it, or use --device cpu";
  return "try again with --device cpu; if that works, please report this with the command line";
}

std::string describe(const std::string& name, const std::string& text, const char* call, const char* file, int line) {
  return "CUDA error " + name + " (" + text + ") in " + call + " at " + file + ":" + std::to_string(line);
}

}  // namespace

void throw_cuda_error(cudaError_t status, const char* call, const char* file, int line) {
  (void)cudaGetLastError();
  const std::string name = cudaGetErrorName(status);
  throw DeviceError(describe(name, cudaGetErrorString(status), call, file, line), hint_for(name));
}

void throw_driver_error(const DriverApi& driver, CUresult status, const char* call, const char* file, int line) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(status, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  if (driver.get_error_string(status, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  throw DeviceError(describe(name, text, call, file, line), hint_for(name));
}

}  // namespace genai::cuda
