// kernel_cases.h - one set of cases for the kernels of every device, and for each operation a function that runs it on
// a Device and brings back what it wrote. A test compares the answer with float64 loops (kernels_host_test.cpp) or, bit
// for bit, with the answer of another device. Knows no backend.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernel_data.h"

namespace genai::test {

inline constexpr DType kAllDTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0,
                                       DType::Q5_1, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K};
inline constexpr std::int32_t kRowCounts[] = {1, 7, 8, 9, 31};                 // N
inline constexpr std::int32_t kBlockWidths[] = {32, 96, 128, 576, 640, 1536};  // K
inline constexpr std::int32_t kSuperBlockWidths[] = {256, 768, 1536};          // K of types with blocks of 256
inline constexpr std::int32_t kPassRows[] = {1, 2, 3, 8, 17};                  // M

inline std::vector<std::int32_t> widths_of(DType dtype) {
  if (dtype_info(dtype).block_elements == 256) return {std::begin(kSuperBlockWidths), std::end(kSuperBlockWidths)};
  std::vector<std::int32_t> widths(std::begin(kBlockWidths), std::end(kBlockWidths));
  if (is_float(dtype)) widths.push_back(333);
  return widths;
}

// ---- matmul ----

struct MatmulCase {
  std::vector<DType> dtypes;  // one output each; later outputs have more rows
  std::int32_t rows = 8;
  std::int32_t cols = 128;
  std::int32_t row_count = 1;  // M
  bool norm = false;
  bool bias = false;
  Epilogue epilogue = Epilogue::store;
  float soft_cap = 0.0f;
  bool hands_over = false;  // with memory for it, where there is more than one row
  std::uint64_t seed = 1;

  bool gated() const { return is_gated(epilogue); }
  std::int32_t rows_of(std::size_t output) const {
    const std::int32_t more = rows + static_cast<std::int32_t>(output) * 10;
    return gated() ? (more + 1) / 2 * 2 : more;
  }
  std::int32_t width_of(std::size_t output) const { return gated() ? rows_of(output) / 2 : rows_of(output); }
  std::int32_t stride_of(std::size_t output) const { return width_of(output) + 3; }
  std::int32_t input_stride() const { return cols + 5; }
};

inline std::string describe(const MatmulCase& shape) {
  std::string text;
  for (const DType dtype : shape.dtypes) text += std::string(dtype_info(dtype).name) + " ";
  return text + "rows " + std::to_string(shape.rows) + " cols " + std::to_string(shape.cols) + " M " +
         std::to_string(shape.row_count) + " epilogue " + std::to_string(static_cast<int>(shape.epilogue));
}

struct MatmulData {
  std::vector<float> input;        // (M, input_stride)
  std::vector<float> norm_weight;  // (cols)
  float norm_epsilon = 1e-5f;
  std::vector<std::unique_ptr<FileBytes>> matrices;
  std::vector<std::vector<float>> biases;
  std::vector<std::vector<float>> before;  // (M, stride), what `out` holds before the call
};

inline MatmulData matmul_data(const MatmulCase& shape) {
  Random random(shape.seed);
  MatmulData data;
  data.input = random.values(std::int64_t{shape.row_count} * shape.input_stride());
  data.norm_weight = random.values(shape.cols);
  for (std::size_t i = 0; i < shape.dtypes.size(); ++i) {
    data.matrices.push_back(random_file_matrix(shape.dtypes[i], shape.rows_of(i), shape.cols, random));
    data.biases.push_back(random.values(shape.rows_of(i)));
    data.before.push_back(random.values(std::int64_t{shape.row_count} * shape.stride_of(i)));
  }
  return data;
}

// What each output buffer, (count, stride), holds after one call for rows first_row .. first_row + count - 1.
inline std::vector<std::vector<float>> run_matmul(Device& device, const MatmulCase& shape, const MatmulData& data,
                                                  std::int32_t first_row, std::int32_t count) {
  const auto rows_from = [&](const std::vector<float>& all, std::int32_t stride) {
    return std::vector<float>(all.begin() + std::int64_t{first_row} * stride,
                              all.begin() + std::int64_t{first_row + count} * stride);
  };
  DeviceBuffers buffers(device);
  MatmulArgs args{};
  args.input = buffers.put(rows_from(data.input, shape.input_stride()));
  args.input_stride = shape.input_stride();
  args.row_count = count;
  if (shape.norm) args.norm_weight = buffers.put(data.norm_weight);
  args.norm_epsilon = data.norm_epsilon;
  args.output_count = static_cast<std::int32_t>(shape.dtypes.size());
  args.epilogue = shape.epilogue;
  args.soft_cap = shape.soft_cap;
  args.scratch = buffers.take<std::byte>(static_cast<std::int64_t>(device.kernels().scratch_bytes(
      {.row_count = count, .input_width = shape.cols, .head_count = 1, .head_dim = 8, .max_positions = 1})));
  if (shape.hands_over && count > 1) {
    const std::size_t bytes = device.kernels().handover_bytes(
        {.row_count = count, .input_width = shape.cols, .head_count = 1, .head_dim = 8, .max_positions = 1});
    if (bytes > 0) {
      args.handover = buffers.take<std::byte>(static_cast<std::int64_t>(bytes));
      buffers.stream().fill_zero(args.handover, bytes);
    }
  }
  for (std::size_t i = 0; i < shape.dtypes.size(); ++i) {
    const FileMatrix& matrix = data.matrices[i]->matrix;
    MatmulOutput& output = args.outputs[i];
    output.matrix = {buffers.put(packed({matrix, {}})), matrix.dtype, shape.rows_of(i), shape.cols};
    if (shape.bias) output.bias = buffers.put(data.biases[i]);
    output.out = buffers.put(rows_from(data.before[i], shape.stride_of(i)));
    output.out_stride = shape.stride_of(i);
  }
  device.kernels().matmul(buffers.stream(), args);
  std::vector<std::vector<float>> results;
  for (std::size_t i = 0; i < shape.dtypes.size(); ++i)
    results.push_back(buffers.get(args.outputs[i].out, std::int64_t{count} * shape.stride_of(i)));
  if (!buffers.guards_intact()) throw std::runtime_error("matmul wrote outside its buffers: " + describe(shape));
  return results;
}

inline std::vector<std::vector<float>> run_matmul(Device& device, const MatmulCase& shape, const MatmulData& data) {
  return run_matmul(device, shape, data, 0, shape.row_count);
}

// Every type with every odd size, then epilogues and norms, many rows, and mixes of types.
inline std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  std::uint64_t seed = 1;
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t cols : widths_of(dtype))
      for (const std::int32_t rows : kRowCounts)
        for (const std::int32_t row_count : kPassRows) {
          if (rows * cols * row_count > 400000 && row_count == 3) continue;
          cases.push_back({.dtypes = {dtype}, .rows = rows, .cols = cols, .row_count = row_count, .seed = seed++});
        }
  for (const DType dtype : kAllDTypes)
    for (const Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::gated_silu, Epilogue::gated_gelu})
      for (const std::int32_t row_count : {1, 5, 18})
        cases.push_back({.dtypes = {dtype},
                         .rows = 22,
                         .cols = 768,
                         .row_count = row_count,
                         .norm = true,
                         .bias = true,
                         .epilogue = epilogue,
                         .soft_cap = row_count == 5 ? 3.0f : 0.0f,
                         .seed = seed++});
  for (const DType dtype : kAllDTypes)
    for (const std::int32_t cols : {256, 2304})
      cases.push_back({.dtypes = {dtype}, .rows = 37, .cols = cols, .row_count = 77, .bias = true, .seed = seed++});
  for (const std::int32_t row_count : {1, 2, 9, 33, 250}) {
    if (row_count == 250) {  // more rows than a cache holds at this width
      cases.push_back({.dtypes = {DType::Q4_0}, .rows = 25, .cols = 4608, .row_count = row_count, .seed = seed++});
      continue;
    }
    cases.push_back({.dtypes = {DType::Q4_K, DType::Q6_K, DType::F16},
                     .rows = 21,
                     .cols = 256,
                     .row_count = row_count,
                     .norm = true,
                     .bias = true,
                     .seed = seed++});
    cases.push_back({.dtypes = {DType::F32, DType::Q8_0, DType::Q4_1},
                     .rows = 16,
                     .cols = 96,
                     .row_count = row_count,
                     .seed = seed++});
    cases.push_back({.dtypes = {DType::BF16, DType::F32},
                     .rows = 5,
                     .cols = 70,
                     .row_count = row_count,
                     .norm = true,
                     .seed = seed++});
    cases.push_back({.dtypes = {DType::Q5_0}, .rows = 70, .cols = 4608, .row_count = row_count, .seed = seed++});
  }
  return cases;
}

// ---- rotate and attention ----

struct CacheShapeCase {
  CacheType type = CacheType::f16;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 64;
  std::int32_t sequences = 1;
  std::int32_t max_positions = 256;
  std::int32_t layers = 2;
  std::int32_t layer = 1;

  std::int64_t element_bytes() const { return type == CacheType::f16 ? 2 : 4; }
  std::int64_t layer_bytes() const { return 2 * std::int64_t{kv_heads} * kChunkPositions * head_dim * element_bytes(); }
  std::int64_t chunk_bytes() const { return layers * layer_bytes(); }
  std::int64_t sequence_bytes() const {
    return (max_positions + kChunkPositions - 1) / kChunkPositions * chunk_bytes();
  }
  CacheView view(DevicePtr<std::byte> base) const {
    return {base, sequence_bytes(), chunk_bytes(), layer * layer_bytes(), type, kv_heads, head_dim};
  }
  // Byte offset in the whole cache of element i of a key or a value.
  std::int64_t key_offset(std::int32_t sequence, std::int32_t position, std::int32_t head, std::int32_t i) const {
    return head_offset(sequence, position, head) +
           ((std::int64_t{i} / 8 * kChunkPositions + position % kChunkPositions) * 8 + i % 8) * element_bytes();
  }
  std::int64_t value_offset(std::int32_t sequence, std::int32_t position, std::int32_t head, std::int32_t i) const {
    return head_offset(sequence, position, head) + layer_bytes() / 2 +
           (std::int64_t{position % kChunkPositions} * head_dim + i) * element_bytes();
  }

 private:
  std::int64_t head_offset(std::int32_t sequence, std::int32_t position, std::int32_t head) const {
    return sequence * sequence_bytes() + position / kChunkPositions * chunk_bytes() + layer * layer_bytes() +
           std::int64_t{head} * kChunkPositions * head_dim * element_bytes();
  }
};

struct RotateCase {
  CacheShapeCase cache;
  std::int32_t heads = 1;
  std::int32_t rotated = 64;
  bool interleaved = false;
  bool norms = false;
  std::vector<StepRow> rows;
  std::uint64_t seed = 1;
};

struct RotateData {
  std::vector<float> q, k, v, q_norm, k_norm, table;
  float norm_epsilon = 1e-6f;
};

inline RotateData rotate_data(const RotateCase& shape) {
  Random random(shape.seed);
  const std::int64_t row_count = static_cast<std::int64_t>(shape.rows.size());
  RotateData data;
  data.q = random.values(row_count * shape.heads * shape.cache.head_dim);
  data.k = random.values(row_count * shape.cache.kv_heads * shape.cache.head_dim);
  data.v = random.values(row_count * shape.cache.kv_heads * shape.cache.head_dim);
  data.q_norm = random.values(shape.cache.head_dim);
  data.k_norm = random.values(shape.cache.head_dim);
  for (std::int64_t i = 0; i < std::int64_t{shape.cache.max_positions} * shape.rotated / 2; ++i) {
    const double angle = random.uniform(-3.2f, 3.2f);
    data.table.push_back(static_cast<float>(std::cos(angle)));
    data.table.push_back(static_cast<float>(std::sin(angle)));
  }
  return data;
}

struct RotateResult {
  std::vector<float> q;
  std::vector<std::byte> cache;  // of all sequences; bytes that no row wrote are 0xcb
};

inline RotateResult run_rotate(Device& device, const RotateCase& shape, const RotateData& data) {
  DeviceBuffers buffers(device);
  const std::int64_t cache_bytes = shape.cache.sequences * shape.cache.sequence_bytes();
  const DevicePtr<std::byte> cache = buffers.take<std::byte>(cache_bytes);
  RotateArgs args{};
  const DevicePtr<float> q = buffers.put(data.q);
  args.q = q;
  args.k = buffers.put(data.k);
  args.v = buffers.put(data.v);
  if (shape.norms) {
    args.q_norm = buffers.put(data.q_norm);
    args.k_norm = buffers.put(data.k_norm);
  }
  args.norm_epsilon = data.norm_epsilon;
  args.table = buffers.put(data.table);
  args.rotated = shape.rotated;
  args.interleaved = shape.interleaved;
  args.rows = buffers.put(shape.rows);
  args.row_count = static_cast<std::int32_t>(shape.rows.size());
  args.head_count = shape.heads;
  args.cache = shape.cache.view(cache);
  device.kernels().rotate(buffers.stream(), args);
  RotateResult result{buffers.get(q, static_cast<std::int64_t>(data.q.size())), buffers.get(cache, cache_bytes)};
  if (!buffers.guards_intact()) throw std::runtime_error("rotate wrote outside its buffers");
  return result;
}

struct AttentionCase {
  CacheShapeCase cache;
  std::int32_t heads = 1;
  std::int32_t window = 0;
  float soft_cap = 0.0f;
  float scale = 0.125f;
  std::vector<StepRow> rows;
  std::uint64_t seed = 1;
};

struct AttentionData {
  std::vector<float> q;          // (M, H, D)
  std::vector<std::byte> cache;  // every position up to the last one of its sequence is set, the rest is 0xff: NaN
};

inline void put_cache_element(std::vector<std::byte>& cache, const CacheShapeCase& shape, std::int64_t offset,
                              float x) {
  if (shape.type == CacheType::f32) {
    std::memcpy(cache.data() + offset, &x, sizeof x);
  } else {
    const std::uint16_t half = float_to_half(x);
    std::memcpy(cache.data() + offset, &half, sizeof half);
  }
}

inline float cache_element(const std::vector<std::byte>& cache, const CacheShapeCase& shape, std::int64_t offset) {
  if (shape.type == CacheType::f32) {
    float x;
    std::memcpy(&x, cache.data() + offset, sizeof x);
    return x;
  }
  std::uint16_t half;
  std::memcpy(&half, cache.data() + offset, sizeof half);
  return half_to_float(half);
}

inline AttentionData attention_data(const AttentionCase& shape) {
  Random random(shape.seed);
  AttentionData data;
  const CacheShapeCase& cache = shape.cache;
  for (std::size_t i = 0; i < shape.rows.size() * shape.heads * cache.head_dim; ++i)
    data.q.push_back(random.uniform(-2.0f, 2.0f));
  data.cache.assign(static_cast<std::size_t>(cache.sequences * cache.sequence_bytes()), std::byte{0xff});
  for (std::int32_t sequence = 0; sequence < cache.sequences; ++sequence) {
    std::int32_t last = -1;
    for (const StepRow& row : shape.rows)
      if (row.sequence == sequence) last = std::max(last, row.position);
    for (std::int32_t position = 0; position <= last; ++position)
      for (std::int32_t head = 0; head < cache.kv_heads; ++head)
        for (std::int32_t i = 0; i < cache.head_dim; ++i) {
          put_cache_element(data.cache, cache, cache.key_offset(sequence, position, head, i),
                            random.uniform(-2.0f, 2.0f));
          put_cache_element(data.cache, cache, cache.value_offset(sequence, position, head, i), random.value());
        }
  }
  return data;
}

inline std::vector<float> run_attention(Device& device, const AttentionCase& shape, const AttentionData& data) {
  DeviceBuffers buffers(device);
  AttentionArgs args{};
  args.q = buffers.put(data.q);
  const DevicePtr<float> out = buffers.take<float>(static_cast<std::int64_t>(data.q.size()));
  args.out = out;
  args.rows = buffers.put(shape.rows);
  args.row_count = static_cast<std::int32_t>(shape.rows.size());
  args.head_count = shape.heads;
  args.scale = shape.scale;
  args.window = shape.window;
  args.soft_cap = shape.soft_cap;
  args.max_positions = shape.cache.max_positions;
  args.cache = shape.cache.view(buffers.put(data.cache));
  args.scratch = buffers.take<std::byte>(
      static_cast<std::int64_t>(device.kernels().scratch_bytes({.row_count = args.row_count,
                                                                .input_width = shape.heads * shape.cache.head_dim,
                                                                .head_count = shape.heads,
                                                                .head_dim = shape.cache.head_dim,
                                                                .max_positions = shape.cache.max_positions})));
  device.kernels().attention(buffers.stream(), args);
  std::vector<float> result = buffers.get(out, static_cast<std::int64_t>(data.q.size()));
  if (!buffers.guards_intact()) throw std::runtime_error("attention wrote outside its buffers");
  return result;
}

// Rows of one sequence, one position after the other.
inline std::vector<StepRow> rows_of(std::int32_t count, std::int32_t first, std::int32_t sequence = 0) {
  std::vector<StepRow> rows;
  for (std::int32_t i = 0; i < count; ++i) rows.push_back({0, first + i, sequence, 0});
  return rows;
}

// Chunk edges, windows, soft caps, shared heads, both cache types; one row, rows in order, rows of several sequences.
inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  std::uint64_t seed = 1;
  const auto rows_at = [](std::vector<std::int32_t> positions) {
    std::vector<StepRow> rows;
    for (const std::int32_t position : positions) rows.push_back({0, position, 0, 0});
    return rows;
  };
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t ratio : {1, 3, 4})
      for (const std::int32_t window : {0, 1, 8, 64, 100})
        for (const float soft_cap : {0.0f, 5.0f}) {
          AttentionCase shape;
          shape.cache = {.type = type, .kv_heads = ratio == 4 ? 1 : 2, .head_dim = ratio == 3 ? 64 : 40};
          shape.heads = shape.cache.kv_heads * ratio;
          shape.window = window;
          shape.soft_cap = soft_cap;
          for (const std::int32_t position : {0, 1, 63, 64, 65, 127, 128, 200}) {
            shape.rows = rows_at({position});
            shape.seed = seed++;
            cases.push_back(shape);
          }
          shape.rows = rows_of(37, 100);
          shape.seed = seed++;
          cases.push_back(shape);
          shape.cache.sequences = 3;
          shape.rows = {{0, 5, 0, 0}, {0, 70, 1, 0}, {0, 71, 1, 0}, {0, 191, 2, 0}};
          shape.seed = seed++;
          cases.push_back(shape);
        }
  for (const std::int32_t head_dim : {8, 96, 128, 256}) {
    AttentionCase shape;
    shape.cache = {.kv_heads = 1, .head_dim = head_dim};
    shape.heads = 2;
    shape.rows = rows_at({30, 31, 130});
    shape.seed = seed++;
    cases.push_back(shape);
  }
  // Many chunks, the first of which a window may cut.
  for (const CacheType type : {CacheType::f16, CacheType::f32})
    for (const std::int32_t window : {0, 130, 300, 520}) {
      AttentionCase shape;
      shape.cache = {.type = type, .kv_heads = 1, .head_dim = 40, .max_positions = 1280};
      shape.heads = 2;
      shape.window = window;
      for (const std::int32_t position : {255, 256, 447, 511, 575, 1100}) {
        shape.rows = rows_at({position});
        shape.seed = seed++;
        cases.push_back(shape);
      }
      shape.rows.clear();
      for (std::int32_t i = 0; i < 100; ++i) shape.rows.push_back({0, 430 + 2 * i, 0, 0});
      shape.seed = seed++;
      cases.push_back(shape);
    }
  return cases;
}

// ---- argmax ----

struct ArgmaxResult {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> hashes;
  std::vector<std::int32_t> nonfinite;
};

inline ArgmaxResult run_argmax(Device& device, const std::vector<float>& logits, std::int32_t width,
                               const std::vector<StepRow>& rows) {
  DeviceBuffers buffers(device);
  const std::int32_t row_count = static_cast<std::int32_t>(rows.size());
  const ArgmaxArgs args{.logits = buffers.put(logits),
                        .row_count = row_count,
                        .width = width,
                        .rows = buffers.put(rows),
                        .tokens = buffers.take<std::int32_t>(row_count),
                        .hashes = buffers.take<std::uint64_t>(row_count),
                        .nonfinite = buffers.take<std::int32_t>(row_count)};
  device.kernels().argmax(buffers.stream(), args);
  ArgmaxResult result{buffers.get(args.tokens, row_count), buffers.get(args.hashes, row_count),
                      buffers.get(args.nonfinite, row_count)};
  if (!buffers.guards_intact()) throw std::runtime_error("argmax wrote outside its buffers");
  return result;
}

}  // namespace genai::test
