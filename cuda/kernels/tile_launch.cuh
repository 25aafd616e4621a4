// tile_launch.cuh - launches of tiled products: which of a kernel's shapes serves a product, its share of blocks, and
// what the kernel is given. matmul_tiles.cu and matmul_half_tiles.cu bring the kernels.
#pragma once
#include "cuda/kernels/tile_work.cuh"
#include "cuda/launch.h"

namespace genai::cuda {

// A kernel for one type and one shape of items.
struct TilesChoice {
  void (*kernel)(TilesProduct);
  int threads;
  int shared_bytes;
  int lone_shared_bytes;  // of launches with at most a block for each multiprocessor: none should take two
  int block_strips;
  int columns;
  int blocks_per_sm;
  int cost;        // time of an item, in clocks a step
  int alone_cost;  // the same of a block that has the multiprocessor for itself
};

// Null kernels for types that are not served.
struct TilesChoices {
  TilesChoice (*of)(DType dtype, int shape);
  int shape_count;
};

// make.operator()<type>(), or an empty choice for types that are not quantised.
template <class Make>
TilesChoice quantized_choice(DType dtype, const Make& make) {
  switch (dtype) {
    case DType::Q4_0:
      return make.template operator()<DType::Q4_0>();
    case DType::Q4_1:
      return make.template operator()<DType::Q4_1>();
    case DType::Q5_0:
      return make.template operator()<DType::Q5_0>();
    case DType::Q5_1:
      return make.template operator()<DType::Q5_1>();
    case DType::Q8_0:
      return make.template operator()<DType::Q8_0>();
    case DType::Q4_K:
      return make.template operator()<DType::Q4_K>();
    case DType::Q5_K:
      return make.template operator()<DType::Q5_K>();
    case DType::Q6_K:
      return make.template operator()<DType::Q6_K>();
    default:
      return {};
  }
}

// Whether the driver knows the tensor copy engine.
bool has_box_copies();

// Once a device: the kernels need more shared memory than a launch gets unasked.
void allow_shared_bytes(const TilesChoices& choices);

// Of a call, in clocks, all its launches.
std::int64_t tiles_cost(const DeviceTraits& traits, const MatmulArgs& args, const TilesChoices& choices);

// One launch a weight type; `input` is prepared.
void launch_tiles(const char* kernel_name, const LaunchTarget& target, const MatmulArgs& args, TileInput input,
                  const TilesChoices& choices);

}  // namespace genai::cuda
