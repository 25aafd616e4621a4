// launch.h - the launchers of all kernels, one per operation and way of doing it, and the one function that launches. A
// launcher checks nothing but shapes it cannot serve; it enqueues and returns, and is legal inside a capture. Which
// launcher serves a call is decided in cuda_kernels.cpp.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "cuda/cuda_device.h"
#include "cuda/cuda_error.h"
#include "engine/device/kernels.h"

namespace genai::cuda {

struct LaunchTarget {
  cudaStream_t stream;
  const DeviceTraits& traits;
};

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  unsigned cluster_blocks = 1;  // along x; more than 1 needs compute capability 9.0
};

// `kernel_name` is for the error message. From compute capability 9.0 on, kernels of a stream overlap: each begins
// while the one before it still runs, and must wait for it (ptx.cuh, wait_for_previous_grid) before it touches what
// kernels write.
template <class... Parameters, class... Arguments>
void launch_kernel(const char* kernel_name, void (*kernel)(Parameters...), const LaunchShape& shape,
                   const LaunchTarget& target, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned attribute_count = 0;
  if (target.traits.compute_capability >= 90) {
    attributes[attribute_count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[attribute_count].val.programmaticStreamSerializationAllowed = 1;
    ++attribute_count;
  }
  if (shape.cluster_blocks > 1) {
    attributes[attribute_count].id = cudaLaunchAttributeClusterDimension;
    attributes[attribute_count].val.clusterDim.x = shape.cluster_blocks;
    attributes[attribute_count].val.clusterDim.y = 1;
    attributes[attribute_count].val.clusterDim.z = 1;
    ++attribute_count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = target.stream;
  config.attrs = attributes;
  config.numAttrs = attribute_count;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (status != cudaSuccess) throw_cuda_error(status, kernel_name, __FILE__, __LINE__);
}

// The compute capability that the kernels in use were compiled for. Where the device is newer than this build, that is
// less than the device's, and instructions in between were left out (ptx.cuh).
int compiled_capability();

// NOTE [Neighbours]
// While a kernel runs, blocks of the next one should already be there, one a multiprocessor, with their first weights
// on the way. So kernels of a decode step launch one block a multiprocessor that leaves room for one more. If a
// multiprocessor ever got two blocks of one kernel and another none, the next kernels would follow that pattern, and
// each would take up to twice its time; nothing would end it. Attention does, in every layer: its blocks, and those
// that merge its chunks, ask for more than half of the shared memory, so that no multiprocessor takes two; what they
// leave is the share of a product. Products with several rows run two such blocks a multiprocessor (NOTE [Rows
// stream]). The driver keeps 1 KB of every block's share for itself.
//
// NOTE [Early reads]
// A product with a few rows (matmul_rows.cu, rows_program.cu) lets the next kernel begin only when its own wait for the
// previous one is over in all of its blocks: when the next kernel begins, all that was enqueued ahead of the product
// has ended. So what neither the product nor the kernels behind it write may be read there without waiting: the rows of
// a pass and the table by the rotation and, in the kernel behind it, the chunks of the cache that the rotation leaves
// alone.
inline constexpr int kReservedShared = 1024;

inline int lone_shared_bytes(const DeviceTraits& traits) {
  return traits.shared_bytes_per_sm / 2 - kReservedShared + 128;
}
inline int neighbour_shared_bytes(const DeviceTraits& traits) {
  return traits.shared_bytes_per_sm - lone_shared_bytes(traits) - 2 * kReservedShared;
}

// Whether rows of the input, and those of the norm, start and end at 16-byte addresses.
inline bool has_whole_fours(const MatmulArgs& args) {
  return args.outputs[0].matrix.cols % 4 == 0 && args.input_stride % 4 == 0 && args.input.address() % 16 == 0 &&
         args.norm_weight.address() % 16 == 0;
}

// Activations as a product with quantised weights reads them, for M rows of K values padded to `width`.
struct PreparedInput {
  signed char* quants;  // (M, width)
  float* scales;        // (M, width / 32)
  float* sums;          // (M, width / 32): scale * sum of the block's quants
  float* inverse_rms;   // (M), where there is a norm
  int width;
  int row_count;

  static std::size_t bytes(int row_count, int cols);
  static PreparedInput in_scratch(DevicePtr<std::byte> scratch, int row_count, int cols);
};

void launch_prepare_input(const LaunchTarget& target, const MatmulArgs& args, const PreparedInput& prepared);
void launch_matmul_plain(const LaunchTarget& target, const MatmulArgs& args, const PreparedInput& prepared);

// Products with one row of activations. The kernels need more shared memory than a launch gets unasked: `prepare` asks,
// once a device.
bool matmul_row_serves(const DeviceTraits& traits, const MatmulArgs& args);
void prepare_matmul_row(const DeviceTraits& traits);
void launch_matmul_row(const LaunchTarget& target, const MatmulArgs& args);

// One call by itself: the launcher that serves it.
void launch_call(const LaunchTarget& target, const MatmulArgs& args);
void launch_call(const LaunchTarget& target, const RotateArgs& args);
void launch_call(const LaunchTarget& target, const AttentionArgs& args);
void launch_call(const LaunchTarget& target, const AskHostArgs& args);
void launch_call(const LaunchTarget& target, const TakeAnswerArgs& args);

// The first of `calls` by one kernel, if enough of them can be served together.
using RowCall = std::variant<MatmulArgs, RotateArgs, AttentionArgs, AskHostArgs, TakeAnswerArgs>;
// Null where the call is none of these, or not there.
template <class Args>
const Args* call_at(const RowCall* calls, std::size_t call_count, std::size_t index) {
  return index < call_count ? std::get_if<Args>(calls + index) : nullptr;
}
struct ProgramLaunch {
  std::size_t call_count;  // at least one
  bool launched;           // false: better one by one
};
ProgramLaunch launch_row_program(const LaunchTarget& target, const RowCall* calls, std::size_t call_count);
void prepare_row_program(const DeviceTraits& traits);
// The same with 2 to kMaxChainRows rows (NOTE [Rows program]).
bool rows_program_serves(const DeviceTraits& traits, const RowCall* calls, std::size_t call_count);
ProgramLaunch launch_rows_program(const LaunchTarget& target, const RowCall* calls, std::size_t call_count);
void prepare_rows_program(const DeviceTraits& traits);
inline constexpr int kMaxChainRows = 4;

// The same with 2 to 16 rows: the input is prepared in scratch first.
std::size_t rows_input_bytes(int row_count, int cols);
bool matmul_rows_serves(const DeviceTraits& traits, const MatmulArgs& args);
void prepare_matmul_rows(const DeviceTraits& traits);
void launch_matmul_rows(const LaunchTarget& target, const MatmulArgs& args, bool input_prepared = false);

// The same with any number of rows, prepared likewise, as bytes or as halves: by integer products, and by half products
// of four warps. The latter are built for compute capability 9.0 alone (CMakeLists.txt): `prepare` says whether this
// build and this device have them. Costs are of one scale.
struct TileInput;
TileInput launch_prepare_tiles(const LaunchTarget& target, const MatmulArgs& args, bool halves);
std::size_t tile_input_bytes(int row_count, int cols, bool halves);
bool matmul_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args);
std::int64_t matmul_tiles_cost(const DeviceTraits& traits, const MatmulArgs& args);
void prepare_matmul_tiles(const DeviceTraits& traits);
void launch_matmul_tiles(const LaunchTarget& target, const MatmulArgs& args);
bool matmul_half_tiles_serves(const DeviceTraits& traits, const MatmulArgs& args);
std::int64_t matmul_half_tiles_cost(const DeviceTraits& traits, const MatmulArgs& args);
bool prepare_matmul_half_tiles();
void launch_matmul_half_tiles(const LaunchTarget& target, const MatmulArgs& args);

// Memory of one stream by which blocks hand over to each other: programs (NOTE [Program]), chains (NOTE [Rows program])
// and products with a few rows (NOTE [Rows input]).
std::size_t program_handover_bytes(const ScratchLimits& limits);

void launch_embed(const LaunchTarget& target, const EmbedArgs& args);
void launch_norm_add(const LaunchTarget& target, const NormAddArgs& args);
void launch_gate(const LaunchTarget& target, const GateArgs& args);
void launch_rotate(const LaunchTarget& target, const RotateArgs& args, bool reads_early = false);
std::size_t attention_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions);
void launch_attention_plain(const LaunchTarget& target, const AttentionArgs& args);
bool attention_decode_serves(const DeviceTraits& traits, const AttentionArgs& args);
void prepare_attention_decode(const DeviceTraits& traits);
void prepare_attention_merge(const DeviceTraits& traits);
// With room for the input of a product behind it.
std::size_t attention_decode_scratch_bytes(int row_count, int head_count, int head_dim, int max_positions);
// What a launch knows of the calls around it.
struct AttentionNeighbours {
  bool reads_early = false;  // NOTE [Early reads]
  bool prepares = false;     // leaves the product behind it, if that is such a one, its input prepared
};
bool attention_decode_prepares(const DeviceTraits& traits, const AttentionArgs& args, const MatmulArgs& product);
void launch_attention_decode(const LaunchTarget& target, const AttentionArgs& args,
                             const AttentionNeighbours& neighbours = {});
bool attention_tiles_serves(const DeviceTraits& traits, const AttentionArgs& args);
void prepare_attention_tiles(const DeviceTraits& traits);
void launch_attention_tiles(const LaunchTarget& target, const AttentionArgs& args);
void launch_argmax(const LaunchTarget& target, const ArgmaxArgs& args);
void launch_advance_step(const LaunchTarget& target, const AdvanceArgs& args);
void launch_ask_host(const LaunchTarget& target, const AskHostArgs& args);
void launch_take_answer(const LaunchTarget& target, const TakeAnswerArgs& args);
void launch_finish_requests(const LaunchTarget& target, const FinishRequestsArgs& args);

}  // namespace genai::cuda
