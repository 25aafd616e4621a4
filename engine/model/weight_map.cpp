#include "engine/model/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/packed_layout.h"

namespace genai {
namespace {

// Pieces start on this boundary: a bulk copy and a cache line both want at most this much.
constexpr std::uint64_t kPieceAlignment = 256;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

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
    place({.name = name, .interleaved_name = {}, .dtype = tensor->dtype, .rows = 1, .cols = width},
          width * static_cast<std::int64_t>(sizeof(float)));
  }

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols, bool read_every_pass = true) {
    const TensorInfo& tensor = *find(name, true);
    check_shape(tensor, {static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows)});
    place({.name = name,
           .interleaved_name = {},
           .dtype = tensor.dtype,
           .packed = true,
           .read_every_pass = read_every_pass,
           .rows = rows,
           .cols = cols},
          packed_bytes(tensor.dtype, rows, cols));
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
    place({.name = gate_name,
           .interleaved_name = up_name,
           .dtype = gate.dtype,
           .packed = true,
           .rows = 2 * rows,
           .cols = cols},
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
    placed.size_bytes = static_cast<std::uint64_t>(size_bytes);
    map_.total_bytes += placed.size_bytes;
    if (!placed.packed) map_.vector_bytes += aligned(placed.size_bytes);
    map_.tensors.push_back(placed);
  }

  const TensorFile& file_;
  WeightMap map_;
  std::unordered_set<std::string> used_;
};

}  // namespace

const PlacedTensor* WeightMap::find(const std::string& tensor_name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const PlacedTensor& placed) {
    return placed.name == tensor_name || placed.interleaved_name == tensor_name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

WeightMap map_weights(const ModelConfig& config, const TensorFile& file) {
  MapBuilder builder(file);
  const std::int64_t width = config.width;
  const std::int64_t query_width = std::int64_t{config.head_count} * config.head_dim;
  const std::int64_t key_width = std::int64_t{config.kv_head_count} * config.head_dim;

  const bool tied = !builder.has("output.weight");
  if (!tied) builder.matrix("token_embd.weight", config.vocabulary_size, width, false);
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
  builder.matrix(tied ? "token_embd.weight" : "output.weight", config.vocabulary_size, width);
  builder.note_read("rope_freqs.weight");  // becomes part of the rotary table
  return std::move(builder).finish();
}

bool has_separate_gate(const WeightMap& map) {
  return std::any_of(map.tensors.begin(), map.tensors.end(), [](const PlacedTensor& placed) {
    return placed.name.ends_with("ffn_gate.weight") && placed.interleaved_name.empty();
  });
}

std::vector<MatrixSize> matrix_sizes(const WeightMap& map) {
  std::vector<MatrixSize> sizes;
  const auto follows = [](const PlacedTensor& placed) {
    constexpr std::string_view kFollowers[] = {"attn_k.weight", "attn_v.weight", "ffn_up.weight"};
    return std::any_of(std::begin(kFollowers), std::end(kFollowers),
                       [&](std::string_view name) { return placed.name.ends_with(name); });
  };
  for (const PlacedTensor& placed : map.tensors) {
    if (!placed.packed) continue;
    sizes.push_back({.name = placed.name,
                     .strips = strip_count(placed.rows),
                     .strip_bytes = strip_bytes(placed.dtype, placed.cols),
                     .read_every_pass = placed.read_every_pass,
                     .may_be_cold = true,
                     .one_cold_lane = placed.name == "token_embd.weight",
                     .same_call = follows(placed)});
  }
  return sizes;
}

namespace {

// Cuts rows of matrices, one behind the other, into chunks of one list.
class ChunkCutter {
 public:
  ChunkCutter(ColdChunks& chunks, RingList list, std::uint64_t slot_bytes)
      : chunks_(chunks), list_(static_cast<std::size_t>(list)), slot_bytes_(slot_bytes) {}

  // The output matrix has chunks of its own: not every pass computes logits.
  void begin_output() {
    close_chunk();
    chunks_.output_chunk = static_cast<std::int32_t>(chunks_.chunks.size());
  }

  // Parts of one matrix that are added one after the other have their rows in that order.
  void add(PlacedTensor& placed, Lane lane) {
    const auto one_strip = static_cast<std::uint64_t>(strip_bytes(placed.dtype, placed.cols));
    std::uint64_t offset = placed.offset_bytes[static_cast<std::size_t>(lane)];
    std::int64_t strip = placed.plan.first_strip(lane);
    const std::int64_t end = strip + placed.plan.of(lane);
    while (strip < end) {
      if (!is_open_ || filled_bytes_ + one_strip > slot_bytes_) open_chunk();
      const auto room = static_cast<std::int64_t>((slot_bytes_ - filled_bytes_) / one_strip);
      const std::int64_t count = std::min(room, end - strip);
      const std::uint64_t bytes = static_cast<std::uint64_t>(count) * one_strip;
      add_piece(placed, strip, count);
      add_span({.offset_bytes = offset, .size_bytes = bytes});
      filled_bytes_ += bytes;
      offset += bytes;
      strip += count;
    }
  }

  void close_chunk() {
    if (is_open_) last_tensor_->ring_pieces[list_].back().closes_chunk = true;
    is_open_ = false;
    last_tensor_ = nullptr;
  }

 private:
  void open_chunk() {
    close_chunk();
    is_open_ = true;
    filled_bytes_ = 0;
    chunks_.chunks.emplace_back();
  }

  void add_piece(PlacedTensor& placed, std::int64_t first_strip, std::int64_t strip_count) {
    const std::int64_t first_row = first_strip * kStripRows;
    const auto rows = static_cast<std::int32_t>(std::min(strip_count * kStripRows, placed.rows - first_row));
    std::vector<RingPiece>& pieces = placed.ring_pieces[list_];
    if (last_tensor_ == &placed && pieces.back().first_row + pieces.back().rows == first_row) {
      pieces.back().rows += rows;
      return;
    }
    pieces.push_back({.chunk = static_cast<std::int32_t>(chunks_.chunks.size()) - 1,
                      .slot_offset_bytes = filled_bytes_,
                      .first_row = static_cast<std::int32_t>(first_row),
                      .rows = rows,
                      .opens_chunk = filled_bytes_ == 0,
                      .closes_chunk = false});
    last_tensor_ = &placed;
  }

  void add_span(const ColdSpan& span) {
    std::vector<ColdSpan>& spans = chunks_.chunks.back();
    if (!spans.empty() && spans.back().offset_bytes + spans.back().size_bytes == span.offset_bytes) {
      spans.back().size_bytes += span.size_bytes;
    } else {
      spans.push_back(span);
    }
  }

  ColdChunks& chunks_;
  std::size_t list_;
  std::uint64_t slot_bytes_;
  bool is_open_ = false;
  std::uint64_t filled_bytes_ = 0;       // of the open chunk
  PlacedTensor* last_tensor_ = nullptr;  // of the last piece in the open chunk
};

void cut_chunks(WeightMap& map, RingList list, std::initializer_list<Lane> lanes, std::uint64_t slot_bytes) {
  ChunkCutter cutter(map.cold_chunks[static_cast<std::size_t>(list)], list, slot_bytes);
  for (PlacedTensor& placed : map.tensors) {
    if (!placed.packed) continue;
    if (&placed == &map.tensors.back()) cutter.begin_output();
    for (const Lane lane : lanes) cutter.add(placed, lane);
  }
  cutter.close_chunk();
}

}  // namespace

void place_weights(WeightMap& map, const ResidencyPlan& plan) {
  std::uint64_t resident = 0;
  std::uint64_t ring = 0;
  std::size_t next_matrix = 0;
  for (PlacedTensor& placed : map.tensors) {
    std::uint64_t size_bytes = placed.size_bytes;
    if (placed.packed) {
      const auto one_strip = static_cast<std::uint64_t>(strip_bytes(placed.dtype, placed.cols));
      placed.plan = plan.matrices.at(next_matrix++);
      size_bytes = static_cast<std::uint64_t>(placed.plan.of(Lane::resident)) * one_strip;
      placed.offset_bytes[static_cast<int>(Lane::ring)] = ring;
      ring += static_cast<std::uint64_t>(placed.plan.of(Lane::ring)) * one_strip;
    }
    placed.offset_bytes[static_cast<int>(Lane::resident)] = resident;
    resident += aligned(size_bytes);
  }
  map.resident_bytes = resident;

  std::uint64_t cold = aligned(ring);
  for (PlacedTensor& placed : map.tensors) {
    for (const Lane lane : {Lane::zero_copy, Lane::host}) {
      if (!placed.packed || placed.plan.of(lane) == 0) continue;
      placed.offset_bytes[static_cast<int>(lane)] = cold;
      cold += aligned(static_cast<std::uint64_t>(placed.plan.of(lane) * strip_bytes(placed.dtype, placed.cols)));
    }
  }
  map.cold_bytes = cold;

  cut_chunks(map, RingList::narrow, {Lane::ring}, plan.ring_slot_bytes);
  if (plan.wide_passes_stream) cut_chunks(map, RingList::wide, {Lane::ring, Lane::host}, plan.ring_slot_bytes);
}

ModelWeights bind_weights(const ModelConfig& config, const WeightMap& map, DevicePtr<std::byte> resident_base,
                          DevicePtr<std::byte> cold_base) {
  std::unordered_map<std::string_view, const PlacedTensor*> by_name;
  for (const PlacedTensor& placed : map.tensors) {
    by_name[placed.name] = &placed;
    if (!placed.interleaved_name.empty()) by_name[placed.interleaved_name] = &placed;
  }
  const auto find = [&](const std::string& name) -> const PlacedTensor* {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  };
  const auto vector = [&](const std::string& name) -> DevicePtr<const float> {
    const PlacedTensor* placed = find(name);
    return placed == nullptr ? DevicePtr<const float>{}
                             : weight_address(*placed, Lane::resident, resident_base).as<const float>();
  };
  const auto matrix = [&](const std::string& name) -> SplitMatrix {
    const PlacedTensor* placed = find(name);
    if (placed == nullptr) return {};
    SplitMatrix split{.dtype = placed->dtype,
                      .rows = static_cast<std::int32_t>(placed->rows),
                      .cols = static_cast<std::int32_t>(placed->cols),
                      .parts = {},
                      .ring_pieces = placed->ring_pieces};
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const std::int64_t first_row = placed->plan.first_strip(static_cast<Lane>(lane)) * kStripRows;
      const std::int64_t rows = std::min(placed->plan.strips[lane] * kStripRows, placed->rows - first_row);
      MatrixPart& part = split.parts[static_cast<std::size_t>(lane)];
      part.first_row = static_cast<std::int32_t>(first_row);
      part.view = {.data = weight_address(*placed, static_cast<Lane>(lane),
                                          lane == static_cast<int>(Lane::resident) ? resident_base : cold_base),
                   .dtype = split.dtype,
                   .rows = static_cast<std::int32_t>(std::max<std::int64_t>(rows, 0)),
                   .cols = split.cols};
    }
    return split;
  };

  ModelWeights weights;
  weights.embedding = matrix("token_embd.weight");
  weights.output = find("output.weight") != nullptr ? matrix("output.weight") : weights.embedding;
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
    if (!find(name("ffn_gate.weight"))->interleaved_name.empty()) {
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
