#include "engine/model/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/packed_layout.h"

namespace genai {
namespace {

// Pieces start on this boundary: a bulk copy and a cache line both want at most this much.
constexpr std::int64_t kPieceAlignment = 256;

std::string layer_tensor(std::int32_t layer, std::string_view suffix) {
  return fmt::format("blk.{}.{}", layer, suffix);
}

std::string shape_text(const std::vector<std::uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, " x ")); }

// Places tensors one after the other and remembers which were used.
class MapBuilder {
 public:
  explicit MapBuilder(const TensorFile& file) : file_(file) {}

  void vector(const std::string& name, std::int64_t width, bool required) {
    const TensorInfo* tensor = find(name, required);
    if (tensor == nullptr) return;
    check_shape(*tensor, {static_cast<std::uint64_t>(width)});
    if (!is_float(tensor->dtype))
      throw ModelFileError(file_.path(), fmt::format("tensor '{}' has type {}, but a vector must be F32, F16 or BF16",
                                                     name, tensor->type_name));
    place({.tensor = tensor, .rows = 1, .cols = width}, width * static_cast<std::int64_t>(sizeof(float)));
  }

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const TensorInfo& tensor = *find(name, true);
    check_shape(tensor, {static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows)});
    place({.tensor = &tensor, .packed = true, .rows = rows, .cols = cols}, packed_bytes(tensor.dtype, rows, cols));
  }

  // Interleaved where the types allow it, so that the gate is applied where the rows are computed.
  void gate_and_up(const std::string& gate_name, const std::string& up_name, std::int64_t rows, std::int64_t cols) {
    const TensorInfo& gate = *find(gate_name, true);
    const TensorInfo& up = *find(up_name, true);
    if (gate.dtype != up.dtype) {
      matrix(gate_name, rows, cols);
      matrix(up_name, rows, cols);
      return;
    }
    const std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows)};
    check_shape(gate, shape);
    check_shape(up, shape);
    place({.tensor = &gate, .interleaved = &up, .packed = true, .rows = 2 * rows, .cols = cols},
          packed_bytes(gate.dtype, 2 * rows, cols));
  }

  bool has(const std::string& name) { return file_.find_tensor(name) != nullptr; }
  void note_read(const std::string& name) { used_.insert(name); }

  WeightMap finish() && {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      if (tensor.name.ends_with(".bias"))
        throw ModelFileError(file_.path(),
                             fmt::format("tensor '{}' is a bias that this architecture has no place for", tensor.name),
                             "the model would give wrong text without it, so it is refused");
      map_.unread.push_back(tensor.name);
    }
    return std::move(map_);
  }

 private:
  const TensorInfo* find(const std::string& name, bool required) {
    const TensorInfo* tensor = required ? &file_.require_tensor(name) : file_.find_tensor(name);
    if (tensor != nullptr) used_.insert(name);
    return tensor;
  }

  void check_shape(const TensorInfo& tensor, std::vector<std::uint64_t> expected) const {
    std::vector<std::uint64_t> found = tensor.shape;
    while (found.size() > expected.size() && found.back() == 1) found.pop_back();
    if (found != expected)
      throw ModelFileError(file_.path(),
                           fmt::format("tensor '{}' has shape {}, expected {}", tensor.name, shape_text(tensor.shape),
                                       shape_text(expected)),
                           "the tensor table and the metadata disagree; convert the file again");
  }

  void place(PlacedTensor placed, std::int64_t size_bytes) {
    placed.offset_bytes = map_.total_bytes;
    placed.size_bytes = static_cast<std::uint64_t>(size_bytes);
    map_.total_bytes += static_cast<std::uint64_t>(round_up(size_bytes, kPieceAlignment));
    map_.tensors.push_back(placed);
  }

  const TensorFile& file_;
  WeightMap map_;
  std::unordered_set<std::string> used_;
};

}  // namespace

const PlacedTensor* WeightMap::find(const std::string& tensor_name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const PlacedTensor& placed) {
    return placed.tensor->name == tensor_name ||
           (placed.interleaved != nullptr && placed.interleaved->name == tensor_name);
  });
  return found == tensors.end() ? nullptr : &*found;
}

WeightMap map_weights(const ModelConfig& config, const TensorFile& file) {
  MapBuilder builder(file);
  const std::int64_t width = config.width;
  const std::int64_t query_width = std::int64_t{config.head_count} * config.head_dim;
  const std::int64_t key_width = std::int64_t{config.kv_head_count} * config.head_dim;

  builder.matrix("token_embd.weight", config.vocabulary_size, width);
  for (std::int32_t layer = 0; layer < config.layer_count; ++layer) {
    const auto name = [layer](std::string_view suffix) { return layer_tensor(layer, suffix); };
    builder.vector(name("attn_norm.weight"), width, true);
    builder.matrix(name("attn_q.weight"), query_width, width);
    builder.matrix(name("attn_k.weight"), key_width, width);
    builder.matrix(name("attn_v.weight"), key_width, width);
    builder.vector(name("attn_q.bias"), query_width, false);
    builder.vector(name("attn_k.bias"), key_width, false);
    builder.vector(name("attn_v.bias"), key_width, false);
    if (config.query_key_norm) {
      builder.vector(name("attn_q_norm.weight"), config.head_dim, true);
      builder.vector(name("attn_k_norm.weight"), config.head_dim, true);
    }
    builder.matrix(name("attn_output.weight"), width, query_width);
    builder.vector(name("attn_output.bias"), width, false);
    if (config.post_norms) builder.vector(name("post_attention_norm.weight"), width, true);
    builder.vector(name("ffn_norm.weight"), width, true);
    builder.gate_and_up(name("ffn_gate.weight"), name("ffn_up.weight"), config.feed_forward_width, width);
    builder.matrix(name("ffn_down.weight"), width, config.feed_forward_width);
    if (config.post_norms) builder.vector(name("post_ffw_norm.weight"), width, true);
  }
  builder.vector("output_norm.weight", width, true);
  if (builder.has("output.weight")) builder.matrix("output.weight", config.vocabulary_size, width);
  builder.note_read("rope_freqs.weight");  // becomes part of the rotary table
  return std::move(builder).finish();
}

ModelWeights bind_weights(const ModelConfig& config, const WeightMap& map, DevicePtr<std::byte> base) {
  std::unordered_map<std::string_view, const PlacedTensor*> by_name;
  for (const PlacedTensor& placed : map.tensors) {
    by_name[placed.tensor->name] = &placed;
    if (placed.interleaved != nullptr) by_name[placed.interleaved->name] = &placed;
  }
  const auto find = [&](const std::string& name) -> const PlacedTensor* {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  };
  const auto address = [&](const PlacedTensor& placed) {
    return base.byte_offset(static_cast<std::int64_t>(placed.offset_bytes));
  };
  const auto vector = [&](const std::string& name) -> DevicePtr<const float> {
    const PlacedTensor* placed = find(name);
    return placed == nullptr ? DevicePtr<const float>{} : address(*placed).as<const float>();
  };
  const auto matrix = [&](const std::string& name) -> MatrixView {
    const PlacedTensor* placed = find(name);
    if (placed == nullptr) return {};
    return {.data = address(*placed),
            .dtype = placed->tensor->dtype,
            .rows = static_cast<std::int32_t>(placed->rows),
            .cols = static_cast<std::int32_t>(placed->cols)};
  };

  ModelWeights weights;
  weights.embedding = matrix("token_embd.weight");
  weights.output = matrix("output.weight");
  if (weights.output.rows == 0) weights.output = weights.embedding;
  weights.output_norm = vector("output_norm.weight");
  for (std::int32_t index = 0; index < config.layer_count; ++index) {
    const auto name = [index](std::string_view suffix) { return layer_tensor(index, suffix); };
    LayerWeights layer;
    layer.attention_norm = vector(name("attn_norm.weight"));
    layer.post_attention_norm = vector(name("post_attention_norm.weight"));
    layer.feed_forward_norm = vector(name("ffn_norm.weight"));
    layer.post_feed_forward_norm = vector(name("post_ffw_norm.weight"));
    layer.q_norm = vector(name("attn_q_norm.weight"));
    layer.k_norm = vector(name("attn_k_norm.weight"));
    layer.q_bias = vector(name("attn_q.bias"));
    layer.k_bias = vector(name("attn_k.bias"));
    layer.v_bias = vector(name("attn_v.bias"));
    layer.output_bias = vector(name("attn_output.bias"));
    layer.q = matrix(name("attn_q.weight"));
    layer.k = matrix(name("attn_k.weight"));
    layer.v = matrix(name("attn_v.weight"));
    layer.output = matrix(name("attn_output.weight"));
    layer.down = matrix(name("ffn_down.weight"));
    if (find(name("ffn_gate.weight"))->interleaved != nullptr) {
      layer.gate_up = matrix(name("ffn_gate.weight"));
    } else {
      layer.gate = matrix(name("ffn_gate.weight"));
      layer.up = matrix(name("ffn_up.weight"));
    }
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace genai
