#include "engine/model/transformer.h"

#include <algorithm>

#include "engine/error.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

// Hands out 256-byte aligned pieces of one range, in order.
class Carver {
 public:
  explicit Carver(DevicePtr<std::byte> base) : base_(base) {}
  template <class T>
  DevicePtr<T> take(std::int64_t count) {
    const DevicePtr<T> piece = base_.byte_offset(static_cast<std::int64_t>(used_bytes_)).template as<T>();
    used_bytes_ += static_cast<std::size_t>(round_up(count * static_cast<std::int64_t>(sizeof(T)), 256));
    return piece;
  }
  std::size_t used_bytes() const { return used_bytes_; }

 private:
  DevicePtr<std::byte> base_;
  std::size_t used_bytes_ = 0;
};

MatmulOutput output_of(const MatrixView& matrix, DevicePtr<const float> bias, DevicePtr<float> out,
                       std::int32_t stride) {
  return {.matrix = matrix, .bias = bias, .out = out, .out_stride = stride};
}

}  // namespace

Workspace lay_out_workspace(const ModelConfig& config, const ModelWeights& weights, const Kernels& kernels,
                            const PassLimits& limits, DevicePtr<std::byte> base) {
  const std::int64_t rows = limits.max_rows;
  const std::int64_t query_width = std::int64_t{config.head_count} * config.head_dim;
  const std::int64_t key_width = std::int64_t{config.kv_head_count} * config.head_dim;
  const bool separate_gate = std::any_of(weights.layers.begin(), weights.layers.end(),
                                         [](const LayerWeights& layer) { return layer.gate.rows > 0; });
  Carver carver(base);
  Workspace space;
  space.rows = carver.take<StepRow>(rows);
  space.x = carver.take<float>(rows * config.width);
  space.y = carver.take<float>(rows * config.width);
  space.q = carver.take<float>(rows * query_width);
  space.k = carver.take<float>(rows * key_width);
  space.v = carver.take<float>(rows * key_width);
  space.attention = carver.take<float>(rows * query_width);
  space.hidden = carver.take<float>(rows * config.feed_forward_width);
  if (separate_gate) {
    space.gate = carver.take<float>(rows * config.feed_forward_width);
    space.up = carver.take<float>(rows * config.feed_forward_width);
  }
  space.logits = carver.take<float>(std::int64_t{limits.max_logit_rows} * config.vocabulary_size);
  space.tokens = carver.take<std::int32_t>(limits.max_logit_rows);
  space.nonfinite = carver.take<std::int32_t>(limits.max_logit_rows);
  space.hashes = carver.take<std::uint64_t>(limits.max_logit_rows);
  space.rope_global = carver.take<float>(std::int64_t{limits.max_positions} * config.rotated);
  space.rope_local = config.has_local_rope() ? carver.take<float>(std::int64_t{limits.max_positions} * config.rotated)
                                             : space.rope_global;
  const std::int64_t widest = std::max<std::int64_t>({config.width, query_width, config.feed_forward_width});
  space.scratch = carver.take<std::byte>(
      static_cast<std::int64_t>(kernels.scratch_bytes({.row_count = std::max(limits.max_rows, limits.max_logit_rows),
                                                       .input_width = static_cast<std::int32_t>(widest),
                                                       .head_count = config.head_count,
                                                       .head_dim = config.head_dim,
                                                       .max_positions = limits.max_positions})));
  space.total_bytes = carver.used_bytes();
  return space;
}

Transformer::Transformer(const ModelConfig& config, const ModelWeights& weights, const KvCache& cache,
                         const Workspace& workspace, const PassLimits& limits, Kernels& kernels)
    : config_(config), weights_(weights), cache_(cache), workspace_(workspace), limits_(limits), kernels_(kernels) {}

MatmulArgs Transformer::product(DevicePtr<const float> input, std::int32_t width, std::int32_t row_count) const {
  MatmulArgs args{};
  args.input = input;
  args.input_stride = width;
  args.row_count = row_count;
  args.norm_epsilon = config_.norm_epsilon;
  args.output_count = 1;
  args.epilogue = Epilogue::store;
  args.scratch = workspace_.scratch;
  return args;
}

void Transformer::forward(Stream& stream, std::int32_t row_count) const {
  embed(stream, row_count);
  for (std::int32_t index = 0; index < config_.layer_count; ++index) layer(stream, index, row_count);
}

void Transformer::embed(Stream& stream, std::int32_t row_count) const {
  GENAI_EXPECT(row_count > 0 && row_count <= limits_.max_rows, "a pass wider than its workspace");
  kernels_.embed(stream, {.matrix = weights_.embedding,
                          .rows = workspace_.rows,
                          .row_count = row_count,
                          .scale = config_.embedding_scale,
                          .out = workspace_.x});
}

void Transformer::layer(Stream& stream, std::int32_t layer, std::int32_t row_count) const {
  attention_block(stream, layer, row_count);
  feed_forward_block(stream, layer, row_count);
}

void Transformer::attention_block(Stream& stream, std::int32_t layer, std::int32_t row_count) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t query_width = config_.head_count * config_.head_dim;
  const std::int32_t key_width = config_.kv_head_count * config_.head_dim;
  const bool local = config_.is_local_layer(layer);

  MatmulArgs projections = product(workspace_.x, config_.width, row_count);
  projections.norm_weight = weights.attention_norm;
  projections.outputs[0] = output_of(weights.q, weights.q_bias, workspace_.q, query_width);
  projections.outputs[1] = output_of(weights.k, weights.k_bias, workspace_.k, key_width);
  projections.outputs[2] = output_of(weights.v, weights.v_bias, workspace_.v, key_width);
  projections.output_count = 3;
  kernels_.matmul(stream, projections);

  kernels_.rotate(stream, {.q = workspace_.q,
                           .k = workspace_.k,
                           .v = workspace_.v,
                           .q_norm = weights.q_norm,
                           .k_norm = weights.k_norm,
                           .norm_epsilon = config_.norm_epsilon,
                           .table = local ? workspace_.rope_local : workspace_.rope_global,
                           .rotated = config_.rotated,
                           .interleaved = config_.rope_interleaved,
                           .rows = workspace_.rows,
                           .row_count = row_count,
                           .head_count = config_.head_count,
                           .cache = cache_.view(layer)});
  kernels_.attention(stream, {.q = workspace_.q,
                              .out = workspace_.attention,
                              .rows = workspace_.rows,
                              .row_count = row_count,
                              .head_count = config_.head_count,
                              .scale = config_.attention_scale,
                              .window = local ? config_.sliding_window : 0,
                              .soft_cap = config_.attention_soft_cap,
                              .max_positions = limits_.max_positions,
                              .cache = cache_.view(layer),
                              .scratch = workspace_.scratch});
  add_branch(stream, weights.output, weights.output_bias, workspace_.attention, weights.post_attention_norm, row_count);
}

void Transformer::feed_forward_block(Stream& stream, std::int32_t layer, std::int32_t row_count) const {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t hidden_width = config_.feed_forward_width;
  const Epilogue activation = config_.activation == Activation::gelu ? Epilogue::gated_gelu : Epilogue::gated_silu;

  MatmulArgs args = product(workspace_.x, config_.width, row_count);
  args.norm_weight = weights.feed_forward_norm;
  if (weights.gate_up.rows > 0) {
    args.outputs[0] = output_of(weights.gate_up, {}, workspace_.hidden, hidden_width);
    args.epilogue = activation;
    kernels_.matmul(stream, args);
  } else {
    args.outputs[0] = output_of(weights.gate, {}, workspace_.gate, hidden_width);
    args.outputs[1] = output_of(weights.up, {}, workspace_.up, hidden_width);
    args.output_count = 2;
    kernels_.matmul(stream, args);
    kernels_.gate(stream, {.gate = workspace_.gate,
                           .up = workspace_.up,
                           .out = workspace_.hidden,
                           .activation = activation,
                           .row_count = row_count,
                           .width = hidden_width});
  }
  add_branch(stream, weights.down, {}, workspace_.hidden, weights.post_feed_forward_norm, row_count);
}

void Transformer::add_branch(Stream& stream, const MatrixView& matrix, DevicePtr<const float> bias,
                             DevicePtr<const float> input, DevicePtr<const float> post_norm,
                             std::int32_t row_count) const {
  MatmulArgs args = product(input, matrix.cols, row_count);
  args.outputs[0] = output_of(matrix, bias, post_norm ? workspace_.y : workspace_.x, config_.width);
  args.epilogue = post_norm ? Epilogue::store : Epilogue::add;
  kernels_.matmul(stream, args);
  if (!post_norm) return;
  kernels_.norm_add(stream, {.x = workspace_.x,
                             .y = workspace_.y,
                             .weight = post_norm,
                             .epsilon = config_.norm_epsilon,
                             .row_count = row_count,
                             .width = config_.width});
}

void Transformer::logits(Stream& stream, std::int32_t first_row, std::int32_t row_count) const {
  GENAI_EXPECT(row_count > 0 && row_count <= limits_.max_logit_rows, "more logits than the workspace holds");
  MatmulArgs args = product(workspace_.x + std::int64_t{first_row} * config_.width, config_.width, row_count);
  args.norm_weight = weights_.output_norm;
  args.outputs[0] = output_of(weights_.output, {}, workspace_.logits, config_.vocabulary_size);
  args.soft_cap = config_.final_soft_cap;
  kernels_.matmul(stream, args);
  kernels_.argmax(stream, {.logits = workspace_.logits,
                           .row_count = row_count,
                           .width = config_.vocabulary_size,
                           .rows = workspace_.rows + first_row,
                           .tokens = workspace_.tokens,
                           .hashes = workspace_.hashes,
                           .nonfinite = workspace_.nonfinite});
}

}  // namespace genai
