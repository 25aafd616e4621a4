// Which tables of host operations this processor and its system can run.
#include "engine/host/math.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace genai {

#if defined(__x86_64__)
namespace {

// Tile registers are 8 KB of state that a process has to ask the system for.
bool has_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTiles) == 0 || (edx & kBytes) == 0) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Not every compiler's __builtin_cpu_supports knows this one. It uses the registers of AVX, which AVX2 answers for.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const HostMath* find_host_math(InstructionSet instruction_set) {
  __builtin_cpu_init();  // these ask for the system's support (saved registers) too
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni");
  switch (instruction_set) {
    case InstructionSet::scalar:
      return &kScalarMath;
    case InstructionSet::avx2:
      return has_avx2 ? &kAvx2Math : nullptr;
    case InstructionSet::avx512:
      return has_avx512 ? &kAvx512Math : nullptr;
    case InstructionSet::amx: {
      static const bool is_usable = has_avx512 && has_amx();
      return is_usable ? &kAmxMath : nullptr;
    }
  }
  return nullptr;
}
#else
const HostMath* find_host_math(InstructionSet instruction_set) {
  return instruction_set == InstructionSet::scalar ? &kScalarMath : nullptr;
}
#endif

const HostMath& best_host_math() {
  for (const InstructionSet candidate : {InstructionSet::amx, InstructionSet::avx512, InstructionSet::avx2})
    if (const HostMath* math = find_host_math(candidate)) return *math;
  return kScalarMath;
}

}  // namespace genai
