#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "cuda/cuda_capture.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_error.h"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_memory.h"
#include "cuda/cuda_stream.h"

namespace genai::cuda {
namespace {

// What the driver takes of device memory for graphs that are ready to run. On an H200, 10,000 operations in five graphs
// took up to 3.7 KiB each, in steps of 2 MiB, and the first ones nothing that was not the context's already.
constexpr std::uint64_t kGraphStepBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kGraphOperationBytes = 4096;

class CudaDevice final : public Device {
 public:
  CudaDevice(const DriverApi& driver, const DeviceTraits& traits, std::string name,
             const PageableMemorySource& pageable)
      : ordinal_(traits.ordinal),
        name_(std::move(name)),
        memory_(driver, traits.ordinal, captures_, pageable),
        kernels_(traits) {}

  const DeviceTraits& traits() const { return kernels_.traits(); }
  std::string name() const override { return name_; }
  VirtualMemory& memory() override { return memory_; }
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<CudaStream>(ordinal_, memory_, captures_);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(ordinal_); }
  std::uint64_t graph_reserve_bytes(std::size_t graph_count, std::size_t operation_count) const override {
    return kGraphStepBytes + graph_count * operation_count * kGraphOperationBytes;
  }

 private:
  const int ordinal_;
  const std::string name_;
  ActiveCaptures captures_;
  CudaMemory memory_;
  CudaKernels kernels_;
};

OpenedDevice absent(std::string problem, std::string hint = {}) {
  OpenedDevice answer;
  answer.problem = std::move(problem);
  answer.hint = std::move(hint);
  return answer;
}

// Why the runtime lists no device. Without a driver it speaks of versions that do not match.
OpenedDevice absent_driver(cudaError_t status) {
  int driver_version = 0;
  const bool has_driver = cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version > 0;
  (void)cudaGetLastError();
  if (!has_driver)
    return absent(
        "no NVIDIA driver is installed here (libcuda.so.1 was not found)",
        "install the NVIDIA driver, so that `nvidia-smi` lists the GPU; in a container, pass the GPU in (docker "
        "run --gpus all)");
  if (status == cudaErrorInsufficientDriver)
    return absent("the NVIDIA driver is too old: it knows CUDA " + std::to_string(driver_version / 1000) + "." +
                      std::to_string(driver_version % 1000 / 10) + ", this build needs " +
                      std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10),
                  "update the NVIDIA driver, or build with an older CUDA toolkit");
  return absent(std::string("no CUDA device: ") + cudaGetErrorString(status),
                "see whether `nvidia-smi` lists the GPU, and whether CUDA_VISIBLE_DEVICES hides it");
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

}  // namespace

OpenedDevice open_cuda_device(int ordinal, const PageableMemorySource& pageable, WideProducts wide_products) {
  int device_count = 0;
  const cudaError_t status = cudaGetDeviceCount(&device_count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return absent_driver(status);
  }
  if (device_count == 0) return absent("no CUDA device: the driver lists none");
  if (ordinal < 0 || ordinal >= device_count)
    return absent("no CUDA device " + std::to_string(ordinal) + ": the driver lists " + std::to_string(device_count) +
                  ", counted from 0");

  DriverLookup driver = find_driver_api();
  if (!driver.api) return absent("no usable CUDA device: " + driver.problem);

  OpenedDevice opened;
  DeviceTraits& traits = opened.traits;
  traits.ordinal = ordinal;
  traits.wide_products = wide_products;
  CUDA_CHECK(cudaDriverGetVersion(&traits.driver_version));
  traits.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, ordinal) +
                              attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  if (traits.compute_capability < 75)
    return absent("the CUDA device is of compute capability " + std::to_string(traits.compute_capability / 10) + "." +
                  std::to_string(traits.compute_capability % 10) + ", and genai needs 7.5");
  traits.sm_count = attribute(cudaDevAttrMultiProcessorCount, ordinal);
  traits.l2_bytes = attribute(cudaDevAttrL2CacheSize, ordinal);
  traits.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  traits.shared_bytes_per_sm = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal);

  CUDA_CHECK(cudaSetDevice(ordinal));  // creates the context
  int has_virtual_memory = 0;
  DRIVER_CHECK(*driver.api, device_get_attribute(&has_virtual_memory,
                                                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal));
  if (has_virtual_memory == 0) return absent("the CUDA device does not support virtual memory management");

  cudaDeviceProp properties = {};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  auto device = std::make_unique<CudaDevice>(*driver.api, traits, properties.name, pageable);
  traits = device->traits();
  opened.device = std::move(device);
  return opened;
}

}  // namespace genai::cuda
