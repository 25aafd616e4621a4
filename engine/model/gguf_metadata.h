// gguf_metadata.h - the keys and values of a GGUF file. Values stay in the file's bytes: strings come back as views,
// and a list of 262144 tokens costs nothing until somebody asks for it. Everything was bounds-checked when it was
// parsed. A value of the wrong type is a ModelFileError that names the key. Reading is safe from several threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/gguf_reader.h"
#include "engine/model/gguf_types.h"

namespace genai {

class GgufMetadata {
 public:
  struct Entry {
    std::string_view key;
    GgufValueType type;
    GgufValueType element_type;        // of an array; else as `type`
    std::uint64_t element_count;       // of an array; else 1
    std::uint64_t file_offset;         // of `bytes`
    std::span<const std::byte> bytes;  // the number, the string's text, or the array's elements
  };

  // Reads `count` pairs at the reader's position. `file` names the file in errors.
  GgufMetadata(GgufReader& reader, std::uint64_t count, std::string file);

  // In file order.
  const std::vector<Entry>& entries() const { return entries_; }
  // Null if there is no such key.
  const Entry* find(std::string_view key) const;

  // Nothing if there is no such key. Integers of every width and sign are taken where the value fits; f64 is taken for
  // f32 where it fits.
  std::optional<std::uint64_t> find_u64(std::string_view key) const;
  std::optional<std::int64_t> find_i64(std::string_view key) const;
  std::optional<std::uint32_t> find_u32(std::string_view key) const;
  std::optional<float> find_f32(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_i64_array(std::string_view key) const;
  std::optional<std::vector<float>> find_f32_array(std::string_view key) const;
  std::optional<std::vector<bool>> find_bool_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_string_array(std::string_view key) const;

  // The same, but a missing key is a ModelFileError.
  std::uint64_t require_u64(std::string_view key) const { return required(find_u64(key), key); }
  std::uint32_t require_u32(std::string_view key) const { return required(find_u32(key), key); }
  float require_f32(std::string_view key) const { return required(find_f32(key), key); }
  bool require_bool(std::string_view key) const { return required(find_bool(key), key); }
  std::string_view require_string(std::string_view key) const { return required(find_string(key), key); }
  std::vector<std::string_view> require_string_array(std::string_view key) const {
    return required(find_string_array(key), key);
  }

  // "u32", "string", "array of 320 string".
  static std::string type_name(const Entry& entry);
  // The value on one line, fit for a terminal, cut at about `max_bytes`.
  static std::string printable_value(const Entry& entry, std::size_t max_bytes = 60);

  // ModelFileError at the value of `entry`, whose value is given as what was found.
  [[noreturn]] void reject(const Entry& entry, std::string_view expected, std::string hint = {}) const;

 private:
  template <class Value>
  Value required(std::optional<Value> value, std::string_view key) const {
    if (!value) reject_missing(key);
    return *std::move(value);
  }
  [[noreturn]] void reject_missing(std::string_view key) const;
  [[noreturn]] void reject_type(const Entry& entry, std::string_view expected) const;
  const Entry* find_array(std::string_view key, std::string_view expected) const;

  std::string file_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_key_;  // indices into entries_, in the order of their keys
};

}  // namespace genai
