// model_config.h - what a model is, read from a file's metadata and checked: every number is in range and everything
// that would change the result and that this build does not do is refused. A plain value; no part of it is a special
// case of one model's name, later code keys on these fields only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/gguf_file.h"
#include "engine/model/rope_table.h"

namespace genai {

enum class Architecture : std::uint8_t { llama, qwen2, qwen3, gemma3 };

enum class Activation : std::uint8_t {
  silu,
  gelu,  // the tanh form
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  std::string architecture_name;  // as in the file's keys
  std::string name;               // for people; may be empty

  std::int32_t vocabulary_size = 0;
  std::int32_t layer_count = 0;
  std::int32_t width = 0;  // of the residual stream
  std::int32_t feed_forward_width = 0;
  std::int32_t head_count = 0;
  std::int32_t kv_head_count = 0;   // divides head_count
  std::int32_t head_dim = 0;        // a multiple of 8; of keys, queries and values alike
  std::int32_t context_tokens = 0;  // positions that the model was trained for
  float norm_epsilon = 0.0f;

  RopeSpec rope;                  // of layers that see everything
  RopeSpec local_rope;            // of layers with a window; equal to `rope` where the model makes no difference
  std::int32_t rotated = 0;       // leading elements of a head that turn, in both
  bool rope_interleaved = false;  // pairs (2i, 2i+1), else (i, i + rotated/2)

  std::int32_t sliding_window = 0;  // positions that a local layer sees, its own included; 0: no layer is local
  std::vector<bool> local_layers;   // one a layer

  float attention_scale = 0.0f;
  float embedding_scale = 1.0f;
  float attention_soft_cap = 0.0f;  // 0: none
  float final_soft_cap = 0.0f;      // 0: none
  Activation activation = Activation::silu;

  bool query_key_norm = false;  // q and k are normalised per head, before they turn
  bool qkv_bias = false;        // the q, k and v products may have biases
  bool post_norms = false;      // each branch is normalised before it is added

  bool is_local_layer(std::int32_t layer) const { return local_layers[static_cast<std::size_t>(layer)]; }
  bool has_local_rope() const { return sliding_window > 0 && local_rope != rope; }
};

// Throws ModelFileError: unknown architecture, missing or impossible value, a feature that this build lacks.
ModelConfig read_model_config(const GgufFile& file);

}  // namespace genai
