// program_vector.cuh - the input of a product of a program: taken from memory or from cells as they are written,
// normalised and quantised into shared memory by the 512 consumers (row_vector.cuh).
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/cells.cuh"
#include "cuda/kernels/program.cuh"
#include "cuda/kernels/row_vector.cuh"

namespace genai::cuda {

inline constexpr int kConsumerBarrier = 1;
static_assert(kConsumerThreads == kVectorThreads);

// Of the last group, which has the fewest units to finish.
inline constexpr int kWatchingWarp = kConsumerThreads / kWarpLanes - 1;

__device__ __forceinline__ void consumer_barrier() { named_barrier<kConsumerBarrier, kConsumerThreads>(); }

// Where a program's input comes from.
struct VectorSource {
  const float* values;
  const Cell* cells;  // null: values
  unsigned tag;

  __device__ __forceinline__ VectorSource(const ProgramInput& input, const HandoverMemory& handover, unsigned launch)
      : values(input.values),
        cells(input.generation == 0 ? nullptr : handover.cells() + input.cells),
        tag(cell_tag(launch, input.generation)) {}
};

// Quads of a thread (row_vector.cuh), all asked for at once; those whose tags are not there yet again until they are.
__device__ __forceinline__ void take_quads(const VectorSource& source, int cols, int first,
                                           float4 (&quads)[kVectorQuads]) {
  if (source.cells == nullptr) return load_quads(source.values, cols, first, quads);
  const int left = cols - first;
  const Cell* from = source.cells + first;
  CellQuad cells[kVectorQuads];
#pragma unroll
  for (int k = 0; k < kVectorQuads; ++k) {
    cells[k].clear(source.tag);
    cells[k].look_at(from + k * kVectorStride, k * kVectorStride < left);
  }
#pragma unroll
  for (int k = 0; k < kVectorQuads; ++k) {
    while (!cells[k].has(source.tag)) cells[k].look_at(from + k * kVectorStride, true);
    quads[k] = make_float4(cells[k].value[0], cells[k].value[1], cells[k].value[2], cells[k].value[3]);
  }
}

// Waits until the vector is probably whole: its cells are looked at where each block's share ends, by one warp, so that
// waiting does not take the memory's time. Whether the others are there is seen when they are read.
__device__ __forceinline__ void watch_vector(const VectorSource& source, int cols) {
  if (source.cells == nullptr) return;
  const unsigned blocks = gridDim.x;
  for (unsigned share = threadIdx.x % kWarpLanes + 1; share <= blocks; share += kWarpLanes) {
    const int last = max(static_cast<int>(share * static_cast<unsigned>(cols) / blocks), 1) - 1;
    while (look_at(source.cells + last).tag != source.tag) {
    }
  }
  __syncwarp();
}

// Sum of squares of the staged row's elements i = thread (mod 256), ascending, by the first 256 threads.
__device__ __forceinline__ float staged_square_partial(const float* staged, int cols) {
  float partial = 0.0f;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += 256) partial = exact_fma(staged[i], staged[i], partial);
  return partial;
}

// The row into shared memory, once all consumers are through with the last operation; the caller has a barrier before
// anyone reads.
template <bool kSums>
__device__ __forceinline__ void prepare_program_vector(const VectorSource& source, const float* norm_weight,
                                                       float norm_epsilon, int cols, const RowVector& row,
                                                       float* staged) {
  const int thread = static_cast<int>(threadIdx.x);
  const int padded = octet_count(cols) * kOctetWidth;
  const int warp_first = thread / kWarpLanes * kTileWidth;
  const QuadPlace place(row);
  float4 quads[kVectorQuads];
  if (thread / kWarpLanes == kWatchingWarp) watch_vector(source, cols);
  consumer_barrier();
  take_quads(source, cols, 4 * thread, quads);
  if (norm_weight != nullptr) {
#pragma unroll
    for (int k = 0; k < kVectorQuads; ++k)
      if (4 * thread + k * kVectorStride < cols)
        *reinterpret_cast<float4*>(staged + 4 * thread + k * kVectorStride) = quads[k];
    float4 weights[kVectorQuads];
    load_quads(norm_weight, cols, 4 * thread, weights);
    consumer_barrier();
    if (thread < kVectorThreads / 2) row.reduce[thread] = staged_square_partial(staged, cols);
    consumer_barrier();
    float partials[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) partials[k] = row.reduce[kWarpLanes * k + thread % kWarpLanes];
    const float inverse = inverse_rms(warp_tree_256(partials), cols, norm_epsilon);
#pragma unroll
    for (int k = 0; k < kVectorQuads; ++k) {
      quads[k].x = (quads[k].x * inverse) * weights[k].x;
      quads[k].y = (quads[k].y * inverse) * weights[k].y;
      quads[k].z = (quads[k].z * inverse) * weights[k].z;
      quads[k].w = (quads[k].w * inverse) * weights[k].w;
    }
  }
  int quad = 0;
#pragma unroll 1
  for (int first = warp_first; first < padded; first += kVectorStride * kVectorQuads, quad += kVectorQuads) {
    if (first + kVectorStride < padded)
      quantize_quads<kSums, 2>(quads, place, quad);
    else
      quantize_quads<kSums, 1>(quads, place, quad);
    if (first + 3 * kVectorStride < padded)
      quantize_quads<kSums, 2>(quads + 2, place, quad + 2);
    else if (first + 2 * kVectorStride < padded)
      quantize_quads<kSums, 1>(quads + 2, place, quad + 2);
    if (first + kVectorQuads * kVectorStride < padded)
      take_quads(source, cols, 4 * thread + (quad + kVectorQuads) * kVectorStride, quads);
  }
}

}  // namespace genai::cuda
