// program_units.cuh - how a block of a program cuts its strips of a product into units of work: a bundle of whole
// strips that fits a slot of the ring, or one longer strip in pieces of even size (row_units.cuh). The units of all
// outputs follow each other; four are a round, a unit for each group of warps.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/program.cuh"
#include "cuda/kernels/row_units.cuh"

namespace genai::cuda {

static_assert(kProgramGroups == kRowGroups);

struct ProgramUnit {
  int output;
  int first_strip;
  int strips;
};

// A block's share of one product, worked out before the first operation begins and kept in shared memory.
class BlockShare {
 public:
  static constexpr int numbers(int output_count) { return 2 + 3 * output_count; }

  __device__ __forceinline__ explicit BlockShare(int* place) : numbers_(place) {}

  // By one thread.
  template <DType kFirst, DType kSecond>
  __device__ __forceinline__ void plan(const ProgramProduct& product, int most_unit_strips) {
    const StreamShape& shape = product.shape;
    int strips = 0;
#pragma unroll 1
    for (int output = 0; output < shape.output_count; ++output) {
      const StripRange range =
          owned_strips<kFirst, kSecond>(shape, output, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
      of(output)[0] = range.first;
      of(output)[1] = range.end - range.first;
      strips += range.end - range.first;
    }
    const int even = (strips + kProgramGroups - 1) / kProgramGroups;
    const int unit_strips = max(1, min(min(product.cut.fitting_strips, even), most_unit_strips));
    int units = 0;
#pragma unroll 1
    for (int output = 0; output < shape.output_count; ++output) {
      of(output)[2] = units;
      units += (of(output)[1] + unit_strips - 1) / unit_strips;
    }
    numbers_[0] = unit_strips;
    numbers_[1] = units;
  }

  __device__ __forceinline__ int unit_strips() const { return numbers_[0]; }
  __device__ __forceinline__ int unit_count() const { return numbers_[1]; }
  __device__ __forceinline__ ProgramUnit unit(int index, int output_count) const {
    int output = 0;
#pragma unroll
    for (int next = 1; next < kMaxStreamOutputs; ++next)
      if (next < output_count && index >= of(next)[2]) output = next;
    const int* own = of(output);
    const int strip = (index - own[2]) * unit_strips();
    return {output, own[0] + strip, min(unit_strips(), own[1] - strip)};
  }

 private:
  // The first strip of an output, their number, the first unit.
  __device__ __forceinline__ int* of(int output) const { return numbers_ + numbers(output); }

  int* numbers_;
};

}  // namespace genai::cuda
