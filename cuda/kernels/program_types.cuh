// program_types.cuh - the types of matrices that one kernel of many calls reads (program.cu, rows_program.cu).
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "cuda/cuda_error.h"
#include "cuda/kernels/tile.cuh"
#include "engine/device/kernels.h"

namespace genai::cuda {

struct ProgramTypes {
  DType first;
  DType second;

  bool operator==(const ProgramTypes&) const = default;
  bool have_minimum() const { return has_minimum(first) || has_minimum(second); }
  bool read(const MatmulArgs& args) const {
    return std::all_of(args.outputs, args.outputs + args.output_count, [this](const MatmulOutput& output) {
      return output.matrix.dtype == first || output.matrix.dtype == second;
    });
  }
};

// What quantisers write: one type, and the output matrix or half of some matrices in Q6_K.
inline constexpr std::array<ProgramTypes, 4> kProgramTypes = {
    {{DType::Q4_0, DType::Q6_K}, {DType::Q4_1, DType::Q6_K}, {DType::Q4_K, DType::Q6_K}, {DType::Q8_0, DType::Q8_0}}};

// The number of a kind in a table of `count`, which it is added to where it is new; negative: there is no room for it.
template <class Kind, std::size_t kMost>
int number_of(const Kind& kind, Kind (&kinds)[kMost], int& count) {
  for (int i = 0; i < count; ++i)
    if (kind == kinds[i]) return i;
  if (count == static_cast<int>(kMost)) return -1;
  kinds[count] = kind;
  return count++;
}

// Choice::kernel<first, second>() for each of them, in their order.
template <class Choice>
constexpr auto program_kernels() {
  return []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array{Choice::template kernel<kProgramTypes[kIndex].first, kProgramTypes[kIndex].second>()...};
  }
  (std::make_index_sequence<kProgramTypes.size()>());
}

// Once a device: more dynamic shared memory than a launch gets unasked.
template <class Kernels>
void allow_shared_bytes(const Kernels& kernels, int bytes) {
  for (const auto kernel : kernels)
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

inline std::size_t index_of(const ProgramTypes& types) {
  return static_cast<std::size_t>(std::find(kProgramTypes.begin(), kProgramTypes.end(), types) - kProgramTypes.begin());
}

}  // namespace genai::cuda
