// kernel_data.h - what kernel tests are made of, for any device: a generator of deterministic data, random weights as
// files hold them, and device buffers between guard bytes. Knows no backend.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/device/device.h"
#include "engine/exact_math.h"
#include "engine/model/pack.h"
#include "engine/packed_layout.h"

namespace genai::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(next() >> 40) / static_cast<float>(1 << 24);
  }
  // Either sign, magnitudes spread over three powers of ten.
  float value() {
    const float magnitude = std::pow(10.0f, uniform(-2.0f, 1.0f));
    return next() % 2 == 0 ? magnitude : -magnitude;
  }
  std::vector<float> values(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = value();
    return values;
  }

 private:
  std::uint64_t state_;
};

// A matrix as a file holds it.
struct FileBytes {
  std::vector<std::byte> bytes;
  FileMatrix matrix;
};

// Random blocks with finite scales of moderate size and either sign.
inline std::unique_ptr<FileBytes> random_file_matrix(DType dtype, std::int64_t rows, std::int64_t cols,
                                                     Random& random) {
  auto file = std::make_unique<FileBytes>();
  const DTypeInfo& info = dtype_info(dtype);
  file->matrix = {nullptr, dtype, rows, cols};
  file->bytes.resize(static_cast<std::size_t>(rows * file_row_bytes(file->matrix)));
  file->matrix.data = file->bytes.data();
  for (std::size_t begin = 0; begin < file->bytes.size(); begin += info.block_bytes) {
    std::byte* block = file->bytes.data() + begin;
    const auto put_half = [&](std::size_t offset, float value) {
      const std::uint16_t half = float_to_half(value);
      std::memcpy(block + offset, &half, sizeof half);
    };
    if (dtype == DType::F32) {
      const float value = random.value();
      std::memcpy(block, &value, sizeof value);
    } else if (dtype == DType::BF16) {
      const std::uint16_t value = static_cast<std::uint16_t>(float_bits(random.value()) >> 16);
      std::memcpy(block, &value, sizeof value);
    } else if (dtype == DType::F16) {
      put_half(0, random.value());
    } else {
      for (std::uint32_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(random.next() >> 56);
      const bool scale_last = dtype == DType::Q6_K;
      put_half(scale_last ? 208 : 0, 0.01f * random.value());
      if (has_minimum(dtype)) put_half(2, 0.01f * random.value());
    }
  }
  return file;
}

inline std::vector<std::byte> packed(const PackSource& source) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(packed_bytes(source.first.dtype, source.rows(), source.first.cols)));
  pack_strips(source, 0, strip_count(source.rows()), bytes.data());
  return bytes;
}

// Device buffers of one test, each between two guards. New buffers are full of a byte that reads as large negative
// floats, so that a result that was never written shows.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(Device& device) : device_(device), stream_(device.create_stream()) {}
  ~DeviceBuffers() {
    for (const Block& block : blocks_) {
      for (std::size_t i = 0; i < block.granules.size(); ++i) {
        device_.memory().unmap(block.begin.byte_offset(static_cast<std::int64_t>(i * granule_bytes())));
        device_.memory().destroy(block.granules[i]);
      }
      device_.memory().release(block.begin, block.granules.size() * granule_bytes());
    }
  }
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  Stream& stream() { return *stream_; }

  template <class T>
  DevicePtr<T> take(std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t total = round_up(bytes + 2 * kGuardBytes, kGuardBytes);
    if (blocks_.empty() || blocks_.back().used_bytes + total > blocks_.back().bytes) add_block(total);
    Block& block = blocks_.back();
    const DevicePtr<std::byte> begin = block.begin.byte_offset(block.used_bytes);
    block.used_bytes += total;
    const std::vector<std::byte> fill(static_cast<std::size_t>(total), kGuardByte);
    stream_->upload(begin, fill.data(), fill.size());
    stream_->synchronize();
    buffers_.push_back({begin, bytes, total});
    return begin.byte_offset(kGuardBytes).template as<T>();
  }

  template <class T>
  DevicePtr<T> put(const std::vector<T>& values) {
    const DevicePtr<T> buffer = take<T>(static_cast<std::int64_t>(values.size()));
    if (!values.empty()) stream_->upload(buffer.template as<std::byte>(), values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return buffer;
  }

  template <class T>
  std::vector<T> get(DevicePtr<T> buffer, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    stream_->download(values.data(), DevicePtr<const std::byte>(buffer.address()), values.size() * sizeof(T));
    stream_->synchronize();
    return values;
  }

  bool guards_intact() {
    const auto intact = [](std::byte byte) { return byte == kGuardByte; };
    for (const Buffer& buffer : buffers_) {
      const std::vector<std::byte> front = get(buffer.begin, kGuardBytes);
      const std::int64_t end = kGuardBytes + buffer.bytes;
      const std::vector<std::byte> back = get(buffer.begin.byte_offset(end), buffer.total_bytes - end);
      if (!std::all_of(front.begin(), front.end(), intact) || !std::all_of(back.begin(), back.end(), intact))
        return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGuardBytes = 256;
  static constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  static constexpr std::byte kGuardByte{0xcb};
  struct Block {
    DevicePtr<std::byte> begin;
    std::int64_t bytes = 0;
    std::int64_t used_bytes = 0;
    std::vector<GranuleId> granules;
  };
  struct Buffer {
    DevicePtr<std::byte> begin;  // of the front guard
    std::int64_t bytes = 0;
    std::int64_t total_bytes = 0;
  };

  std::size_t granule_bytes() { return device_.memory().granule_bytes(); }
  void add_block(std::int64_t at_least_bytes) {
    const std::int64_t granule = static_cast<std::int64_t>(granule_bytes());
    Block block;
    block.bytes = round_up(std::max(at_least_bytes, kBlockBytes), granule);
    block.begin = device_.memory().reserve(static_cast<std::size_t>(block.bytes));
    for (std::int64_t offset = 0; offset < block.bytes; offset += granule) {
      const auto created = device_.memory().create(Placement::device);
      if (!created) throw std::runtime_error("no memory for a test buffer");
      device_.memory().map(block.begin.byte_offset(offset), *created);
      block.granules.push_back(*created);
    }
    blocks_.push_back(std::move(block));
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Block> blocks_;
  std::vector<Buffer> buffers_;
};

// The index of the first element whose bits differ, -1 if none. All NaNs are equal: their bits are no part of the
// arithmetic.
inline std::int64_t first_difference(const std::vector<float>& left, const std::vector<float>& right) {
  if (left.size() != right.size()) return static_cast<std::int64_t>(std::min(left.size(), right.size()));
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool both_nan = std::isnan(left[i]) && std::isnan(right[i]);
    if (!both_nan && float_bits(left[i]) != float_bits(right[i])) return static_cast<std::int64_t>(i);
  }
  return -1;
}

}  // namespace genai::test
