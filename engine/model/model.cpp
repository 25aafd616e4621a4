#include "engine/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "engine/error.h"
#include "engine/model/rope_table.h"
#include "engine/model/weight_loader.h"
#include "engine/packed_layout.h"
#include "engine/residency/lane_check.h"

namespace genai {

namespace {

CacheShape cache_shape(const ModelConfig& config, const ModelOptions& options) {
  return {.type = options.cache_type,
          .layer_count = config.layer_count,
          .kv_head_count = config.kv_head_count,
          .head_dim = config.head_dim,
          .sequence_count = options.sequence_count,
          .max_positions = options.context};
}

// By the whole name of a tensor, or by a part of names.
std::vector<std::string> matrices_named(const WeightMap& map, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const PlacedTensor* const whole = map.find(name);
    const std::size_t before = found.size();
    for (const PlacedTensor& placed : map.tensors) {
      const bool has_part =
          placed.name.find(name) != std::string::npos || placed.interleaved_name.find(name) != std::string::npos;
      if (placed.packed && (whole == nullptr ? has_part : &placed == whole)) found.push_back(placed.name);
    }
    if (found.size() == before)
      throw UsageError(fmt::format("no matrix has a name with '{}' in it, to be kept cold", name),
                       "genai inspect lists the names of a file's tensors");
  }
  return found;
}

PassLimits pass_limits(const ModelOptions& options) {
  return {.max_rows = options.max_rows,
          .max_logit_rows = std::min(options.max_rows, options.max_logit_rows),
          .max_positions = options.context};
}

// Steps are captured once a width: powers of two, and the number of sequences.
std::size_t step_graph_count(std::int32_t sequence_count) {
  const auto count = static_cast<std::uint32_t>(sequence_count);
  return static_cast<std::size_t>(std::bit_width(count)) + (std::has_single_bit(count) ? 0 : 1);
}

// No step has more, wherever its rows are. Of a matrix: its input, resident rows, rows over the link or a request to
// host cores and its answer, the copy of a piece of a chunk and its rows. Of a chunk, which is one in 64 of the whole
// model or has 8 MiB: another copy and another kernel.
std::size_t most_step_operations(const WeightMap& map, std::int32_t small_kernels) {
  constexpr std::size_t kOfMatrix = 6;
  constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;
  constexpr std::uint64_t kFewestChunks = 64;
  const auto matrices =
      std::count_if(map.tensors.begin(), map.tensors.end(), [](const auto& any) { return any.packed; });
  const std::uint64_t chunks = kFewestChunks + map.total_bytes / kChunkBytes;
  return kOfMatrix * static_cast<std::size_t>(matrices) + 2 * (static_cast<std::size_t>(small_kernels) + chunks);
}

}  // namespace

PlanRequest make_plan_request(const WeightMap& map, const ModelConfig& config, Device& device,
                              const ModelOptions& options) {
  const std::uint64_t granule_bytes = device.memory().granule_bytes();
  const auto whole = [&](std::uint64_t bytes) { return (bytes + granule_bytes - 1) / granule_bytes * granule_bytes; };
  const Workspace workspace =
      lay_out_workspace(config, has_separate_gate(map), device.kernels(), pass_limits(options), {});
  PlanRequest request;
  request.matrices = matrix_sizes(map);
  request.fixed = {.vectors = map.vector_bytes,
                   .kv = whole(cache_bytes(cache_shape(config, options), options.context)) *
                         static_cast<std::uint64_t>(options.sequence_count),
                   .workspace = whole(workspace.total_bytes)};
  request.granule_bytes = granule_bytes;
  request.budget_bytes = options.budget_bytes ? options.budget_bytes : device.memory().info().free_bytes;
  request.mode = options.offload;
  request.has_host_lane = options.has_host_lane;
  request.lanes_take_turns = options.has_host_lane && options.host_device == nullptr;
  request.wide_passes_stream = options.host_device != nullptr && options.max_rows > HostLane::kMaxRows;
  request.step_rows = std::min({options.sequence_count, options.max_rows, options.max_logit_rows});
  request.calls_share_kernels = workspace.handover_bytes > 0;
  request.small_kernels = 3 * config.layer_count + 3;  // rotation, attention, merging; embedding, choice, advance
  request.fixed.graphs = whole(device.graph_reserve_bytes(step_graph_count(options.sequence_count),
                                                          most_step_operations(map, request.small_kernels)));
  if (options.host_device != nullptr) {
    const HostCores& cores = host_cores_of(*options.host_device);
    request.host_ahead_bytes = cores.ahead_bytes();
    request.host_cache_bytes = cores.cache_bytes();
  }
  request.speeds = options.lane_speeds;
  request.forced_cold = matrices_named(map, options.forced_cold);
  return request;
}

Model::Model(const TensorFile& file, const ModelConfig& config, Device& device, const ModelOptions& options)
    : config_(config),
      options_(options),
      device_(device),
      arena_(device.memory(), options.budget_bytes, options.allocator),
      stream_(device.create_stream()),
      weight_map_(map_weights(config_, file)),
      plan_request_(make_plan_request(weight_map_, config_, device, options_)) {
  cache_ = std::make_unique<KvCache>(arena_, cache_shape(config_, options_));
  plan_ = make_residency_plan(plan_request_);
  arena_.keep_free(MemoryKind::graphs, plan_request_.fixed.graphs);
  try {
    place(file);
  } catch (const PinnedMemoryError& error) {
    give_up_placement();
    weight_map_ = map_weights(config_, file);
    pinning_refusal_ = error.what();
    plan_for_pageable_memory();
    place(file);
  }
}

void Model::place(const TensorFile& file) {
  const PassLimits limits = pass_limits(options_);
  const bool separate_gate = has_separate_gate(weight_map_);
  const Workspace sizes = lay_out_workspace(config_, separate_gate, device_.kernels(), limits, {});
  check_host_memory();
  check_lanes(plan_, device_, options_.host_device, arena_, host_placement());
  place_weights(weight_map_, plan_);

  weight_range_ = arena_.reserve(MemoryKind::weights, weight_map_.resident_bytes);
  if (weight_map_.cold_bytes > 0)
    cold_range_ = arena_.reserve(MemoryKind::cold, weight_map_.cold_bytes, host_placement());
  weights_ = bind_weights(config_, weight_map_, weight_range_.base(), cold_range_.base());
  workspace_range_ = arena_.reserve(MemoryKind::workspace, sizes.total_bytes);
  workspace_range_.commit(0, sizes.total_bytes);

  const auto report = [this](std::uint64_t done_bytes) {
    if (options_.progress) options_.progress(done_bytes, weight_map_.total_bytes);
  };
  weight_load_ = load_weights(weight_map_, file, device_, arena_, weight_range_, cold_range_, host_placement(),
                              *stream_, options_.load_threads, report);

  make_ring();
  const Workspace workspace =
      lay_out_workspace(config_, separate_gate, device_.kernels(), limits, workspace_range_.base());
  make_host_lane(workspace);
  if (workspace.handover_bytes > 0) {
    stream_->fill_zero(workspace.handover, workspace.handover_bytes);
    stream_->synchronize();
  }
  const Transformer::OutputChunks output_chunks{weight_map_.chunks(RingList::narrow).output_chunk,
                                                weight_map_.chunks(RingList::wide).output_chunk};
  transformer_ = std::make_unique<Transformer>(config_, weights_, *cache_, workspace, limits, device_.kernels(), *ring_,
                                               output_chunks, host_lane_.get());
}

void Model::give_up_placement() {
  transformer_.reset();
  host_lane_.reset();
  ring_.reset();
  for (MemoryRange* const range : {&ring_range_, &workspace_range_, &cold_range_, &weight_range_}) *range = {};
}

// Kernels cannot read such memory: no rows that are read or looked up in place.
void Model::plan_for_pageable_memory() {
  if (plan_request_.mode != OffloadMode::off) plan_request_.mode = OffloadMode::stream;
  for (MatrixSize& matrix : plan_request_.matrices)
    if (!matrix.read_every_pass || matrix.one_cold_lane) matrix.may_be_cold = false;
  plan_ = make_residency_plan(plan_request_);
}

void Model::make_ring() {
  const std::size_t ring_bytes =
      static_cast<std::size_t>(plan_.ring_slot_bytes) * static_cast<std::size_t>(plan_.ring_slots);
  if (ring_bytes > 0) {
    ring_range_ = arena_.reserve(MemoryKind::ring, ring_bytes);
    ring_range_.commit(0, ring_bytes);
  }
  CopyRing::Lists lists;
  for (std::size_t list = 0; list < lists.size(); ++list) {
    for (const std::vector<ColdSpan>& spans : weight_map_.cold_chunks[list].chunks) {
      RingChunk& chunk = lists[list].emplace_back();
      for (const ColdSpan& span : spans)
        chunk.push_back({.source = cold_range_.base().byte_offset(static_cast<std::int64_t>(span.offset_bytes)),
                         .bytes = span.size_bytes});
    }
  }
  ring_ = std::make_unique<CopyRing>(device_, std::move(lists), ring_range_.base(), plan_.ring_slot_bytes,
                                     plan_.ring_slots);
  ring_->prime();
}

void Model::make_host_lane(const Workspace& workspace) {
  if (options_.host_device == nullptr || plan_.of(Lane::host) == 0) return;
  const auto rows = [](const SplitMatrix& matrix) { return matrix.part(Lane::host).view.rows; };
  HostLaneLimits limits;
  limits.max_rows = std::min(HostLane::kMaxRows, options_.max_rows);
  limits.result_width = rows(weights_.output);
  for (const LayerWeights& layer : weights_.layers)
    limits.result_width =
        std::max({limits.result_width, rows(layer.q) + rows(layer.k) + rows(layer.v), rows(layer.output),
                  rows(layer.gate_up), rows(layer.gate) + rows(layer.up), rows(layer.down)});
  for (const PlacedTensor& placed : weight_map_.tensors) {
    if (!placed.packed || placed.plan.of(Lane::host) == 0) continue;
    limits.input_width = std::max(limits.input_width, static_cast<std::int32_t>(placed.cols));
    limits.float_input = limits.float_input || is_float(placed.dtype);
    ++limits.max_products;
  }
  host_lane_ = std::make_unique<HostLane>(device_, *options_.host_device, arena_, workspace.host_requests, limits);
  for (const PlacedTensor& placed : weight_map_.tensors) {
    if (placed.packed || !placed.name.ends_with(".bias")) continue;
    std::vector<float> values(placed.size_bytes / sizeof(float));
    const DevicePtr<std::byte> place = weight_address(placed);
    stream_->download(values.data(), place, placed.size_bytes);
    stream_->synchronize();
    host_lane_->keep_copy(place.as<const float>(), std::move(values));
  }
}

Model::~Model() {
  // R4: nothing may still read what the ranges give back.
  try {
    stream_->synchronize();
  } catch (const std::exception&) {
  }
}

void Model::check_host_memory() const {
  const std::uint64_t cold_bytes = plan_.cold_bytes();
  if (!options_.host_available_bytes || cold_bytes <= *options_.host_available_bytes) return;
  throw BudgetError(fmt::format("{} bytes of weights must stay in host memory, and the host has {} available",
                                cold_bytes, *options_.host_available_bytes),
                    cold_bytes, *options_.host_available_bytes,
                    "close other programs, allow more device memory, or use a smaller model");
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
