// transformer.h - one forward pass as calls on Kernels: no allocation, no I/O, nothing that knows a device. Buffers are
// laid out once in one workspace; every pass of every width uses the same addresses, so any pass may be captured.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/device/kernels.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_map.h"

namespace genai {

struct PassLimits {
  std::int32_t max_rows = 1;        // rows of one pass
  std::int32_t max_logit_rows = 1;  // rows whose logits exist at once
  std::int32_t max_positions = 0;   // of one sequence
};

// Where everything lies between the calls of a pass. All are f32 unless said.
struct Workspace {
  DevicePtr<StepRow> rows;            // (max_rows)
  DevicePtr<float> x;                 // (max_rows, width), the residual stream
  DevicePtr<float> y;                 // (max_rows, width), a branch before its own norm
  DevicePtr<float> q;                 // (max_rows, H*D)
  DevicePtr<float> k, v;              // (max_rows, G*D)
  DevicePtr<float> attention;         // (max_rows, H*D)
  DevicePtr<float> hidden;            // (max_rows, feed_forward_width)
  DevicePtr<float> gate, up;          // the same, where gate and up are separate matrices
  DevicePtr<float> logits;            // (max_logit_rows, vocabulary)
  DevicePtr<std::int32_t> tokens;     // (max_logit_rows) chosen tokens
  DevicePtr<std::int32_t> nonfinite;  // (max_logit_rows) counts
  DevicePtr<std::uint64_t> hashes;    // (max_logit_rows)
  DevicePtr<float> rope_global;       // [max_positions][rotated/2][2]
  DevicePtr<float> rope_local;        // the same for layers with a window; may be rope_global
  DevicePtr<std::byte> scratch;
  std::size_t total_bytes = 0;
};

// Lays the workspace out from `base`; with a null base only total_bytes means anything.
Workspace lay_out_workspace(const ModelConfig& config, const ModelWeights& weights, const Kernels& kernels,
                            const PassLimits& limits, DevicePtr<std::byte> base);

class Transformer {
 public:
  Transformer(const ModelConfig& config, const ModelWeights& weights, const KvCache& cache, const Workspace& workspace,
              const PassLimits& limits, Kernels& kernels);

  // Runs workspace.rows[0 .. row_count) through all layers; leaves the residual stream in workspace.x.
  // REQUIRES: the cache is backed up to the last position of each sequence.
  void forward(Stream& stream, std::int32_t row_count) const;
  // The parts of forward, for whoever looks between them.
  void embed(Stream& stream, std::int32_t row_count) const;
  void layer(Stream& stream, std::int32_t layer, std::int32_t row_count) const;
  // Logits of `row_count` rows from `first_row` of the last pass, into workspace.logits[0 ..); then the greedy token,
  // the hash and the count of non-finite logits of each.
  void logits(Stream& stream, std::int32_t first_row, std::int32_t row_count) const;

  const Workspace& workspace() const { return workspace_; }
  const PassLimits& limits() const { return limits_; }
  const ModelConfig& config() const { return config_; }

 private:
  void attention_block(Stream& stream, std::int32_t layer, std::int32_t row_count) const;
  void feed_forward_block(Stream& stream, std::int32_t layer, std::int32_t row_count) const;
  // x = x + matrix * input (+ bias), through a norm of its own where `post_norm` is not null.
  void add_branch(Stream& stream, const MatrixView& matrix, DevicePtr<const float> bias, DevicePtr<const float> input,
                  DevicePtr<const float> post_norm, std::int32_t row_count) const;
  MatmulArgs product(DevicePtr<const float> input, std::int32_t width, std::int32_t row_count) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KvCache& cache_;
  Workspace workspace_;
  PassLimits limits_;
  Kernels& kernels_;
};

}  // namespace genai
