// embed.cu - embedding.   x[m] = scale * matrix[token[m]]
// Shapes   matrix packed (vocabulary, K) of any type; x (M, K) f32.
// Mapping  one block a row, a thread an element, in steps of the block.
// Bound    memory, and small: one matrix row and 4*K bytes a row.
// Twin     engine/host: embed (engine/README.md, "Embedding").
#include "cuda/kernels/tile.cuh"
#include "cuda/kernels/warp.cuh"
#include "cuda/launch.h"

namespace genai::cuda {
namespace {

constexpr int kThreads = 256;

template <DType kType>
__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedArgs args) {
  start_in_order();
  const std::int64_t m = blockIdx.x;
  const int token = raw(args.rows)[m].token;
  const bool in_rest = token >= args.matrix.rows;
  const int row = in_rest ? token - args.matrix.rows : token;
  const TileBytes* strip = reinterpret_cast<const TileBytes*>((in_rest ? args.rest : args.matrix).data.address()) +
                           row / kStripRows * strip_bytes(kType, args.matrix.cols);
  float* out = raw(args.out) + m * args.matrix.cols;
  for (int i = static_cast<int>(threadIdx.x); i < args.matrix.cols; i += kThreads) {
    const TileBytes* tile = strip + static_cast<std::int64_t>(i / kTileWidth) * tile_layout(kType).tile_bytes;
    out[i] = load_weight<kType>(tile, row % kStripRows, i % kTileWidth) * args.scale;
  }
}

using EmbedKernel = void (*)(EmbedArgs);

EmbedKernel embed_kernel_for(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return embed_kernel<DType::F32>;
    case DType::F16:
      return embed_kernel<DType::F16>;
    case DType::BF16:
      return embed_kernel<DType::BF16>;
    case DType::Q4_0:
      return embed_kernel<DType::Q4_0>;
    case DType::Q4_1:
      return embed_kernel<DType::Q4_1>;
    case DType::Q5_0:
      return embed_kernel<DType::Q5_0>;
    case DType::Q5_1:
      return embed_kernel<DType::Q5_1>;
    case DType::Q8_0:
      return embed_kernel<DType::Q8_0>;
    case DType::Q4_K:
      return embed_kernel<DType::Q4_K>;
    case DType::Q5_K:
      return embed_kernel<DType::Q5_K>;
    case DType::Q6_K:
      return embed_kernel<DType::Q6_K>;
  }
  throw Error("no embedding kernel for a weight type", "this is a bug in genai: please report it");
}

}  // namespace

void launch_embed(const LaunchTarget& target, const EmbedArgs& args) {
  launch_kernel("embed_kernel", embed_kernel_for(args.matrix.dtype),
                {dim3(static_cast<unsigned>(args.row_count)), dim3(kThreads)}, target, args);
}

}  // namespace genai::cuda
