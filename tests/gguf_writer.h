// gguf_writer.h - makes GGUF files for tests: right ones, and wrong ones by poking at a named place. Setting a key
// again replaces it, so a test starts from a good file and changes the one thing it is about.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/gguf_types.h"

namespace genai::test {

template <class Number>
void append_number(std::vector<std::byte>& bytes, Number value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}
inline void append_text(std::vector<std::byte>& bytes, std::string_view text) {
  append_number(bytes, std::uint64_t{text.size()});
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), from, from + text.size());
}

// The bytes of a file and where its parts lie. Places: "version", "tensor_count", "pair_count"; of a key K "key:K" (its
// length), "type:K", "value:K" (of a string its length, of an array its element type); of a tensor T "name:T" (its
// length), "rank:T", "shape:T", "tensor_type:T", "offset:T", "data:T".
struct GgufImage {
  std::vector<std::byte> bytes;
  std::map<std::string, std::uint64_t> places;

  std::uint64_t at(const std::string& place) const { return places.at(place); }
  template <class Number>
  GgufImage& poke(const std::string& place, Number value, std::uint64_t further = 0) {
    std::memcpy(bytes.data() + at(place) + further, &value, sizeof value);
    return *this;
  }
  std::span<const std::byte> first(std::uint64_t count) const { return std::span(bytes).first(count); }

  void write(const std::filesystem::path& path) const {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
  }
};

class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  GgufWriter& u8(const std::string& key, std::uint8_t value) { return number(key, GgufValueType::u8, value); }
  GgufWriter& u16(const std::string& key, std::uint16_t value) { return number(key, GgufValueType::u16, value); }
  GgufWriter& u32(const std::string& key, std::uint32_t value) { return number(key, GgufValueType::u32, value); }
  GgufWriter& i32(const std::string& key, std::int32_t value) { return number(key, GgufValueType::i32, value); }
  GgufWriter& u64(const std::string& key, std::uint64_t value) { return number(key, GgufValueType::u64, value); }
  GgufWriter& i64(const std::string& key, std::int64_t value) { return number(key, GgufValueType::i64, value); }
  GgufWriter& f32(const std::string& key, float value) { return number(key, GgufValueType::f32, value); }
  GgufWriter& f64(const std::string& key, double value) { return number(key, GgufValueType::f64, value); }
  GgufWriter& boolean(const std::string& key, bool value) {
    return number(key, GgufValueType::boolean, std::uint8_t{value});
  }
  GgufWriter& string(const std::string& key, std::string_view value) {
    std::vector<std::byte> bytes;
    append_text(bytes, value);
    return set(key, GgufValueType::string, std::move(bytes));
  }
  GgufWriter& strings(const std::string& key, const std::vector<std::string>& values) {
    std::vector<std::byte> bytes = array_head(GgufValueType::string, values.size());
    for (const std::string& value : values) append_text(bytes, value);
    return set(key, GgufValueType::array, std::move(bytes));
  }
  template <class Number>
  GgufWriter& numbers(const std::string& key, GgufValueType element_type, const std::vector<Number>& values) {
    std::vector<std::byte> bytes = array_head(element_type, values.size());
    for (const Number value : values) append_number(bytes, value);
    return set(key, GgufValueType::array, std::move(bytes));
  }
  // Any bytes as the value.
  GgufWriter& set(const std::string& key, GgufValueType type, std::vector<std::byte> value) {
    const auto same = [&](const Pair& pair) { return pair.key == key; };
    const auto found = std::find_if(pairs_.begin(), pairs_.end(), same);
    if (found == pairs_.end()) return add_again(key, type, std::move(value));
    found->type = type;
    found->value = std::move(value);
    return *this;
  }
  // A second pair of the same key.
  GgufWriter& add_again(const std::string& key, GgufValueType type, std::vector<std::byte> value) {
    pairs_.push_back({key, type, std::move(value)});
    return *this;
  }
  GgufWriter& remove(const std::string& key) {
    std::erase_if(pairs_, [&](const Pair& pair) { return pair.key == key; });
    return *this;
  }

  // `type` is a tensor type number of the format; without `data` the tensor is zeros. `offset` overrides the place
  // behind the tensor before.
  GgufWriter& tensor(const std::string& name, std::vector<std::uint64_t> shape, std::uint32_t type,
                     std::optional<std::vector<std::byte>> data = {}, std::optional<std::uint64_t> offset = {}) {
    std::uint64_t count = 1;
    for (const std::uint64_t dimension : shape) count *= dimension;
    const GgufTensorType known = find_gguf_tensor_type(type).value_or(GgufTensorType{type, "", 1, 1});
    if (!data) data.emplace(count / known.block_elements * known.block_bytes);
    tensors_.push_back({name, std::move(shape), type, std::move(*data), offset});
    return *this;
  }
  GgufWriter& remove_tensor(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
    return *this;
  }
  GgufWriter& f32_tensor(const std::string& name, std::vector<std::uint64_t> shape, const std::vector<float>& values) {
    std::vector<std::byte> data;
    for (const float value : values) append_number(data, value);
    return tensor(name, std::move(shape), 0, std::move(data));
  }

  GgufImage build(std::uint64_t alignment = 32) const {
    GgufImage image;
    std::vector<std::byte>& out = image.bytes;
    append_number(out, std::uint32_t{0x46554747});
    mark(image, "version");
    append_number(out, version_);
    mark(image, "tensor_count");
    append_number(out, std::uint64_t{tensors_.size()});
    mark(image, "pair_count");
    append_number(out, std::uint64_t{pairs_.size()});
    for (const Pair& pair : pairs_) {
      mark(image, "key:" + pair.key);
      append_text(out, pair.key);
      mark(image, "type:" + pair.key);
      append_number(out, static_cast<std::uint32_t>(pair.type));
      mark(image, "value:" + pair.key);
      out.insert(out.end(), pair.value.begin(), pair.value.end());
    }
    append_table(image, alignment);
    append_data(image, alignment);
    return image;
  }

 private:
  struct Pair {
    std::string key;
    GgufValueType type;
    std::vector<std::byte> value;
  };
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::uint32_t type;
    std::vector<std::byte> data;
    std::optional<std::uint64_t> offset;
  };

  static void mark(GgufImage& image, const std::string& place) { image.places[place] = image.bytes.size(); }
  static std::uint64_t aligned(std::uint64_t size, std::uint64_t alignment) {
    return (size + alignment - 1) / alignment * alignment;
  }
  static std::vector<std::byte> array_head(GgufValueType element_type, std::uint64_t count) {
    std::vector<std::byte> bytes;
    append_number(bytes, static_cast<std::uint32_t>(element_type));
    append_number(bytes, count);
    return bytes;
  }
  template <class Number>
  GgufWriter& number(const std::string& key, GgufValueType type, Number value) {
    std::vector<std::byte> bytes;
    append_number(bytes, value);
    return set(key, type, std::move(bytes));
  }

  void append_table(GgufImage& image, std::uint64_t alignment) const {
    std::uint64_t next = 0;
    for (const Tensor& tensor : tensors_) {
      mark(image, "name:" + tensor.name);
      append_text(image.bytes, tensor.name);
      mark(image, "rank:" + tensor.name);
      append_number(image.bytes, static_cast<std::uint32_t>(tensor.shape.size()));
      mark(image, "shape:" + tensor.name);
      for (const std::uint64_t dimension : tensor.shape) append_number(image.bytes, dimension);
      mark(image, "tensor_type:" + tensor.name);
      append_number(image.bytes, tensor.type);
      mark(image, "offset:" + tensor.name);
      append_number(image.bytes, tensor.offset.value_or(next));
      next = aligned(next + tensor.data.size(), alignment);
    }
  }

  void append_data(GgufImage& image, std::uint64_t alignment) const {
    for (const Tensor& tensor : tensors_) {
      image.bytes.resize(aligned(image.bytes.size(), alignment));
      mark(image, "data:" + tensor.name);
      image.bytes.insert(image.bytes.end(), tensor.data.begin(), tensor.data.end());
    }
  }

  std::uint32_t version_;
  std::vector<Pair> pairs_;
  std::vector<Tensor> tensors_;
};

// A small file of the given architecture whose metadata describe a model, with its embedding and one norm, no layers.
inline GgufWriter model_header(const std::string& architecture) {
  GgufWriter writer;
  writer.string("general.architecture", architecture)
      .string("general.name", "tiny")
      .u32(architecture + ".block_count", 2)
      .u32(architecture + ".context_length", 2048)
      .u32(architecture + ".embedding_length", 64)
      .u32(architecture + ".feed_forward_length", 128)
      .u32(architecture + ".attention.head_count", 4)
      .u32(architecture + ".attention.head_count_kv", 2)
      .f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .f32(architecture + ".rope.freq_base", 10000.0f)
      .strings("tokenizer.ggml.tokens", {"a", "b", "c"})
      .tensor("token_embd.weight", {64, 3}, 8)
      .tensor("output_norm.weight", {64}, 0);
  return writer;
}

}  // namespace genai::test
