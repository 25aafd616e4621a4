// host_words.cuh - words of host memory by which kernels talk to host cores (engine/exchange_words.h): each is stored
// and loaded whole, and holds the number of the request that it belongs to.
#pragma once
#include <cuda_runtime.h>

#include "cuda/kernels/quantize.cuh"
#include "cuda/kernels/warp.cuh"
#include "engine/exchange_words.h"

namespace genai::cuda {

__device__ __forceinline__ void store_word(ExchangeWord* place, unsigned data, unsigned request) {
  const ExchangeWord word = exchange_word(data, request);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}

__device__ __forceinline__ ExchangeWord load_word(const ExchangeWord* place) {
  ExchangeWord word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}

// By a whole warp: four neighbouring values a lane.
__device__ __forceinline__ void store_quantized_tile(ExchangeWord* words, const QuantizedFour& own, unsigned request) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  store_word(words + lane, own.quants, request);
  int half_sum = __dp4a(static_cast<int>(own.quants), 0x01010101, 0);
  half_sum += __shfl_xor_sync(kFullWarp, half_sum, 1);
  half_sum += __shfl_xor_sync(kFullWarp, half_sum, 2);
  // A block is eight lanes, half a block four. Lane l takes word l behind the quants.
  const int block_lane = lane % kTileBlocks * 8;
  const float scale = __shfl_sync(kFullWarp, own.scale, block_lane);
  const float sum = __shfl_sync(kFullWarp, own.sum, block_lane);
  const int first_half = __shfl_sync(kFullWarp, half_sum, block_lane);
  const int second_half = __shfl_sync(kFullWarp, half_sum, block_lane + 4);
  if (lane >= kTileWords - kScaleWord) return;
  const int plane = lane / kTileBlocks;
  const unsigned data = plane == 0   ? float_bits(scale)
                        : plane == 1 ? float_bits(sum)
                        : plane == 2 ? static_cast<unsigned>(first_half)
                                     : static_cast<unsigned>(second_half);
  store_word(words + kScaleWord + lane, data, request);
}

}  // namespace genai::cuda
