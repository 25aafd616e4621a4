#include "tests/allocation_watch_cuda.h"

#include <cstddef>
#include <map>
#include <string_view>

// The calls keep the C names of a runtime whose headers are only for cuda/: enumerations are int here, handles are
// unsigned long long, and calls that are refused need no parameters.
namespace genai::test {
namespace {

constexpr int kRefused = 801;  // "not supported"

using Handle = unsigned long long;
using CreateCall = int (*)(Handle*, std::size_t, const void*, unsigned long long);
using ReleaseCall = int (*)(Handle);

struct State {
  AllocationWatch watch;
  std::map<Handle, std::size_t> live;
  CreateCall create = nullptr;
  ReleaseCall release = nullptr;
  int plain_allowed = 0;
};

// Never destroyed: devices that live as long as the program release memory at its end.
State& state() {
  static State* const only = new State;
  return *only;
}

// False, and counted, where the call is one of those that are allowed now.
bool refuses_plain() {
  if (state().plain_allowed == 0) return true;
  ++state().watch.plain_allocations;
  return false;
}

int refuse(const char* call) {
  state().watch.refused_calls.push_back(call);
  return kRefused;
}

int counted_create(Handle* handle, std::size_t bytes, const void* properties, unsigned long long flags) {
  const int status = state().create(handle, bytes, properties, flags);
  if (status != 0) return status;
  ++state().watch.created_granules;
  state().watch.live_bytes += bytes;
  state().live[*handle] = bytes;
  return status;
}

int counted_release(Handle handle) {
  const int status = state().release(handle);
  if (status != 0) return status;
  state().watch.live_bytes -= state().live[handle];
  state().live.erase(handle);
  return status;
}

// Puts a counter in front of the entry points that give and take memory.
void watch_entry_point(std::string_view symbol, void** function) {
  state().watch.looked_up.emplace_back(symbol);
  if (symbol == "cuMemCreate") {
    state().create = reinterpret_cast<CreateCall>(*function);
    *function = reinterpret_cast<void*>(&counted_create);
  } else if (symbol == "cuMemRelease") {
    state().release = reinterpret_cast<ReleaseCall>(*function);
    *function = reinterpret_cast<void*>(&counted_release);
  }
}

}  // namespace

const AllocationWatch& allocation_watch() { return state().watch; }

PlainAllocationsAllowed::PlainAllocationsAllowed() { ++state().plain_allowed; }
PlainAllocationsAllowed::~PlainAllocationsAllowed() { --state().plain_allowed; }

}  // namespace genai::test

extern "C" {

#define GENAI_REFUSED_CALL(name) \
  int __wrap_cuda##name() { return genai::test::refuse("cuda" #name); }
GENAI_REFUSED_CALL(Malloc3D)
GENAI_REFUSED_CALL(Malloc3DArray)
GENAI_REFUSED_CALL(MallocArray)
GENAI_REFUSED_CALL(MallocAsync)
GENAI_REFUSED_CALL(MallocFromPoolAsync)
GENAI_REFUSED_CALL(MallocHost)
GENAI_REFUSED_CALL(MallocManaged)
GENAI_REFUSED_CALL(MallocMipmappedArray)
GENAI_REFUSED_CALL(MallocPitch)
GENAI_REFUSED_CALL(MemPoolCreate)
GENAI_REFUSED_CALL(GraphAddMemAllocNode)
GENAI_REFUSED_CALL(HostRegister)
GENAI_REFUSED_CALL(GetDriverEntryPoint)
#undef GENAI_REFUSED_CALL

int __real_cudaMalloc(void** memory, std::size_t bytes);
int __real_cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);

int __wrap_cudaMalloc(void** memory, std::size_t bytes) {
  return genai::test::refuses_plain() ? genai::test::refuse("cudaMalloc") : __real_cudaMalloc(memory, bytes);
}

int __wrap_cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return genai::test::refuses_plain() ? genai::test::refuse("cudaHostAlloc")
                                      : __real_cudaHostAlloc(memory, bytes, flags);
}

int __real_cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                            unsigned long long flags, void* found);

int __wrap_cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                            unsigned long long flags, void* found) {
  const int status = __real_cudaGetDriverEntryPointByVersion(symbol, function, version, flags, found);
  if (status == 0 && *function != nullptr) genai::test::watch_entry_point(symbol, function);
  return status;
}

}  // extern "C"
