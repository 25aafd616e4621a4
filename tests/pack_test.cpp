// Packing: every weight lands where packed_layout.h says, padding is zero, and any cut into strips gives the same
// bytes.
#include "engine/model/pack.h"

#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/model/file_blocks.h"
#include "tests/catch.h"
#include "tests/kernel_cases.h"

using namespace genai;
using namespace genai::test;

namespace {

std::vector<float> widened(const FileMatrix& matrix, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  widen_row(matrix, row, values.data());
  return values;
}

int byte_of(const std::byte* at) { return std::to_integer<int>(*at); }
int bits_of(const std::byte* words, int word, int bit, int count) {
  std::uint32_t value;
  std::memcpy(&value, words + 4 * word, sizeof value);
  return static_cast<int>(value >> bit & ((1u << count) - 1));
}
float half_of(const std::byte* halves, int index) {
  std::uint16_t half;
  std::memcpy(&half, halves + 2 * index, sizeof half);
  return half_to_float(half);
}

// One weight of a packed matrix, read as the comment in packed_layout.h describes it.
float packed_weight(const std::vector<std::byte>& bytes, DType dtype, std::int64_t cols, std::int64_t row,
                    std::int64_t col) {
  const TileLayout layout = tile_layout(dtype);
  const std::byte* tile = bytes.data() + row / 8 * strip_bytes(dtype, cols) + col / 128 * layout.tile_bytes;
  const int g = static_cast<int>(row % 8);
  if (dtype == DType::F32) {
    float value;
    std::memcpy(&value, tile + 4 * (g * 128 + col % 128), sizeof value);
    return value;
  }
  if (is_float(dtype)) {
    std::uint16_t value;
    std::memcpy(&value, tile + 2 * (g * 128 + col % 128), sizeof value);
    return dtype == DType::F16 ? half_to_float(value) : bfloat_to_float(value);
  }
  const int j = static_cast<int>(col % 128 / 32);
  const int i = static_cast<int>(col % 32);
  const int h = i / 16, c = i % 16 / 4, e = i % 4;
  int n;
  if (dtype == DType::Q8_0) {
    n = static_cast<std::int8_t>(byte_of(tile + 512 * h + 16 * (4 * g + c) + 4 * j + e));
  } else {
    n = byte_of(tile + 16 * (4 * g + c) + 4 * j + e) >> (4 * h) & 15;
    if (dtype == DType::Q5_0 || dtype == DType::Q5_1 || dtype == DType::Q5_K)
      n += 16 * bits_of(tile + layout.high_bits, 4 * g + c, 8 * e + 4 * h + j, 1);
    if (dtype == DType::Q6_K) n += 16 * bits_of(tile + layout.high_bits, 2 * (4 * g + c) + h, 8 * e + 2 * j, 2);
  }
  n -= layout.zero_point;
  const float scaled = static_cast<float>(n);
  switch (dtype) {
    case DType::Q4_1:
    case DType::Q5_1:
      return half_of(tile + layout.scale, 4 * g + j) * scaled + half_of(tile + layout.minimum, 4 * g + j);
    case DType::Q4_K:
    case DType::Q5_K:
      return half_of(tile + layout.scale, g) * static_cast<float>(byte_of(tile + layout.sub_scale + 4 * g + j)) *
                 scaled -
             half_of(tile + layout.minimum, g) * static_cast<float>(byte_of(tile + layout.sub_min + 4 * g + j));
    case DType::Q6_K:
      return half_of(tile + layout.scale, g) *
             static_cast<float>(static_cast<std::int8_t>(byte_of(tile + layout.sub_scale + 2 * (4 * g + j) + h))) *
             scaled;
    default:
      return half_of(tile + layout.scale, 4 * g + j) * scaled;
  }
}

}  // namespace

TEST_CASE("every packed weight equals the file's weight, and padding is zero") {
  Random random(7);
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t cols : widths_of(dtype))
      for (const std::int32_t rows : {1, 7, 8, 9, 31}) {
        const auto file = random_file_matrix(dtype, rows, cols, random);
        const std::vector<std::byte> bytes = packed({file->matrix, {}});
        std::int64_t wrong = 0;
        for (std::int64_t row = 0; row < strip_count(rows) * 8; ++row) {
          const std::vector<float> expected = row < rows ? widened(file->matrix, row) : std::vector<float>(cols, 0.0f);
          for (std::int64_t col = 0; col < padded_width(cols); ++col) {
            const float weight = packed_weight(bytes, dtype, cols, row, col);
            wrong += col < cols ? float_bits(weight + 0.0f) != float_bits(expected[col] + 0.0f) : weight != 0.0f;
          }
        }
        INFO(dtype_info(dtype).name << " " << rows << " x " << cols);
        CHECK(wrong == 0);
      }
}

TEST_CASE("file blocks written by hand widen to the weights of their definition") {
  std::vector<std::byte> bytes(18);
  const auto fill = [&](std::initializer_list<int> values) {
    bytes.clear();
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  };
  // d = 0.5 (0x3800): weight 0 is 0.5 * (1 - 8), weight 16 is 0.5 * (15 - 8).
  fill({0x00, 0x38, 0xf1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x8c});
  std::vector<float> weights = widened({bytes.data(), DType::Q4_0, 1, 32}, 0);
  CHECK(weights[0] == -3.5f);
  CHECK(weights[16] == 3.5f);
  CHECK(weights[1] == -4.0f);
  CHECK(weights[15] == 2.0f);
  CHECK(weights[31] == 0.0f);
  // Q5_0, d = 1: bit 1 of the high bits lifts weight 1, bit 31 weight 31.
  fill({0x00, 0x3c, 0x02, 0, 0, 0x80, 0, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20});
  weights = widened({bytes.data(), DType::Q5_0, 1, 32}, 0);
  CHECK(weights[0] == -16.0f);
  CHECK(weights[1] == 3.0f);
  CHECK(weights[31] == 2.0f);
  // Q8_0, d = -2.
  bytes.assign(34, std::byte{0});
  bytes[1] = std::byte{0xc0};
  bytes[2] = std::byte{0x80};
  bytes[33] = std::byte{0x7f};
  weights = widened({bytes.data(), DType::Q8_0, 1, 32}, 0);
  CHECK(weights[0] == 256.0f);
  CHECK(weights[31] == -254.0f);
  // Q4_K, d = 1, dmin = 1: part 5 has s = 0b10'0011 and t = 0b01'0110 spread over three bytes.
  bytes.assign(144, std::byte{0});
  bytes[1] = bytes[3] = std::byte{0x3c};
  bytes[4 + 1] = std::byte{0x80};
  bytes[4 + 5] = std::byte{0x40};
  bytes[4 + 9] = std::byte{0x63};
  bytes[16 + 64 + 7] = std::byte{0x50};  // weight 7 of part 5
  weights = widened({bytes.data(), DType::Q4_K, 1, 256}, 0);
  CHECK(weights[5 * 32 + 7] == 35.0f * 5.0f - 22.0f);
  CHECK(weights[5 * 32 + 8] == -22.0f);
  CHECK(weights[4 * 32 + 7] == 0.0f);
  // Q6_K, d = 1: weight 128 + 96 + 20 is in half 1, part 3, and takes scale 15.
  bytes.assign(210, std::byte{0});
  bytes[209] = std::byte{0x3c};
  bytes[64 + 32 + 20] = std::byte{0x90};
  bytes[128 + 32 + 20] = std::byte{0xc0};
  bytes[192 + 15] = std::byte{0xfe};
  weights = widened({bytes.data(), DType::Q6_K, 1, 256}, 0);
  CHECK(weights[128 + 96 + 20] == -2.0f * (9 + 48 - 32));
  CHECK(weights[128 + 96 + 21] == 64.0f);
}

TEST_CASE("any cut into strips gives the same bytes and touches no others") {
  Random random(11);
  for (const DType dtype : kAllDTypes) {
    const auto file = random_file_matrix(dtype, 43, 768, random);
    const PackSource source{file->matrix, {}};
    const std::vector<std::byte> whole = packed(source);
    const std::int64_t each = strip_bytes(dtype, 768);
    for (std::int64_t first = 0; first < 6; ++first)
      for (std::int64_t count = 0; first + count <= 6; ++count) {
        std::vector<std::byte> part(count * each + 2, std::byte{0x5a});
        pack_strips(source, first, count, part.data() + 1);
        CHECK(part.front() == std::byte{0x5a});
        CHECK(part.back() == std::byte{0x5a});
        CHECK(std::equal(part.begin() + 1, part.end() - 1, whole.begin() + first * each));
      }
  }
}

TEST_CASE("interleaved matrices pack like one matrix with alternating rows") {
  Random random(12);
  for (const DType dtype : kAllDTypes) {
    const auto gate = random_file_matrix(dtype, 13, 256, random);
    const auto up = random_file_matrix(dtype, 13, 256, random);
    const std::int64_t row_bytes = file_row_bytes(gate->matrix);
    std::vector<std::byte> alternating;
    for (std::int64_t row = 0; row < 13; ++row)
      for (const FileBytes* file : {gate.get(), up.get()})
        alternating.insert(alternating.end(), file->bytes.begin() + row * row_bytes,
                           file->bytes.begin() + (row + 1) * row_bytes);
    CHECK(packed({gate->matrix, up->matrix}) == packed({{alternating.data(), dtype, 26, 256}, {}}));
  }
}

TEST_CASE("a source at an odd address packs and widens to the same") {
  Random random(13);
  for (const DType dtype : kAllDTypes) {
    const auto file = random_file_matrix(dtype, 9, 256, random);
    std::vector<std::byte> shifted(1);
    shifted.insert(shifted.end(), file->bytes.begin(), file->bytes.end());
    const FileMatrix odd{shifted.data() + 1, dtype, 9, 256};
    CHECK(packed({odd, {}}) == packed({file->matrix, {}}));
    CHECK(first_difference(widened(odd, 8), widened(file->matrix, 8)) == -1);
  }
}

TEST_CASE("packing refuses rows with part of a block, strips outside the matrix and unequal pairs") {
  std::vector<std::byte> bytes(4096);
  std::vector<std::byte> out(16384);
  const FileMatrix good{bytes.data(), DType::Q4_0, 4, 64};
  const FileMatrix ragged{bytes.data(), DType::Q4_0, 4, 65};
  const FileMatrix other{bytes.data(), DType::Q4_1, 4, 64};
  CHECK_THROWS_AS(pack_strips({ragged, {}}, 0, 1, out.data()), Error);
  CHECK_THROWS_AS(pack_strips({good, {}}, 0, 2, out.data()), Error);
  CHECK_THROWS_AS(pack_strips({good, {}}, -1, 1, out.data()), Error);
  CHECK_THROWS_AS(pack_strips({good, other}, 0, 1, out.data()), Error);
  CHECK_THROWS_AS(widen_row(good, 4, reinterpret_cast<float*>(out.data())), Error);
  CHECK_NOTHROW(pack_strips({good, good}, 0, 1, out.data()));
}

TEST_CASE("a NaN or an infinity in any scale or element is found at its block") {
  Random random(14);
  for (const DType dtype : kAllDTypes) {
    const auto file = random_file_matrix(dtype, 3, 512, random);
    CHECK_FALSE(find_nonfinite(file->matrix).has_value());
    const DTypeInfo& info = dtype_info(dtype);
    const std::int64_t block_count = static_cast<std::int64_t>(file->bytes.size()) / info.block_bytes;
    std::vector<std::size_t> offsets{dtype == DType::Q6_K ? std::size_t{208} : 0};
    if (has_minimum(dtype)) offsets.push_back(2);
    for (const std::size_t offset : offsets)
      for (const std::int64_t block : {std::int64_t{0}, block_count / 2, block_count - 1})
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
          std::vector<std::byte> bytes = file->bytes;
          std::byte* at = bytes.data() + block * info.block_bytes + offset;
          const std::uint16_t half = float_to_half(bad);
          const std::uint16_t bfloat = static_cast<std::uint16_t>(float_bits(bad) >> 16);
          if (dtype == DType::F32)
            std::memcpy(at, &bad, 4);
          else
            std::memcpy(at, dtype == DType::BF16 ? &bfloat : &half, 2);
          const auto found = find_nonfinite({bytes.data(), dtype, 3, 512});
          INFO(info.name << " block " << block << " offset " << offset);
          REQUIRE(found.has_value());
          CHECK(*found == block);
        }
  }
}
