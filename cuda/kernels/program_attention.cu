// program_attention.cu - the host's side of attention in a program (program_attention.cuh): what a call becomes, and the
// memory that its chunks need.
#include "cuda/kernels/program_attention.cuh"

#include <algorithm>

#include "cuda/launch.h"

namespace genai::cuda {

std::size_t program_handover_bytes(const ScratchLimits& limits) {
  const std::int64_t cells = partial_cells(std::max(limits.head_count, 1), std::max(limits.head_dim, 8),
                                           chunk_capacity(limits.max_positions));
  return HandoverMemory::kPartialOffset + static_cast<std::size_t>(cells) * sizeof(Cell);
}

}  // namespace genai::cuda
