// weight_map.h - which tensors of a file make which weights of the model, and where each lands in device memory. A pure
// function of the configuration and the tensor table; weight_loader.h moves the bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/kernels.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_file.h"

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
  MatrixView q, k, v, output;
  MatrixView gate_up;   // rows alternate gate, up; or, where their types differ:
  MatrixView gate, up;  // two matrices
  MatrixView down;
};

struct ModelWeights {
  MatrixView embedding;
  MatrixView output;  // the embedding again where the two are tied
  DevicePtr<const float> output_norm;
  std::vector<LayerWeights> layers;
};

// One tensor (or two, interleaved row by row) and its place in the weights' range.
struct PlacedTensor {
  const TensorInfo* tensor = nullptr;
  const TensorInfo* interleaved = nullptr;  // the `up` whose rows alternate with those of `tensor`, a gate
  bool packed = false;                      // a matrix in tiles; else a vector of f32
  std::int64_t rows = 0;                    // of the placed matrix; 1 for a vector
  std::int64_t cols = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct WeightMap {
  std::vector<PlacedTensor> tensors;
  std::uint64_t total_bytes = 0;
  std::vector<std::string> unread;  // names of tensors that the model has no use for

  const PlacedTensor* find(const std::string& tensor_name) const;
};

// Throws ModelFileError for a missing tensor, a wrong shape, or a tensor that would change the result but has no place
// in this architecture (a bias, say).
WeightMap map_weights(const ModelConfig& config, const TensorFile& file);

// The views that the map has once its range begins at `base`.
ModelWeights bind_weights(const ModelConfig& config, const WeightMap& map, DevicePtr<std::byte> base);

}  // namespace genai
