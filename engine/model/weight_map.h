// weight_map.h - which tensors of a file make which weights of the model, and where each lands in device memory. A pure
// function of the configuration and the tensor table; weight_loader.h moves the bytes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/kernels.h"
#include "engine/model/model_config.h"
#include "engine/model/split_matrix.h"
#include "engine/model/tensor_file.h"
#include "engine/residency/residency_plan.h"

namespace genai {

// A vector is null where the model has none. Matrices have rows == 0 where they are absent.
struct LayerWeights {
  DevicePtr<const float> attention_norm;       // (width)
  DevicePtr<const float> post_attention_norm;  // (width)
  DevicePtr<const float> feed_forward_norm;    // (width)
  DevicePtr<const float> post_feed_forward_norm;
  DevicePtr<const float> q_norm, k_norm;          // (head_dim)
  DevicePtr<const float> q_bias, k_bias, v_bias;  // (matrix rows)
  DevicePtr<const float> output_bias;
  SplitMatrix q, k, v, output;
  SplitMatrix gate_up;   // rows alternate gate, up; or, where their types differ:
  SplitMatrix gate, up;  // two matrices
  SplitMatrix down;
};

struct ModelWeights {
  SplitMatrix embedding;
  SplitMatrix output;  // the embedding again where the two are tied
  DevicePtr<const float> output_norm;
  std::vector<LayerWeights> layers;
};

// One tensor (or two, interleaved row by row) and its places. Names, not pointers: the map outlives the file.
struct PlacedTensor {
  std::string name;
  std::string interleaved_name;  // of the `up` whose rows alternate with those of `name`, a gate; empty: none
  DType dtype = DType::F32;      // in the file; of both
  bool packed = false;           // a matrix in tiles; else a vector of f32
  bool read_every_pass = true;   // false: an embedding that is not the output matrix too
  std::int64_t rows = 0;         // of the placed matrix; 1 for a vector
  std::int64_t cols = 0;
  std::uint64_t size_bytes = 0;
  // Set by place_weights. Offsets count from the base of the lane's range: device memory for Lane::resident (all of a
  // vector), cold host memory for the others.
  MatrixPlan plan{};
  std::array<std::uint64_t, kLaneCount> offset_bytes{};
  std::array<std::vector<RingPiece>, kRingListCount> ring_pieces{};  // by RingList
};

struct ColdSpan {
  std::uint64_t offset_bytes = 0;  // in cold memory
  std::uint64_t size_bytes = 0;
};

// The copy ring's chunks for one kind of pass, in the order of use.
struct ColdChunks {
  std::vector<std::vector<ColdSpan>> chunks;
  std::int32_t output_chunk = 0;  // the first one of the output matrix; chunks.size() if it has none
};

struct WeightMap {
  std::vector<PlacedTensor> tensors;  // matrices in the order in which a pass reads them
  std::uint64_t total_bytes = 0;
  std::uint64_t vector_bytes = 0;
  std::vector<std::string> unread;  // names of tensors that the model has no use for
  // Set by place_weights.
  std::uint64_t resident_bytes = 0;  // of the device range
  std::uint64_t cold_bytes = 0;      // of the cold range
  std::array<ColdChunks, kRingListCount> cold_chunks;

  const ColdChunks& chunks(RingList list) const { return cold_chunks[static_cast<std::size_t>(list)]; }
  const PlacedTensor* find(const std::string& tensor_name) const;
};

// Throws ModelFileError for a missing tensor, a wrong shape, or a tensor that would change the result but has no place
// in this architecture (a bias, say).
WeightMap map_weights(const ModelConfig& config, const TensorFile& file);

// True where the gate and up matrices of some layer could not be interleaved.
bool has_separate_gate(const WeightMap& map);

// What the planner needs to know of the matrices, in the map's order.
std::vector<MatrixSize> matrix_sizes(const WeightMap& map);

// Gives every part its place, as planned. Ring parts lie back to back in the order of use. They are cut into chunks of
// at most plan.ring_slot_bytes for narrow passes, and so are they and the host's parts together for wide ones, where
// the plan has such passes.
void place_weights(WeightMap& map, const ResidencyPlan& plan);

// Where a placed tensor's part begins; `base` is that of the lane's range.
inline DevicePtr<std::byte> weight_address(const PlacedTensor& placed, Lane lane, DevicePtr<std::byte> base) {
  return base.byte_offset(static_cast<std::int64_t>(placed.offset_bytes[static_cast<std::size_t>(lane)]));
}

// The views that the placed map has once its ranges begin at these bases.
ModelWeights bind_weights(const ModelConfig& config, const WeightMap& map, DevicePtr<std::byte> resident_base,
                          DevicePtr<std::byte> cold_base);

}  // namespace genai
