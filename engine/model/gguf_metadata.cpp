#include "engine/model/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/error.h"
#include "engine/model/printable_text.h"

namespace genai {
namespace {

constexpr std::uint64_t kPairCountOffset = 16;
constexpr std::uint64_t kMaxPairs = 65536;
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxArrayElements = 1ull << 24;
constexpr std::uint64_t kSmallestPairBytes = 8 + 1 + 4 + 1;  // key length, key, type, value

template <class Number>
Number load(const std::byte* from) {
  Number value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_integer(GgufValueType type) {
  return type <= GgufValueType::i32 || type == GgufValueType::u64 || type == GgufValueType::i64;
}

// An integer of any width: its bits as u64, and whether it is below zero.
struct Integer {
  std::uint64_t bits;
  bool negative;
};

Integer load_integer(GgufValueType type, const std::byte* from) {
  const auto wide = [](std::int64_t value) { return Integer{static_cast<std::uint64_t>(value), value < 0}; };
  switch (type) {
    case GgufValueType::u8:
      return wide(load<std::uint8_t>(from));
    case GgufValueType::i8:
      return wide(load<std::int8_t>(from));
    case GgufValueType::u16:
      return wide(load<std::uint16_t>(from));
    case GgufValueType::i16:
      return wide(load<std::int16_t>(from));
    case GgufValueType::u32:
      return wide(load<std::uint32_t>(from));
    case GgufValueType::i32:
      return wide(load<std::int32_t>(from));
    case GgufValueType::i64:
      return wide(load<std::int64_t>(from));
    default:
      return {load<std::uint64_t>(from), false};
  }
}

std::string print_number(GgufValueType type, const std::byte* from) {
  if (type == GgufValueType::f32) return fmt::format("{}", load<float>(from));
  if (type == GgufValueType::f64) return fmt::format("{}", load<double>(from));
  if (type == GgufValueType::boolean) return load<std::uint8_t>(from) != 0 ? "true" : "false";
  const Integer integer = load_integer(type, from);
  return integer.negative ? fmt::format("{}", static_cast<std::int64_t>(integer.bits))
                          : fmt::format("{}", integer.bits);
}

GgufValueType read_type(GgufReader& reader, std::string_view key) {
  const std::uint64_t at = reader.offset();
  const auto number = reader.number<std::uint32_t>("a value type");
  if (number >= kGgufValueTypeCount)
    reader.fail(at, fmt::format("a value type of 0 to {} for '{}'", kGgufValueTypeCount - 1, printable_text(key)),
                fmt::format("{}", number));
  return static_cast<GgufValueType>(number);
}

// Leaves the reader behind the last element; fills the part of `entry` that describes an array.
void read_array(GgufReader& reader, GgufMetadata::Entry& entry) {
  const std::uint64_t type_at = reader.offset();
  entry.element_type = read_type(reader, entry.key);
  if (entry.element_type == GgufValueType::array)
    reader.fail(type_at, fmt::format("numbers or strings in the array '{}'", printable_text(entry.key)),
                "an array of arrays");
  const std::uint64_t count_at = reader.offset();
  entry.element_count = reader.number<std::uint64_t>("an array length");
  const bool strings = entry.element_type == GgufValueType::string;
  const std::uint64_t smallest_bytes = strings ? 8 : value_type_bytes(entry.element_type);
  const std::uint64_t most = std::min(kMaxArrayElements, reader.remaining() / smallest_bytes);
  if (entry.element_count > most)
    reader.fail(count_at,
                fmt::format("at most {} elements in '{}' ({} bytes are left)", most, printable_text(entry.key),
                            reader.remaining()),
                fmt::format("{}", entry.element_count), "the file is damaged or cut short; fetch it again");

  entry.file_offset = reader.offset();
  if (!strings) {
    entry.bytes = reader.take(entry.element_count * smallest_bytes, "array elements");
    return;
  }
  // The views are taken before and after: what lies between has been walked, so later walks need no checks.
  const std::span<const std::byte> first = reader.take(0, "array elements");
  for (std::uint64_t i = 0; i < entry.element_count; ++i) reader.string("a string of an array");
  entry.bytes = {first.data(), static_cast<std::size_t>(reader.offset() - entry.file_offset)};
}

GgufMetadata::Entry read_entry(GgufReader& reader) {
  GgufMetadata::Entry entry{};
  const std::uint64_t key_at = reader.offset();
  entry.key = reader.string("a key", kMaxKeyBytes);
  if (entry.key.empty()) reader.fail(key_at, "a key of at least one byte", "an empty key");
  entry.type = read_type(reader, entry.key);
  entry.element_type = entry.type;
  entry.element_count = 1;
  if (entry.type == GgufValueType::array) {
    read_array(reader, entry);
  } else if (entry.type == GgufValueType::string) {
    const std::string_view text = reader.string("a string");
    entry.bytes = std::as_bytes(std::span<const char>(text));
    entry.file_offset = reader.offset() - text.size();
  } else {
    entry.file_offset = reader.offset();
    entry.bytes = reader.take(value_type_bytes(entry.type), "a value");
    if (entry.type == GgufValueType::boolean && load<std::uint8_t>(entry.bytes.data()) > 1)
      reader.fail(entry.file_offset, fmt::format("0 or 1 for the bool '{}'", printable_text(entry.key)),
                  fmt::format("{}", load<std::uint8_t>(entry.bytes.data())));
  }
  return entry;
}

}  // namespace

GgufMetadata::GgufMetadata(GgufReader& reader, std::uint64_t count, std::string file) : file_(std::move(file)) {
  const std::uint64_t most = std::min(kMaxPairs, reader.remaining() / kSmallestPairBytes);
  if (count > most)
    reader.fail(kPairCountOffset,
                fmt::format("at most {} metadata pairs ({} bytes are left)", most, reader.remaining()),
                fmt::format("{}", count), "the file is damaged or cut short; fetch it again");
  for (std::uint64_t i = 0; i < count; ++i) entries_.push_back(read_entry(reader));

  for (std::uint32_t i = 0; i < entries_.size(); ++i) by_key_.push_back(i);
  std::sort(by_key_.begin(), by_key_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return entries_[a].key != entries_[b].key ? entries_[a].key < entries_[b].key : a < b;
  });
  for (std::size_t i = 1; i < by_key_.size(); ++i) {
    const Entry& again = entries_[by_key_[i]];
    if (again.key == entries_[by_key_[i - 1]].key)
      reader.fail(again.file_offset, "every key once", fmt::format("'{}' a second time", printable_text(again.key)));
  }
}

const GgufMetadata::Entry* GgufMetadata::find(std::string_view key) const {
  const auto found = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                      [this](std::uint32_t i, std::string_view k) { return entries_[i].key < k; });
  return found != by_key_.end() && entries_[*found].key == key ? &entries_[*found] : nullptr;
}

std::optional<std::uint64_t> GgufMetadata::find_u64(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (!is_integer(entry->type)) reject_type(*entry, "an integer");
  const Integer integer = load_integer(entry->type, entry->bytes.data());
  if (integer.negative) reject(*entry, "an integer of at least 0");
  return integer.bits;
}

std::optional<std::int64_t> GgufMetadata::find_i64(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (!is_integer(entry->type)) reject_type(*entry, "an integer");
  const Integer integer = load_integer(entry->type, entry->bytes.data());
  if (!integer.negative && integer.bits > std::numeric_limits<std::int64_t>::max())
    reject(*entry, "an integer below 2^63");
  return static_cast<std::int64_t>(integer.bits);
}

std::optional<std::uint32_t> GgufMetadata::find_u32(std::string_view key) const {
  const std::optional<std::uint64_t> value = find_u64(key);
  if (!value) return std::nullopt;
  if (*value > std::numeric_limits<std::uint32_t>::max()) reject(*find(key), "an integer below 2^32");
  return static_cast<std::uint32_t>(*value);
}

std::optional<float> GgufMetadata::find_f32(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type == GgufValueType::f32) return load<float>(entry->bytes.data());
  if (entry->type != GgufValueType::f64) reject_type(*entry, "a floating-point number");
  const auto value = load<double>(entry->bytes.data());
  if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<float>::max())
    reject(*entry, "a number in the range of f32");
  return static_cast<float>(value);
}

std::optional<bool> GgufMetadata::find_bool(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufValueType::boolean) reject_type(*entry, "a bool");
  return load<std::uint8_t>(entry->bytes.data()) != 0;
}

std::optional<std::string_view> GgufMetadata::find_string(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufValueType::string) reject_type(*entry, "a string");
  return std::string_view(reinterpret_cast<const char*>(entry->bytes.data()), entry->bytes.size());
}

const GgufMetadata::Entry* GgufMetadata::find_array(std::string_view key, std::string_view expected) const {
  const Entry* entry = find(key);
  if (entry != nullptr && entry->type != GgufValueType::array) reject_type(*entry, expected);
  return entry;
}

std::optional<std::vector<std::int64_t>> GgufMetadata::find_i64_array(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of integers";
  const Entry* entry = find_array(key, kExpected);
  if (entry == nullptr) return std::nullopt;
  if (!is_integer(entry->element_type)) reject_type(*entry, kExpected);
  const std::uint32_t stride = value_type_bytes(entry->element_type);
  std::vector<std::int64_t> values;
  values.reserve(entry->element_count);
  for (std::uint64_t i = 0; i < entry->element_count; ++i) {
    const Integer integer = load_integer(entry->element_type, entry->bytes.data() + i * stride);
    if (!integer.negative && integer.bits > std::numeric_limits<std::int64_t>::max())
      reject(*entry, "integers below 2^63");
    values.push_back(static_cast<std::int64_t>(integer.bits));
  }
  return values;
}

std::optional<std::vector<float>> GgufMetadata::find_f32_array(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of f32";
  const Entry* entry = find_array(key, kExpected);
  if (entry == nullptr) return std::nullopt;
  if (entry->element_type != GgufValueType::f32) reject_type(*entry, kExpected);
  std::vector<float> values(entry->element_count);
  if (!values.empty()) std::memcpy(values.data(), entry->bytes.data(), entry->bytes.size());
  return values;
}

std::optional<std::vector<bool>> GgufMetadata::find_bool_array(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of bool";
  const Entry* entry = find_array(key, kExpected);
  if (entry == nullptr) return std::nullopt;
  if (entry->element_type != GgufValueType::boolean) reject_type(*entry, kExpected);
  std::vector<bool> values;
  values.reserve(entry->element_count);
  for (const std::byte value : entry->bytes) {
    if (std::to_integer<unsigned>(value) > 1) reject(*entry, "bools that are 0 or 1");
    values.push_back(value != std::byte{0});
  }
  return values;
}

std::optional<std::vector<std::string_view>> GgufMetadata::find_string_array(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of strings";
  const Entry* entry = find_array(key, kExpected);
  if (entry == nullptr) return std::nullopt;
  if (entry->element_type != GgufValueType::string) reject_type(*entry, kExpected);
  std::vector<std::string_view> values;
  values.reserve(entry->element_count);
  const std::byte* at = entry->bytes.data();
  for (std::uint64_t i = 0; i < entry->element_count; ++i) {
    const auto length = load<std::uint64_t>(at);
    values.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return values;
}

std::string GgufMetadata::type_name(const Entry& entry) {
  if (entry.type != GgufValueType::array) return std::string(value_type_name(entry.type));
  return fmt::format("array of {} {}", entry.element_count, value_type_name(entry.element_type));
}

std::string GgufMetadata::printable_value(const Entry& entry, std::size_t max_bytes) {
  const auto text_of = [](const std::byte* from, std::uint64_t length) {
    return std::string_view(reinterpret_cast<const char*>(from), length);
  };
  if (entry.type == GgufValueType::string)
    return printable_text(text_of(entry.bytes.data(), entry.bytes.size()), max_bytes);
  if (entry.type != GgufValueType::array) return print_number(entry.type, entry.bytes.data());
  std::string result = "[";
  const std::byte* at = entry.bytes.data();
  for (std::uint64_t i = 0; i < entry.element_count; ++i) {
    if (i > 0) result += ", ";
    if (result.size() >= max_bytes) {
      result += "...";
      break;
    }
    if (entry.element_type == GgufValueType::string) {
      const auto length = load<std::uint64_t>(at);
      result += '"' + printable_text(text_of(at + 8, length), 24) + '"';
      at += 8 + length;
    } else {
      result += print_number(entry.element_type, at);
      at += value_type_bytes(entry.element_type);
    }
  }
  return result + "]";
}

void GgufMetadata::reject(const Entry& entry, std::string_view expected, std::string hint) const {
  throw ModelFileError(file_, entry.file_offset, fmt::format("'{}' to be {}", printable_text(entry.key), expected),
                       printable_value(entry), std::move(hint));
}

void GgufMetadata::reject_type(const Entry& entry, std::string_view expected) const {
  throw ModelFileError(file_, entry.file_offset, fmt::format("'{}' to be {}", printable_text(entry.key), expected),
                       fmt::format("{}: {}", type_name(entry), printable_value(entry)));
}

void GgufMetadata::reject_missing(std::string_view key) const {
  throw ModelFileError(file_, fmt::format("the metadata has no '{}'", printable_text(key)),
                       "the file is incomplete; convert or download it again");
}

}  // namespace genai
