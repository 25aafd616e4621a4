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

// Rows of a matrix that are computed together, as one output of a call. Gate and up rows alternate, so that the rows of
// the output are half as many.
MatmulOutput rows_of(const MatrixView& view, std::int32_t first_row, DevicePtr<const float> bias, DevicePtr<float> out,
                     std::int32_t out_stride, Epilogue epilogue) {
  return {.matrix = view,
          .bias = bias ? bias + first_row : bias,
          .out = out + (is_gated(epilogue) ? first_row / 2 : first_row),
          .out_stride = out_stride};
}

std::uint64_t bytes_of(const MatrixView& view) {
  return static_cast<std::uint64_t>(packed_bytes(view.dtype, view.rows, view.cols));
}

}  // namespace

Workspace lay_out_workspace(const ModelConfig& config, bool separate_gate, const Kernels& kernels,
                            const PassLimits& limits, DevicePtr<std::byte> base) {
  const std::int64_t rows = limits.max_rows;
  const std::int64_t query_width = std::int64_t{config.head_count} * config.head_dim;
  const std::int64_t key_width = std::int64_t{config.kv_head_count} * config.head_dim;
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
  space.host_requests = carver.take<std::uint32_t>(1);
  space.rope_global = carver.take<float>(std::int64_t{limits.max_positions} * config.rotated);
  space.rope_local = config.has_local_rope() ? carver.take<float>(std::int64_t{limits.max_positions} * config.rotated)
                                             : space.rope_global;
  const std::int64_t widest = std::max<std::int64_t>({config.width, query_width, config.feed_forward_width});
  const ScratchLimits scratch_limits = {.row_count = std::max(limits.max_rows, limits.max_logit_rows),
                                        .input_width = static_cast<std::int32_t>(widest),
                                        .head_count = config.head_count,
                                        .head_dim = config.head_dim,
                                        .max_positions = limits.max_positions};
  space.scratch = carver.take<std::byte>(static_cast<std::int64_t>(kernels.scratch_bytes(scratch_limits)));
  space.handover_bytes = kernels.handover_bytes(scratch_limits);
  if (space.handover_bytes > 0)
    space.handover = carver.take<std::byte>(static_cast<std::int64_t>(space.handover_bytes));
  space.total_bytes = carver.used_bytes();
  return space;
}

Transformer::Transformer(const ModelConfig& config, const ModelWeights& weights, const KvCache& cache,
                         const Workspace& workspace, const PassLimits& limits, Kernels& kernels, CopyRing& ring,
                         const OutputChunks& output_chunks, HostLane* host_lane)
    : config_(config),
      weights_(weights),
      cache_(cache),
      workspace_(workspace),
      limits_(limits),
      kernels_(kernels),
      ring_(ring),
      host_lane_(host_lane),
      output_chunks_(output_chunks) {}

PassTraffic Transformer::run(Stream& stream, const PassShape& shape, const AfterLayer& after_layer) {
  GENAI_EXPECT(shape.row_count > 0 && shape.row_count <= limits_.max_rows, "a pass wider than its workspace");
  traffic_ = {};
  const RingList layer_list = list_of(shape.row_count);
  const RingList logit_list = list_of(shape.logit_row_count);
  const bool has_logits = shape.logit_row_count > 0;
  const bool changes_list = layer_list != logit_list || !has_logits;
  begin_list(stream, layer_list, 0, changes_list ? output_chunk(layer_list) : ring_.chunk_count(layer_list));
  embed(stream, shape.row_count);
  if (after_layer) after_layer(-1);
  for (std::int32_t layer = 0; layer < config_.layer_count; ++layer) {
    attention_block(stream, layer, shape.row_count);
    feed_forward_block(stream, layer, shape.row_count);
    if (after_layer) after_layer(layer);
  }
  if (has_logits && changes_list) {
    end_list(stream);
    begin_list(stream, logit_list, output_chunk(logit_list), ring_.chunk_count(logit_list));
  }
  if (has_logits) logits(stream, shape.first_logit_row, shape.logit_row_count);
  end_pass(stream);
  return traffic_;
}

PassTraffic Transformer::run_logits(Stream& stream, std::int32_t first_row, std::int32_t row_count) {
  traffic_ = {};
  const RingList list = list_of(row_count);
  begin_list(stream, list, output_chunk(list), ring_.chunk_count(list));
  logits(stream, first_row, row_count);
  end_pass(stream);
  return traffic_;
}

RingList Transformer::list_of(std::int32_t row_count) const {
  return host_lane_ == nullptr || host_lane_->serves(row_count) ? RingList::narrow : RingList::wide;
}

void Transformer::begin_list(Stream& stream, RingList list, std::int32_t first_chunk, std::int32_t end_chunk) {
  list_ = list;
  ring_.begin_pass(stream, list, first_chunk, end_chunk);
}

void Transformer::end_pass(Stream& stream) {
  end_list(stream);
  if (host_lane_ != nullptr) host_lane_->end_pass(stream);
}

void Transformer::end_list(Stream& stream) {
  ring_.end_pass(stream);
  traffic_.copied_bytes += ring_.pass_bytes();
  traffic_.copies += ring_.pass_copies();
}

MatmulArgs Transformer::call(DevicePtr<const float> input, std::int32_t width, std::int32_t row_count) const {
  MatmulArgs args{};
  args.input = input;
  args.input_stride = width;
  args.row_count = row_count;
  args.norm_epsilon = config_.norm_epsilon;
  args.epilogue = Epilogue::store;
  args.scratch = workspace_.scratch;
  args.handover = workspace_.handover;
  return args;
}

MatmulArgs Transformer::rows_of_lane(const MatmulArgs& args, std::initializer_list<Product> products, Lane lane) {
  MatmulArgs lane_args = args;
  lane_args.output_count = 0;
  for (const Product& product : products) {
    const MatrixPart& part = product.matrix->part(lane);
    if (part.view.rows > 0)
      lane_args.outputs[lane_args.output_count++] =
          rows_of(part.view, part.first_row, product.bias, product.out, product.out_stride, args.epilogue);
  }
  return lane_args;
}

void Transformer::count(const MatmulArgs& args, Lane lane) {
  for (int i = 0; i < args.output_count; ++i)
    traffic_.read_bytes[static_cast<std::size_t>(lane)] += bytes_of(args.outputs[i].matrix);
}

void Transformer::multiply(Stream& stream, const MatmulArgs& args, std::initializer_list<Product> products) {
  MatmulArgs host_args = rows_of_lane(args, products, Lane::host);
  if (list_ == RingList::wide) host_args.output_count = 0;  // the ring has them
  const bool ask_host = host_args.output_count > 0 && host_lane_ != nullptr;
  if (ask_host) host_lane_->ask(stream, products.begin()->matrix, host_args);
  for (const Lane lane : {Lane::resident, Lane::zero_copy}) {
    const MatmulArgs lane_args = rows_of_lane(args, products, lane);
    count(lane_args, lane);
    if (lane_args.output_count > 0) kernels_.matmul(stream, lane_args);
  }
  multiply_ring(stream, args, products);
  count(host_args, Lane::host);
  if (ask_host) {
    host_lane_->take(stream);
  } else if (host_args.output_count > 0) {
    kernels_.matmul(stream, host_args);
  }
}

void Transformer::multiply_ring(Stream& stream, const MatmulArgs& args, std::initializer_list<Product> products) {
  MatmulArgs ring_args = args;
  ring_args.output_count = 0;
  const auto flush = [&] {
    if (ring_args.output_count > 0) kernels_.matmul(stream, ring_args);
    ring_args.output_count = 0;
  };
  for (const Product& product : products) {
    for (const RingPiece& piece : product.matrix->pieces(list_)) {
      if (piece.opens_chunk) {
        flush();
        open_chunk_ = ring_.acquire(stream, piece.chunk);
      }
      const MatrixView view{.data = open_chunk_.byte_offset(static_cast<std::int64_t>(piece.slot_offset_bytes)),
                            .dtype = product.matrix->dtype,
                            .rows = piece.rows,
                            .cols = product.matrix->cols};
      ring_args.outputs[ring_args.output_count++] =
          rows_of(view, piece.first_row, product.bias, product.out, product.out_stride, args.epilogue);
      traffic_.read_bytes[static_cast<std::size_t>(Lane::ring)] += bytes_of(view);
      if (piece.closes_chunk) {
        flush();
        ring_.release(stream, piece.chunk);
      }
    }
  }
  flush();
}

void Transformer::embed(Stream& stream, std::int32_t row_count) {
  // Rows that are not resident are read where they are: one a token.
  EmbedArgs args{.matrix = weights_.embedding.part(Lane::resident).view,
                 .rows = workspace_.rows,
                 .row_count = row_count,
                 .scale = config_.embedding_scale,
                 .out = workspace_.x};
  for (const Lane lane : {Lane::ring, Lane::zero_copy, Lane::host}) {
    const MatrixView& cold = weights_.embedding.part(lane).view;
    if (cold.rows == 0) continue;
    (args.matrix.rows == 0 ? args.matrix : args.rest) = cold;
  }
  kernels_.embed(stream, args);
}

void Transformer::attention_block(Stream& stream, std::int32_t layer, std::int32_t row_count) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t query_width = config_.head_count * config_.head_dim;
  const std::int32_t key_width = config_.kv_head_count * config_.head_dim;
  const bool local = config_.is_local_layer(layer);

  MatmulArgs projections = call(workspace_.x, config_.width, row_count);
  projections.norm_weight = weights.attention_norm;
  multiply(stream, projections,
           {{&weights.q, weights.q_bias, workspace_.q, query_width},
            {&weights.k, weights.k_bias, workspace_.k, key_width},
            {&weights.v, weights.v_bias, workspace_.v, key_width}});

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
                              .scratch = workspace_.scratch,
                              .handover = workspace_.handover});
  add_branch(stream, weights.output, weights.output_bias, workspace_.attention, weights.post_attention_norm, row_count);
}

void Transformer::feed_forward_block(Stream& stream, std::int32_t layer, std::int32_t row_count) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int32_t hidden_width = config_.feed_forward_width;
  const Epilogue activation = config_.activation == Activation::gelu ? Epilogue::gated_gelu : Epilogue::gated_silu;

  MatmulArgs args = call(workspace_.x, config_.width, row_count);
  args.norm_weight = weights.feed_forward_norm;
  if (weights.gate_up.rows > 0) {
    args.epilogue = activation;
    multiply(stream, args, {{&weights.gate_up, {}, workspace_.hidden, hidden_width}});
  } else {
    multiply(stream, args,
             {{&weights.gate, {}, workspace_.gate, hidden_width}, {&weights.up, {}, workspace_.up, hidden_width}});
    kernels_.gate(stream, {.gate = workspace_.gate,
                           .up = workspace_.up,
                           .out = workspace_.hidden,
                           .activation = activation,
                           .row_count = row_count,
                           .width = hidden_width});
  }
  add_branch(stream, weights.down, {}, workspace_.hidden, weights.post_feed_forward_norm, row_count);
}

void Transformer::add_branch(Stream& stream, const SplitMatrix& matrix, DevicePtr<const float> bias,
                             DevicePtr<const float> input, DevicePtr<const float> post_norm, std::int32_t row_count) {
  MatmulArgs args = call(input, matrix.cols, row_count);
  args.epilogue = post_norm ? Epilogue::store : Epilogue::add;
  multiply(stream, args, {{&matrix, bias, post_norm ? workspace_.y : workspace_.x, config_.width}});
  if (!post_norm) return;
  kernels_.norm_add(stream, {.x = workspace_.x,
                             .y = workspace_.y,
                             .weight = post_norm,
                             .epsilon = config_.norm_epsilon,
                             .row_count = row_count,
                             .width = config_.width});
}

void Transformer::logits(Stream& stream, std::int32_t first_row, std::int32_t row_count) {
  GENAI_EXPECT(row_count > 0 && row_count <= limits_.max_logit_rows, "more logits than the workspace holds");
  MatmulArgs args = call(workspace_.x + std::int64_t{first_row} * config_.width, config_.width, row_count);
  args.norm_weight = weights_.output_norm;
  args.soft_cap = config_.final_soft_cap;
  multiply(stream, args, {{&weights_.output, {}, workspace_.logits, config_.vocabulary_size}});
  kernels_.argmax(stream, {.logits = workspace_.logits,
                           .row_count = row_count,
                           .width = config_.vocabulary_size,
                           .rows = workspace_.rows + first_row,
                           .tokens = workspace_.tokens,
                           .hashes = workspace_.hashes,
                           .nonfinite = workspace_.nonfinite});
}

}  // namespace genai
