// Which tables of host operations this processor can run.
#include "engine/host/math.h"

namespace genai {

const HostMath* find_host_math(InstructionSet instruction_set) {
  return instruction_set == InstructionSet::scalar ? &kScalarMath : nullptr;
}

const HostMath& best_host_math() {
  for (const InstructionSet candidate : {InstructionSet::avx512, InstructionSet::avx2})
    if (const HostMath* math = find_host_math(candidate)) return *math;
  return kScalarMath;
}

}  // namespace genai
