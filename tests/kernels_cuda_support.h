// kernels_cuda_support.h - the devices that kernel tests compare, and one check an operation: the same arguments on the
// GPU and on the host, equal bits.
#pragma once
#include <string>
#include <vector>

#include "cuda/cuda_device.h"
#include "engine/host/host_limits.h"
#include "tests/catch.h"
#include "tests/host_path_device.h"
#include "tests/kernel_cases.h"
#include "tests/pooled_device.h"

namespace genai::test {

inline constexpr std::size_t kPoolBytes = std::size_t{1} << 30;

// Never destroyed: at exit the runtime may be gone before it.
inline Device& cuda_device() {
  static PooledDevice* const device = new PooledDevice(cuda::open_cuda_device(0).device, kPoolBytes);
  return *device;
}

inline Device& host_device() {
  static HostPathDevice device(kScalarMath, 1);
  return device;
}

// For cases that are too large for the scalar path; kernels_host_test.cpp shows that its bits are the same.
inline Device& fast_host_device() {
  static HostPathDevice device(best_host_math(), default_thread_count().count);
  return device;
}

inline void check_matmul(const MatmulCase& shape, Device& reference) {
  const MatmulData data = matmul_data(shape);
  const std::vector<std::vector<float>> expected = run_matmul(reference, shape, data);
  const std::vector<std::vector<float>> found = run_matmul(cuda_device(), shape, data);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t difference = first_difference(expected[i], found[i]);
    INFO(describe(shape) << " output " << i);
    if (difference >= 0) {
      const std::size_t at = static_cast<std::size_t>(difference);
      INFO("element " << at << ": " << expected[i][at] << " on the host, " << found[i][at] << " on the device");
      REQUIRE(difference == -1);
    }
    CHECK(difference == -1);
  }
}

inline std::vector<StepRow> rows_of_tokens(const std::vector<std::int32_t>& tokens) {
  std::vector<StepRow> rows;
  for (const std::int32_t token : tokens) rows.push_back({token, 3, 0, 0});
  return rows;
}

inline std::vector<float> run_embed(Device& device, const FileMatrix& matrix, const std::vector<StepRow>& rows,
                                    float scale) {
  DeviceBuffers buffers(device);
  EmbedArgs args{};
  args.matrix = {buffers.put(packed({matrix, {}})), matrix.dtype, static_cast<std::int32_t>(matrix.rows),
                 static_cast<std::int32_t>(matrix.cols)};
  args.rows = buffers.put(rows);
  args.row_count = static_cast<std::int32_t>(rows.size());
  args.scale = scale;
  const std::int64_t count = args.row_count * matrix.cols;
  args.out = buffers.take<float>(count);
  device.kernels().embed(buffers.stream(), args);
  std::vector<float> result = buffers.get(args.out, count);
  REQUIRE(buffers.guards_intact());
  return result;
}

inline std::vector<float> run_norm_add(Device& device, const std::vector<float>& x, const std::vector<float>& y,
                                       const std::vector<float>& weight) {
  DeviceBuffers buffers(device);
  const std::int32_t width = static_cast<std::int32_t>(weight.size());
  const DevicePtr<float> changed = buffers.put(x);
  device.kernels().norm_add(buffers.stream(), {changed, buffers.put(y), buffers.put(weight), 1e-6f,
                                               static_cast<std::int32_t>(x.size()) / width, width});
  std::vector<float> result = buffers.get(changed, static_cast<std::int64_t>(x.size()));
  REQUIRE(buffers.guards_intact());
  return result;
}

inline std::vector<float> run_gate(Device& device, const std::vector<float>& gate, const std::vector<float>& up,
                                   Epilogue activation, std::int32_t width) {
  DeviceBuffers buffers(device);
  const std::int64_t count = static_cast<std::int64_t>(gate.size());
  const DevicePtr<float> out = buffers.take<float>(count);
  device.kernels().gate(buffers.stream(), {buffers.put(gate), buffers.put(up), out, activation,
                                           static_cast<std::int32_t>(count / width), width});
  std::vector<float> result = buffers.get(out, count);
  REQUIRE(buffers.guards_intact());
  return result;
}

inline void check_argmax(const std::vector<float>& logits, std::int32_t width, const std::vector<StepRow>& rows) {
  const ArgmaxResult expected = run_argmax(host_device(), logits, width, rows);
  const ArgmaxResult found = run_argmax(cuda_device(), logits, width, rows);
  CHECK(expected.tokens == found.tokens);
  CHECK(expected.hashes == found.hashes);
  CHECK(expected.nonfinite == found.nonfinite);
}

inline std::string describe(const AttentionCase& shape) {
  return "heads " + std::to_string(shape.heads) + " over " + std::to_string(shape.cache.kv_heads) + " head_dim " +
         std::to_string(shape.cache.head_dim) + " window " + std::to_string(shape.window) + " rows " +
         std::to_string(shape.rows.size()) + " first position " + std::to_string(shape.rows[0].position) + " f32 " +
         std::to_string(shape.cache.type == CacheType::f32);
}

inline void check_attention(const AttentionCase& shape, Device& reference) {
  const AttentionData data = attention_data(shape);
  INFO(describe(shape));
  CHECK(first_difference(run_attention(reference, shape, data), run_attention(cuda_device(), shape, data)) == -1);
}

inline void check_rotate(const RotateCase& shape) {
  const RotateData data = rotate_data(shape);
  const RotateResult expected = run_rotate(host_device(), shape, data);
  const RotateResult found = run_rotate(cuda_device(), shape, data);
  INFO("head_dim " << shape.cache.head_dim << " rotated " << shape.rotated << " rows " << shape.rows.size());
  CHECK(first_difference(expected.q, found.q) == -1);
  CHECK((expected.cache == found.cache));
}

}  // namespace genai::test
