// weight_loader.h - fills the placed weights: every part of every tensor is packed once, by several threads, straight
// from the mapping into its final place where the host can write there, else through a small staging range, page-locked
// where that is to be had.
#pragma once
#include <cstdint>
#include <functional>

#include "engine/device/device.h"
#include "engine/model/tensor_file.h"
#include "engine/model/weight_map.h"
#include "engine/residency/residency_arena.h"

namespace genai {

// Called now and then, on the calling thread, with the bytes placed so far; may throw to give up.
using LoadProgress = std::function<void(std::uint64_t done_bytes)>;

struct WeightLoad {
  std::uint64_t file_bytes = 0;  // of the tensors that were read
  double seconds = 0.0;          // to commit, read, pack and place
};

// Commits both ranges (`cold` may be empty where the map has nothing for it) and fills them; the mapping's pages are
// dropped behind the readers. Returns when the device has everything. Throws BudgetError, PinnedMemoryError or
// DeviceError.
WeightLoad load_weights(const WeightMap& map, const TensorFile& file, Device& device, ResidencyArena& arena,
                        MemoryRange& resident, MemoryRange& cold, Placement staging_placement, Stream& stream,
                        int thread_count, const LoadProgress& progress);

}  // namespace genai
