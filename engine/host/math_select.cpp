// Which tables of host operations this processor and its system can run.
#include "engine/host/math.h"

namespace genai {

#if defined(__x86_64__)

const HostMath* find_host_math(InstructionSet instruction_set) {
  __builtin_cpu_init();  // these ask for the system's support (saved registers) too
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
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
  }
  return nullptr;
}
#else
const HostMath* find_host_math(InstructionSet instruction_set) {
  return instruction_set == InstructionSet::scalar ? &kScalarMath : nullptr;
}
#endif

const HostMath& best_host_math() {
  for (const InstructionSet candidate : {InstructionSet::avx512, InstructionSet::avx2})
    if (const HostMath* math = find_host_math(candidate)) return *math;
  return kScalarMath;
}

}  // namespace genai
