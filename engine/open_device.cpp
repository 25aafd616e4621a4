#include "engine/open_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "engine/error.h"
#include "engine/host/host_device.h"
#include "engine/host/host_limits.h"
#include "engine/host/host_memory.h"
#ifdef GENAI_WITH_CUDA
#include "cuda/cuda_device.h"
#endif

namespace genai {
namespace {

constexpr InstructionSet kInstructionSets[] = {InstructionSet::scalar, InstructionSet::avx2, InstructionSet::avx512,
                                               InstructionSet::amx};

std::string_view instruction_set_name(InstructionSet set) {
  switch (set) {
    case InstructionSet::scalar:
      return "scalar";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
    case InstructionSet::amx:
      return "amx";
  }
  return "";
}

const HostMath& choose_math(const std::string& name) {
  if (name.empty()) return best_host_math();
  std::string available;
  bool is_known = false;
  for (const InstructionSet set : kInstructionSets) {
    const HostMath* math = find_host_math(set);
    if (name == instruction_set_name(set)) {
      if (math != nullptr) return *math;
      is_known = true;
    }
    if (math != nullptr) available += fmt::format("{}{}", available.empty() ? "" : ", ", instruction_set_name(set));
  }
  throw UsageError(fmt::format("instruction set '{}' is {}", name, is_known ? "not available here" : "not known"),
                   fmt::format("this machine and build have: {}; unset GENAI_ISA for the fastest", available));
}

// Work for cores beside a GPU comes when a kernel or a copy is done: to wake them would take longer than most of it.
constexpr std::chrono::microseconds kSpinTimeBesideGpu{5000};

std::unique_ptr<Device> make_host_device(int threads, const HostMath& math, std::chrono::microseconds spin_time) {
  HostDeviceOptions options;
  options.spin_time = spin_time;
  options.threads = threads;
  options.math = &math;
  return std::make_unique<HostDevice>(options);
}

OpenedDevice open_host(const DeviceRequest& request) {
  const HostMath& math = choose_math(request.instruction_set);
  OpenedDevice opened;
  opened.backend = Backend::host;
  opened.instruction_set = instruction_set_name(math.instruction_set);
  if (request.threads > 0) {
    opened.threads = request.threads;
    opened.threads_reason = "asked for";
  } else {
    const ThreadCountChoice choice = default_thread_count();
    opened.threads = choice.count;
    opened.threads_reason = choice.reason;
  }
  opened.device = make_host_device(opened.threads, math, ThreadPool::kSpinTime);
  return opened;
}

#ifdef GENAI_WITH_CUDA
// Ordinary memory of the host, as HostMemory gives it out.
std::unique_ptr<VirtualMemory> make_pageable_memory(std::size_t granule_bytes) {
  static const std::atomic<int> kNoCaptures{0};  // the device itself refuses calls during a capture
  return std::make_unique<HostMemory>(HostMemoryOptions{.granule_bytes = granule_bytes}, kNoCaptures);
}

ReadProbe read_probe(const cuda::DeviceTraits& traits) {
  return [traits](Stream& stream, DevicePtr<const std::byte> begin, std::uint64_t bytes) -> std::optional<double> {
    constexpr std::uint64_t kCaches = 4;
    constexpr std::uint64_t kEnoughBytes = std::uint64_t{2} << 30;  // within 1 % of what all memory gives
    if (bytes < kCaches * static_cast<std::uint64_t>(traits.l2_bytes)) return std::nullopt;
    return cuda::measure_read_gbps(stream, traits, begin, std::min(bytes, kEnoughBytes));
  };
}
#endif

// No device, a reason and what to do, where there is none.
OpenedDevice open_cuda(const DeviceRequest& request, std::string& hint) {
#ifdef GENAI_WITH_CUDA
  cuda::OpenedDevice found = cuda::open_cuda_device(request.cuda_ordinal, make_pageable_memory);
  OpenedDevice opened;
  opened.backend = Backend::cuda;
  opened.device = std::move(found.device);
  if (opened.device != nullptr) {
    opened.sm_count = found.traits.sm_count;
    const int version = found.traits.driver_version;  // 13000 is 13.0
    opened.driver = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    opened.measure_read_gbps = read_probe(found.traits);
  }
  opened.fallback_reason = std::move(found.problem);
  hint = std::move(found.hint);
  // The host still loads, tokenizes and samples.
  const ThreadCountChoice choice = default_thread_count();
  opened.threads = request.threads > 0 ? request.threads : choice.count;
  opened.threads_reason = request.threads > 0 ? "asked for" : choice.reason;
  if (opened.device == nullptr) return opened;
  const HostMath& math = choose_math(request.instruction_set);
  opened.instruction_set = instruction_set_name(math.instruction_set);
  // One core waits for the device, one is for everything else: with none to spare all of them become slow.
  opened.host_device =
      make_host_device(std::max(1, opened.threads - (opened.threads > 4 ? 2 : 1)), math, kSpinTimeBesideGpu);
  return opened;
#else
  (void)request;
  hint = "build genai where the CUDA toolkit is installed (cmake -DGENAI_CUDA=ON says what is missing)";
  return {};
#endif
}

OpenedDevice open_requested(const DeviceRequest& request) {
  if (request.backend == Backend::host) return open_host(request);
  std::string hint;
  OpenedDevice opened = open_cuda(request, hint);
  if (opened.device != nullptr) return opened;
  if (request.backend == Backend::cuda) {
    const std::string why =
        opened.fallback_reason.empty() ? "this build of genai has no CUDA backend" : opened.fallback_reason;
    throw DeviceError(fmt::format("cannot use cuda:{}: {}", request.cuda_ordinal, why),
                      hint.empty() ? "use --device cpu" : hint + "; or use --device cpu");
  }
  OpenedDevice host = open_host(request);
  host.fallback_reason = opened.fallback_reason;
  return host;
}

}  // namespace

OpenedDevice open_device(const DeviceRequest& request) {
  OpenedDevice opened = open_requested(request);
  opened.host_available_bytes = host_memory_limits().free_bytes;
  return opened;
}

}  // namespace genai
