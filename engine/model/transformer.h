// transformer.h - one forward pass as calls on Kernels: no allocation, no I/O, nothing that knows a device. Buffers are
// laid out once in one workspace; every pass of every width uses the same addresses, so any pass may be captured.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "engine/device/kernels.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_map.h"
#include "engine/residency/copy_ring.h"
#include "engine/residency/host_lane.h"
#include "engine/residency/pass_traffic.h"

namespace genai {

struct PassLimits {
  std::int32_t max_rows = 1;        // rows of one pass
  std::int32_t max_logit_rows = 1;  // rows whose logits exist at once
  std::int32_t max_positions = 0;   // of one sequence
};

// Where everything lies between the calls of a pass. All are f32 unless said.
struct Workspace {
  DevicePtr<StepRow> rows;                 // (max_rows)
  DevicePtr<float> x;                      // (max_rows, width), the residual stream
  DevicePtr<float> y;                      // (max_rows, width), a branch before its own norm
  DevicePtr<float> q;                      // (max_rows, H*D)
  DevicePtr<float> k, v;                   // (max_rows, G*D)
  DevicePtr<float> attention;              // (max_rows, H*D)
  DevicePtr<float> hidden;                 // (max_rows, feed_forward_width)
  DevicePtr<float> gate, up;               // the same, where gate and up are separate matrices
  DevicePtr<float> logits;                 // (max_logit_rows, vocabulary)
  DevicePtr<std::int32_t> tokens;          // (max_logit_rows) chosen tokens
  DevicePtr<std::int32_t> nonfinite;       // (max_logit_rows) counts
  DevicePtr<std::uint64_t> hashes;         // (max_logit_rows)
  DevicePtr<std::uint32_t> host_requests;  // one, for HostLane
  DevicePtr<float> rope_global;            // [max_positions][rotated/2][2]
  DevicePtr<float> rope_local;             // the same for layers with a window; may be rope_global
  DevicePtr<std::byte> scratch;
  DevicePtr<std::byte> handover;  // null where kernels have no use for it; all zero before the first pass
  std::size_t handover_bytes = 0;
  std::size_t total_bytes = 0;
};

// Lays the workspace out from `base`; with a null base only total_bytes means anything. `separate_gate`: some layer has
// its gate and up matrices apart.
Workspace lay_out_workspace(const ModelConfig& config, bool separate_gate, const Kernels& kernels,
                            const PassLimits& limits, DevicePtr<std::byte> base);

// Which rows of a pass get logits.
struct PassShape {
  std::int32_t row_count = 1;
  std::int32_t first_logit_row = 0;
  std::int32_t logit_row_count = 0;
};

class Transformer {
 public:
  using OutputChunks = std::array<std::int32_t, kRingListCount>;  // by RingList

  // `ring` holds the chunks of the weights' ring pieces; those of a list from its output chunk on are the output
  // matrix's. `host_lane` computes the rows of Lane::host in passes of as few rows as it takes, and the wide list has
  // them for others; null: the device's kernels read them where they are.
  Transformer(const ModelConfig& config, const ModelWeights& weights, const KvCache& cache, const Workspace& workspace,
              const PassLimits& limits, Kernels& kernels, CopyRing& ring, const OutputChunks& output_chunks,
              HostLane* host_lane);

  // Called with -1 behind the embedding, then with the number of each layer behind it.
  using AfterLayer = std::function<void(std::int32_t layer)>;

  // Runs workspace.rows[0 .. row_count) through all layers, leaves the residual stream in workspace.x, and logits,
  // greedy tokens, hashes and counts of non-finite logits of the rows asked for in the workspace. REQUIRES: the cache
  // is backed up to the last position of each sequence.
  PassTraffic run(Stream& stream, const PassShape& shape, const AfterLayer& after_layer = {});
  // The same for more rows of the pass that was run last.
  PassTraffic run_logits(Stream& stream, std::int32_t first_row, std::int32_t row_count);

  const Workspace& workspace() const { return workspace_; }
  const PassLimits& limits() const { return limits_; }
  const ModelConfig& config() const { return config_; }

 private:
  // One of the products that read the same input.
  struct Product {
    const SplitMatrix* matrix;
    DevicePtr<const float> bias;
    DevicePtr<float> out;
    std::int32_t out_stride;
  };

  // Products of so many rows are narrow or wide ones. What uses the ring stands between begin and end of its list.
  RingList list_of(std::int32_t row_count) const;
  std::int32_t output_chunk(RingList list) const { return output_chunks_[static_cast<std::size_t>(list)]; }
  void begin_list(Stream& stream, RingList list, std::int32_t first_chunk, std::int32_t end_chunk);
  void end_list(Stream& stream);
  void end_pass(Stream& stream);
  void embed(Stream& stream, std::int32_t row_count);
  void attention_block(Stream& stream, std::int32_t layer, std::int32_t row_count);
  void feed_forward_block(Stream& stream, std::int32_t layer, std::int32_t row_count);
  void logits(Stream& stream, std::int32_t first_row, std::int32_t row_count);
  // x = x + matrix * input (+ bias), through a norm of its own where `post_norm` is not null.
  void add_branch(Stream& stream, const SplitMatrix& matrix, DevicePtr<const float> bias, DevicePtr<const float> input,
                  DevicePtr<const float> post_norm, std::int32_t row_count);
  MatmulArgs call(DevicePtr<const float> input, std::int32_t width, std::int32_t row_count) const;
  // `args` with these outputs, as one call a lane and, in the ring, a chunk.
  void multiply(Stream& stream, const MatmulArgs& args, std::initializer_list<Product> products);
  // `args` with the rows of one lane as outputs.
  static MatmulArgs rows_of_lane(const MatmulArgs& args, std::initializer_list<Product> products, Lane lane);
  void count(const MatmulArgs& args, Lane lane);
  // Rows of all products that the list in use brings in.
  void multiply_ring(Stream& stream, const MatmulArgs& args, std::initializer_list<Product> products);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KvCache& cache_;
  Workspace workspace_;
  PassLimits limits_;
  Kernels& kernels_;
  CopyRing& ring_;
  HostLane* host_lane_;
  OutputChunks output_chunks_;
  RingList list_ = RingList::narrow;       // in use
  DevicePtr<const std::byte> open_chunk_;  // where the ring's chunk in use lies
  PassTraffic traffic_;                    // of the pass so far
};

}  // namespace genai
