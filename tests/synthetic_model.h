// synthetic_model.h - a whole model of any small shape with weights from a fixed generator, as a GGUF image.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/dtype.h"
#include "engine/exact_math.h"
#include "tests/gguf_writer.h"

namespace genai::test {

struct SyntheticShape {
  std::string arch = "llama";
  std::uint32_t layer_count = 1;
  std::uint32_t width = 64;
  std::uint32_t head_count = 1;
  std::uint32_t kv_head_count = 1;
  std::uint32_t head_dim = 64;
  std::uint32_t feed_forward_width = 64;
  std::uint32_t vocabulary = 96;
  std::uint32_t context = 4096;
  std::uint32_t window = 0;  // 0: none
  bool quantised = false;    // matrices are Q4_0, not F32; widths are then multiples of 32
};

// Uneven values of about the size that keeps a residual stream near 1.
inline std::vector<float> uneven_values(std::uint64_t count, std::uint32_t seed, float size, float centre = 0.0f) {
  std::vector<float> values(count);
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = centre + size * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

// Blocks of Q4_0 with values of about that size.
inline std::vector<std::byte> uneven_q4_0(std::uint64_t count, std::uint32_t seed, float size) {
  constexpr std::uint64_t kBlock = 32;
  std::vector<std::byte> bytes;
  std::uint32_t state = seed * 2654435761u + 12345u;
  const std::uint16_t scale = float_to_half(size / 8.0f);
  for (std::uint64_t block = 0; block < count / kBlock; ++block) {
    append_number(bytes, scale);
    for (std::uint64_t pair = 0; pair < kBlock / 2; ++pair) {
      state = state * 1664525u + 1013904223u;
      bytes.push_back(static_cast<std::byte>(state >> 24));
    }
  }
  return bytes;
}

inline GgufWriter synthetic_model(const SyntheticShape& shape) {
  GgufWriter writer;
  const auto key = [&](const char* name) { return shape.arch + "." + name; };
  writer.string("general.architecture", shape.arch)
      .u32(key("block_count"), shape.layer_count)
      .u32(key("embedding_length"), shape.width)
      .u32(key("feed_forward_length"), shape.feed_forward_width)
      .u32(key("attention.head_count"), shape.head_count)
      .u32(key("attention.head_count_kv"), shape.kv_head_count)
      .u32(key("attention.key_length"), shape.head_dim)
      .u32(key("attention.value_length"), shape.head_dim)
      .u32(key("context_length"), shape.context)
      .u32(key("vocab_size"), shape.vocabulary)
      .f32(key("attention.layer_norm_rms_epsilon"), 1e-5f)
      .f32(key("rope.freq_base"), 10000.0f);
  if (shape.window > 0) writer.u32(key("attention.sliding_window"), shape.window);

  std::uint32_t seed = 1;
  const auto matrix = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows) {
    const float size = 2.0f / std::sqrt(static_cast<float>(cols));
    if (shape.quantised)
      writer.tensor(name, {cols, rows}, static_cast<std::uint32_t>(DType::Q4_0),
                    uneven_q4_0(cols * rows, seed++, size));
    else
      writer.f32_tensor(name, {cols, rows}, uneven_values(cols * rows, seed++, size));
  };
  const auto norm = [&](const std::string& name, std::uint64_t width) {
    writer.f32_tensor(name, {width}, uneven_values(width, seed++, 0.25f, 1.0f));
  };
  const std::uint64_t query_width = std::uint64_t{shape.head_count} * shape.head_dim;
  const std::uint64_t key_width = std::uint64_t{shape.kv_head_count} * shape.head_dim;
  const bool gemma = shape.arch == "gemma3";
  matrix("token_embd.weight", shape.width, shape.vocabulary);
  for (std::uint32_t layer = 0; layer < shape.layer_count; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight", shape.width);
    matrix(prefix + "attn_q.weight", shape.width, query_width);
    matrix(prefix + "attn_k.weight", shape.width, key_width);
    matrix(prefix + "attn_v.weight", shape.width, key_width);
    matrix(prefix + "attn_output.weight", query_width, shape.width);
    norm(prefix + "ffn_norm.weight", shape.width);
    matrix(prefix + "ffn_gate.weight", shape.width, shape.feed_forward_width);
    matrix(prefix + "ffn_up.weight", shape.width, shape.feed_forward_width);
    matrix(prefix + "ffn_down.weight", shape.feed_forward_width, shape.width);
    if (!gemma) continue;
    norm(prefix + "attn_q_norm.weight", shape.head_dim);
    norm(prefix + "attn_k_norm.weight", shape.head_dim);
    norm(prefix + "post_attention_norm.weight", shape.width);
    norm(prefix + "post_ffw_norm.weight", shape.width);
  }
  norm("output_norm.weight", shape.width);
  return writer;
}

}  // namespace genai::test
