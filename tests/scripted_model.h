// scripted_model.h - a llama model that says what a test wants: its layers do nothing, so the token that follows is a
// function of the last token alone, written into the output matrix. Up to 64 tokens, byte-level BPE without merges,
// greedy text known in advance, a few kilobytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gguf_writer.h"

namespace genai::test {

// Bytes as the vocabularies of byte-level BPE spell them.
inline std::string byte_level(std::string_view bytes) {
  std::string text;
  const auto append = [&](unsigned code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  };
  for (const char character : bytes) {
    const auto byte = static_cast<unsigned char>(character);
    const auto is_itself = [](unsigned value) {
      return (value >= 0x21 && value <= 0x7E) || (value >= 0xA1 && value <= 0xAC) || value >= 0xAE;
    };
    if (is_itself(byte)) {
      append(byte);
      continue;
    }
    unsigned code = 256;
    for (unsigned other = 0; other < byte; ++other) code += is_itself(other) ? 0 : 1;
    append(code);
  }
  return text;
}

class ScriptedModel {
 public:
  static constexpr int kWidth = 64;
  static constexpr std::int32_t kNormal = 1, kControl = 3;

  ScriptedModel() { add("?"); }

  // A token and its id. Token 0 is "?"; what follows a token that no line mentions is token 0 (all logits are equal).
  std::int32_t add(std::string_view bytes, std::int32_t type = kNormal) {
    tokens_.push_back(type == kControl ? std::string(bytes) : byte_level(bytes));
    types_.push_back(type);
    return static_cast<std::int32_t>(tokens_.size()) - 1;
  }
  // After each token the next one of the list.
  ScriptedModel& says(const std::vector<std::int32_t>& ids) {
    for (std::size_t i = 1; i < ids.size(); ++i) next_[ids[i - 1]] = ids[i];
    return *this;
  }
  // How strongly `next` follows `id`, 1 unless said: its logit is this times the norm's factor.
  ScriptedModel& set_weight(std::int32_t id, std::int32_t next, float weight) {
    weights_[{id, next}] = weight;
    return *this;
  }
  // Adds one token a piece, and has each follow the one before; returns the ids.
  std::vector<std::int32_t> add_line(const std::vector<std::string>& pieces) {
    std::vector<std::int32_t> ids;
    for (const std::string& piece : pieces) ids.push_back(add(piece));
    says(ids);
    return ids;
  }

  GgufWriter writer() const {
    const auto token_count = static_cast<std::uint64_t>(tokens_.size());
    GgufWriter out;
    out.string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 4096)
        .u32("llama.embedding_length", kWidth)
        .u32("llama.feed_forward_length", kWidth)
        .u32("llama.attention.head_count", 8)
        .u32("llama.attention.head_count_kv", 8)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", tokens_)
        .strings("tokenizer.ggml.merges", {})
        .numbers("tokenizer.ggml.token_type", GgufValueType::i32, types_);
    std::vector<float> embedding(token_count * kWidth), output(token_count * kWidth);
    for (std::size_t id = 0; id < tokens_.size(); ++id) embedding[id * kWidth + id] = 1.0f;
    for (const auto& [id, next] : next_)
      output[static_cast<std::size_t>(next) * kWidth + static_cast<std::size_t>(id)] = 1.0f;
    for (const auto& [edge, weight] : weights_)
      output[static_cast<std::size_t>(edge.second) * kWidth + static_cast<std::size_t>(edge.first)] = weight;
    const std::vector<float> ones(kWidth, 1.0f);
    out.f32_tensor("token_embd.weight", {kWidth, token_count}, embedding)
        .f32_tensor("output.weight", {kWidth, token_count}, output)
        .f32_tensor("output_norm.weight", {kWidth}, ones)
        .f32_tensor("blk.0.attn_norm.weight", {kWidth}, ones)
        .f32_tensor("blk.0.ffn_norm.weight", {kWidth}, ones);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      out.tensor(std::string("blk.0.") + name + ".weight", {kWidth, kWidth}, 0);
    return out;
  }

 private:
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  std::map<std::int32_t, std::int32_t> next_;
  std::map<std::pair<std::int32_t, std::int32_t>, float> weights_;
};

}  // namespace genai::test
