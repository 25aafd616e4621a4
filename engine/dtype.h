// dtype.h - the element types that weights have in files: how many elements a block holds and how many bytes it takes.
// How a block's bytes become packed tiles is in model/pack.h; how packed tiles are read is in packed_layout.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace genai {

// Values are those of the GGUF tensor table.
enum class DType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::F32, "F32", 1, 4},       {DType::F16, "F16", 1, 2},       {DType::BF16, "BF16", 1, 2},
    {DType::Q4_0, "Q4_0", 32, 18},   {DType::Q4_1, "Q4_1", 32, 20},   {DType::Q5_0, "Q5_0", 32, 22},
    {DType::Q5_1, "Q5_1", 32, 24},   {DType::Q8_0, "Q8_0", 32, 34},   {DType::Q4_K, "Q4_K", 256, 144},
    {DType::Q5_K, "Q5_K", 256, 176}, {DType::Q6_K, "Q6_K", 256, 210},
};

// Nothing for a number that this build cannot read.
constexpr std::optional<DTypeInfo> find_dtype(std::uint32_t gguf_type) {
  for (const DTypeInfo& info : kDTypes)
    if (static_cast<std::uint32_t>(info.dtype) == gguf_type) return info;
  return std::nullopt;
}

// REQUIRES: `dtype` is one of the enumerators.
constexpr const DTypeInfo& dtype_info(DType dtype) {
  for (const DTypeInfo& info : kDTypes)
    if (info.dtype == dtype) return info;
  return kDTypes[0];
}

constexpr bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16; }

}  // namespace genai
