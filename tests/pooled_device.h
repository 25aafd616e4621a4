// pooled_device.h - a Device whose small granules are pieces of one region of another device, mapped once. Kernel tests
// take and give back thousands of small buffers; on a GPU each granule of its own would cost more than the kernel. It
// promises less than a Device: memory is not cleared, and nothing faults.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/error.h"

namespace genai::test {

class PooledMemory final : public VirtualMemory {
 public:
  PooledMemory(VirtualMemory& memory, std::size_t pool_bytes) : memory_(memory) {
    const std::size_t granule = memory.granule_bytes();
    pool_bytes_ = (pool_bytes + granule - 1) / granule * granule;
    begin_ = memory.reserve(pool_bytes_);
    for (std::size_t offset = 0; offset < pool_bytes_; offset += granule) {
      const std::optional<GranuleId> id = memory.create(Placement::device);
      GENAI_EXPECT(id.has_value(), "no memory for the pool");
      granules_.push_back(*id);
      memory.map(begin_.byte_offset(static_cast<std::int64_t>(offset)), *id);
    }
  }
  ~PooledMemory() override {
    for (std::size_t i = 0; i < granules_.size(); ++i) {
      memory_.unmap(begin_.byte_offset(static_cast<std::int64_t>(i * memory_.granule_bytes())));
      memory_.destroy(granules_[i]);
    }
    memory_.release(begin_, pool_bytes_);
  }
  PooledMemory(const PooledMemory&) = delete;
  PooledMemory& operator=(const PooledMemory&) = delete;

  std::size_t granule_bytes() const override { return 4096; }
  MemoryInfo info() const override { return memory_.info(); }
  DevicePtr<std::byte> reserve(std::size_t bytes) override {
    GENAI_EXPECT(used_bytes_ + bytes <= pool_bytes_, "the pool is too small for this test");
    const DevicePtr<std::byte> range = begin_.byte_offset(static_cast<std::int64_t>(used_bytes_));
    used_bytes_ += bytes;
    ++reserved_count_;
    return range;
  }
  void release(DevicePtr<std::byte>, std::size_t) override {
    if (--reserved_count_ == 0) used_bytes_ = 0;
  }
  std::optional<GranuleId> create(Placement) override { return GranuleId{0}; }
  void destroy(GranuleId) override {}
  void map(DevicePtr<std::byte>, GranuleId) override {}
  void unmap(DevicePtr<std::byte>) override {}
  std::optional<DevicePtr<std::byte>> allocate(Placement, std::size_t) override { return std::nullopt; }
  void free(DevicePtr<std::byte>) override {}
  std::byte* host_view(DevicePtr<std::byte>) override { return nullptr; }

 private:
  VirtualMemory& memory_;
  DevicePtr<std::byte> begin_;
  std::size_t pool_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  int reserved_count_ = 0;
  std::vector<GranuleId> granules_;
};

class PooledDevice final : public Device {
 public:
  PooledDevice(std::unique_ptr<Device> device, std::size_t pool_bytes)
      : device_(std::move(device)), memory_(device_->memory(), pool_bytes) {}
  std::string name() const override { return device_->name(); }
  VirtualMemory& memory() override { return memory_; }
  Kernels& kernels() override { return device_->kernels(); }
  std::unique_ptr<Stream> create_stream() override { return device_->create_stream(); }
  std::unique_ptr<Event> create_event() override { return device_->create_event(); }
  std::uint64_t graph_reserve_bytes(std::size_t graph_count, std::size_t operation_count) const override {
    return device_->graph_reserve_bytes(graph_count, operation_count);
  }

 private:
  std::unique_ptr<Device> device_;
  PooledMemory memory_;
};

}  // namespace genai::test
