// model.h - a model ready to run on one device: configuration, weights in place, cache, workspace, transformer. Owns
// all device memory through one arena. One thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_file.h"
#include "engine/model/transformer.h"
#include "engine/model/weight_loader.h"
#include "engine/model/weight_map.h"
#include "engine/residency/copy_ring.h"
#include "engine/residency/residency_arena.h"
#include "engine/residency/residency_plan.h"

namespace genai {

struct ModelOptions {
  std::int32_t context = 4096;  // positions of one sequence
  std::int32_t max_rows = 512;  // rows of one pass
  std::int32_t max_logit_rows = 16;
  std::int32_t sequence_count = 1;
  CacheType cache_type = CacheType::f16;
  std::optional<std::uint64_t> budget_bytes;  // hard cap of committed device bytes; nothing: what the device has free
  Allocator allocator = Allocator::arena;     // plain: no budget
  OffloadMode offload = OffloadMode::automatic;
  LaneSpeeds lane_speeds;
  bool has_host_lane = true;  // host cores can compute rows for the device
  // What computes rows of Lane::host beside a device that is not the host; null: the device does. Outlives the model.
  Device* host_device = nullptr;
  // Matrices that must not be resident: whole names of tensors, or parts of names.
  std::vector<std::string> forced_cold;
  std::optional<std::uint64_t> host_available_bytes;  // for cold weights; nothing: not checked
  int load_threads = 1;
  // Called now and then while weights are placed; may throw to give up.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;
};

// What the planner must know to place this model on this device. Nothing is loaded or committed. Throws UsageError
// where a name of options.forced_cold is in none of the model's matrices.
PlanRequest make_plan_request(const WeightMap& map, const ModelConfig& config, Device& device,
                              const ModelOptions& options);

class Model {
 public:
  // Throws ModelFileError, BudgetError (before any large allocation) or DeviceError, also for a lane that returns wrong
  // bytes (lane_check.h). `device` outlives the model; the file is no longer needed after construction.
  Model(const TensorFile& file, const ModelConfig& config, Device& device, const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const WeightMap& weight_map() const { return weight_map_; }
  const ResidencyArena& arena() const { return arena_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  const KvCache& cache() const { return *cache_; }
  Transformer& transformer() { return *transformer_; }
  // Makes the first `position_count` positions of a sequence ready: cache backed, rotary table filled. Between passes.
  void ensure_positions(std::int32_t sequence, std::int32_t position_count);
  const ResidencyPlan& plan() const { return plan_; }
  // What the plan was made from.
  const PlanRequest& plan_request() const { return plan_request_; }
  CopyRing& ring() { return *ring_; }
  // Null where the plan has no rows for it, or the device computes them itself.
  HostLane* host_lane() { return host_lane_.get(); }
  DevicePtr<std::byte> weight_address(const PlacedTensor& placed, Lane lane = Lane::resident) const {
    return genai::weight_address(placed, lane, lane == Lane::resident ? weight_range_.base() : cold_range_.base());
  }
  // Why cold weights are in memory that is not page-locked; empty: they are not. Such weights are copied by single
  // calls and reach the device through the ring only; the rest is as ever.
  const std::string& pinning_refusal() const { return pinning_refusal_; }
  bool has_pageable_weights() const { return !pinning_refusal_.empty() && plan_.cold_bytes() > 0; }
  const WeightLoad& weight_load() const { return weight_load_; }
  std::uint64_t weight_bytes() const { return weight_map_.total_bytes; }

 private:
  void place(const TensorFile& file);
  void give_up_placement();
  void plan_for_pageable_memory();
  Placement host_placement() const { return pinning_refusal_.empty() ? Placement::host : Placement::pageable; }
  void check_host_memory() const;
  void make_ring();
  void make_host_lane(const Workspace& workspace);
  void upload_rope_rows(const RopeSpec& spec, DevicePtr<float> table, std::int32_t first, std::int32_t end);

  ModelConfig config_;
  ModelOptions options_;
  Device& device_;
  ResidencyArena arena_;
  std::unique_ptr<Stream> stream_;
  WeightMap weight_map_;
  PlanRequest plan_request_;
  std::string pinning_refusal_;
  ResidencyPlan plan_;
  MemoryRange weight_range_;
  MemoryRange cold_range_;
  MemoryRange ring_range_;
  MemoryRange workspace_range_;
  ModelWeights weights_;
  WeightLoad weight_load_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CopyRing> ring_;
  std::unique_ptr<HostLane> host_lane_;
  std::unique_ptr<Transformer> transformer_;
  std::int32_t rope_positions_ = 0;  // rows of the rotary tables that are in place
};

}  // namespace genai
