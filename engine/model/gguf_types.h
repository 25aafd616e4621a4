// gguf_types.h - the numbers that GGUF gives to its metadata value types and tensor types. Tensor types that this build
// cannot decode are listed too, so that their extent can be checked and an error can name them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace genai {

enum class GgufValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr std::uint32_t kGgufValueTypeCount = 13;

// REQUIRES: one of the enumerators.
constexpr std::string_view value_type_name(GgufValueType type) {
  constexpr std::string_view kNames[kGgufValueTypeCount] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                            "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::uint32_t>(type)];
}

// Bytes of one value; 0 for strings and arrays, whose length the file says.
constexpr std::uint32_t value_type_bytes(GgufValueType type) {
  constexpr std::uint32_t kBytes[kGgufValueTypeCount] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<std::uint32_t>(type)];
}

struct GgufTensorType {
  std::uint32_t number;
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

inline constexpr GgufTensorType kGgufTensorTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

constexpr std::optional<GgufTensorType> find_gguf_tensor_type(std::uint32_t number) {
  for (const GgufTensorType& type : kGgufTensorTypes)
    if (type.number == number) return type;
  return std::nullopt;
}

}  // namespace genai
