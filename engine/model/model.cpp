#include "engine/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/error.h"
#include "engine/model/rope_table.h"
#include "engine/model/weight_loader.h"
#include "engine/packed_layout.h"

namespace genai {

Model::Model(const TensorFile& file, const ModelConfig& config, Device& device, const ModelOptions& options)
    : config_(config),
      options_(options),
      device_(device),
      arena_(device.memory(), options.budget_bytes),
      stream_(device.create_stream()),
      weight_map_(map_weights(config_, file)) {
  weight_range_ = arena_.reserve(MemoryKind::weights, weight_map_.total_bytes);
  weights_ = bind_weights(config_, weight_map_, weight_range_.base());
  const PassLimits limits{.max_rows = options_.max_rows,
                          .max_logit_rows = std::min(options_.max_rows, options_.max_logit_rows),
                          .max_positions = options_.context};
  const Workspace sizes = lay_out_workspace(config_, weights_, device_.kernels(), limits, {});
  cache_ = std::make_unique<KvCache>(arena_, CacheShape{.type = options_.cache_type,
                                                        .layer_count = config_.layer_count,
                                                        .kv_head_count = config_.kv_head_count,
                                                        .head_dim = config_.head_dim,
                                                        .sequence_count = options_.sequence_count,
                                                        .max_positions = options_.context});
  check_fits(sizes.total_bytes);

  workspace_range_ = arena_.reserve(MemoryKind::workspace, sizes.total_bytes);
  workspace_range_.commit(0, sizes.total_bytes);
  const Workspace workspace = lay_out_workspace(config_, weights_, device_.kernels(), limits, workspace_range_.base());
  transformer_ = std::make_unique<Transformer>(config_, weights_, *cache_, workspace, limits, device_.kernels());

  const auto report = [this](std::uint64_t done_bytes) {
    if (options_.progress) options_.progress(done_bytes, weight_map_.total_bytes);
  };
  load_weights(weight_map_, file, device_, arena_, weight_range_, *stream_, options_.load_threads, report);
}

Model::~Model() {
  // R4: nothing may still read what the ranges give back.
  try {
    stream_->synchronize();
  } catch (const std::exception&) {
  }
}

void Model::check_fits(std::uint64_t workspace_bytes) const {
  const auto granule_bytes = static_cast<std::int64_t>(device_.memory().granule_bytes());
  const auto whole = [&](std::uint64_t bytes) {
    return static_cast<std::uint64_t>(round_up(static_cast<std::int64_t>(bytes), granule_bytes));
  };
  const std::uint64_t kv_bytes =
      whole(cache_->bytes_for(options_.context)) * static_cast<std::uint64_t>(options_.sequence_count);
  const std::uint64_t needed = whole(weight_map_.total_bytes) + whole(workspace_bytes) + kv_bytes;
  const MemoryInfo info = device_.memory().info();
  const std::optional<std::uint64_t> available = options_.budget_bytes ? options_.budget_bytes : info.free_bytes;
  if (!available || needed <= *available) return;
  throw BudgetError(
      fmt::format("the model needs {} bytes ({} weights, {} kv cache for {} positions, {} workspace) and {} has {}",
                  needed, whole(weight_map_.total_bytes), kv_bytes, options_.context, whole(workspace_bytes),
                  options_.budget_bytes ? "the budget" : "the device", *available),
      needed, *available,
      fmt::format("allow {} bytes or more, or ask for a smaller context (-c) or batch (-ub)", needed));
}

void Model::ensure_positions(std::int32_t sequence, std::int32_t position_count) {
  cache_->ensure(sequence, position_count);
  if (position_count <= rope_positions_) return;
  // Positions are prepared some at a time: a long context costs nothing until it is used.
  const std::int32_t wanted = static_cast<std::int32_t>(
      std::min<std::int64_t>(options_.context, round_up(position_count, 4 * kChunkPositions)));
  const Workspace& space = transformer_->workspace();
  upload_rope_rows(config_.rope, space.rope_global, rope_positions_, wanted);
  if (config_.has_local_rope()) upload_rope_rows(config_.local_rope, space.rope_local, rope_positions_, wanted);
  rope_positions_ = wanted;
}

void Model::upload_rope_rows(const RopeSpec& spec, DevicePtr<float> table, std::int32_t first, std::int32_t end) {
  const std::int64_t first_element = std::int64_t{first} * config_.rotated;
  std::vector<float> rows(static_cast<std::size_t>(std::int64_t{end - first} * config_.rotated));
  fill_rope_table(spec, first, end - first, rows);
  stream_->upload((table + first_element).as<std::byte>(), rows.data(), rows.size() * sizeof(float));
  stream_->synchronize();
}

}  // namespace genai
