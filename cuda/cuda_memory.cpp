#include "cuda/cuda_memory.h"

#include <algorithm>
#include <string>

#include "cuda/cuda_error.h"
#include "cuda/cuda_plain_memory.h"

namespace genai::cuda {

CudaMemory::CudaMemory(const DriverApi& driver, int ordinal, const ActiveCaptures& captures,
                       const PageableMemorySource& pageable)
    : driver_(driver), ordinal_(ordinal), captures_(captures) {
  int node = -1;  // -1: the machine has no notion of nodes, where the driver asks for 0
  DRIVER_CHECK(driver_, device_get_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, ordinal_));
  host_node_ = std::max(node, 0);
  for (const Placement placement : {Placement::device, Placement::host}) {
    const CUmemAllocationProp wanted = properties(placement);
    std::size_t bytes = 0;
    DRIVER_CHECK(driver_, mem_get_allocation_granularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    granule_bytes_ = std::max(granule_bytes_, bytes);
  }
  GENAI_EXPECT((granule_bytes_ & (granule_bytes_ - 1)) == 0, "the driver's granularity is not a power of two");
  if (pageable) pageable_ = pageable(granule_bytes_);
  CUDA_CHECK(cudaStreamCreateWithFlags(&clear_stream_, cudaStreamNonBlocking));
}

CudaMemory::~CudaMemory() {
  (void)cudaSetDevice(ordinal_);
  for (const auto& [begin, allocation] : allocations_)
    if (allocation.placement != Placement::pageable) free_plain(allocation.placement, reinterpret_cast<void*>(begin));
  for (auto& [id, granule] : granules_) {
    if (granule.placement == Placement::pageable) continue;
    if (granule.slot != 0) (void)driver_.mem_unmap(granule.slot, granule_bytes_);
    (void)driver_.mem_release(granule.handle);
  }
  for (const auto& [begin, range] : reservations_) (void)driver_.mem_address_free(begin, range.end - begin);
  (void)cudaStreamDestroy(clear_stream_);
}

CUmemAllocationProp CudaMemory::properties(Placement placement) const {
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  if (placement == Placement::device) {
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = ordinal_;
  } else {
    wanted.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    wanted.location.id = host_node_;
  }
  return wanted;
}

void CudaMemory::expect_no_capture(const char* operation) const {
  if (!captures_.any()) return;
  throw Error(std::string("memory ") + operation + " during the capture of a graph",
              "this is a bug in genai: memory changes belong between steps; please report it");
}

bool CudaMemory::is_reserved(std::uint64_t slot) const {
  auto after = reservations_.upper_bound(slot);
  if (after == reservations_.begin()) return false;
  --after;
  return slot + granule_bytes_ <= after->second.end;
}

// Where the other memory has the bytes of a slot. REQUIRES: the slot is reserved.
DevicePtr<std::byte> CudaMemory::pageable_slot(std::uint64_t slot) {
  auto& [begin, range] = *std::prev(reservations_.upper_bound(slot));
  if (!range.pageable) range.pageable = pageable_->reserve(range.end - begin);
  return range.pageable.byte_offset(static_cast<std::int64_t>(slot - begin));
}

void CudaMemory::clear(std::uint64_t begin, std::size_t bytes) {
  CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(begin), 0, bytes, clear_stream_));
  CUDA_CHECK(cudaStreamSynchronize(clear_stream_));
}

CudaMemory::Granule& CudaMemory::require_granule(GranuleId granule) {
  const auto found = granules_.find(static_cast<std::uint64_t>(granule));
  GENAI_EXPECT(found != granules_.end(), "no such granule");
  return found->second;
}

MemoryInfo CudaMemory::info() const {
  CUDA_CHECK(cudaSetDevice(ordinal_));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {total_bytes, free_bytes};
}

DevicePtr<std::byte> CudaMemory::reserve(std::size_t bytes) {
  GENAI_EXPECT(bytes > 0 && bytes % granule_bytes_ == 0, "a reservation is a positive multiple of the granule");
  CUDA_CHECK(cudaSetDevice(ordinal_));
  CUdeviceptr begin = 0;
  DRIVER_CHECK(driver_, mem_address_reserve(&begin, bytes, granule_bytes_, 0, 0));
  reservations_[begin] = {begin + bytes, {}};
  return DevicePtr<std::byte>(begin);
}

void CudaMemory::release(DevicePtr<std::byte> begin, std::size_t bytes) {
  const auto found = reservations_.find(begin.address());
  GENAI_EXPECT(found != reservations_.end() && found->second.end - found->first == bytes, "no such reservation");
  for (const auto& [slot, granule] : slots_)
    GENAI_EXPECT(slot < found->first || slot >= found->second.end, "a granule is still mapped in the released range");
  CUDA_CHECK(cudaSetDevice(ordinal_));
  DRIVER_CHECK(driver_, mem_address_free(begin.address(), bytes));
  if (found->second.pageable) pageable_->release(found->second.pageable, bytes);
  reservations_.erase(found);
}

std::optional<GranuleId> CudaMemory::create(Placement placement) {
  expect_no_capture("create");
  if (placement == Placement::pageable) return create_pageable();
  CUDA_CHECK(cudaSetDevice(ordinal_));
  const CUmemAllocationProp wanted = properties(placement);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult status = driver_.mem_create(&handle, granule_bytes_, &wanted, 0);
  // Host memory cannot be locked for many reasons (limits, the kernel, the driver); for all of them there is a way on.
  if (status == CUDA_ERROR_OUT_OF_MEMORY || (status != CUDA_SUCCESS && placement == Placement::host))
    return std::nullopt;
  if (status != CUDA_SUCCESS) throw_driver_error(driver_, status, "cuMemCreate", __FILE__, __LINE__);
  const std::uint64_t id = next_granule_++;
  granules_[id] = {handle, {}, placement, false, 0};
  return GranuleId(id);
}

std::optional<GranuleId> CudaMemory::create_pageable() {
  if (pageable_ == nullptr) return std::nullopt;
  const std::optional<GranuleId> granule = pageable_->create(Placement::host);
  if (!granule) return std::nullopt;
  const std::uint64_t id = next_granule_++;
  granules_[id] = {0, *granule, Placement::pageable, true, 0};
  return GranuleId(id);
}

void CudaMemory::destroy(GranuleId granule) {
  expect_no_capture("destroy");
  Granule& owned = require_granule(granule);
  GENAI_EXPECT(owned.slot == 0, "the granule is still mapped");
  CUDA_CHECK(cudaSetDevice(ordinal_));
  if (owned.placement == Placement::pageable)
    pageable_->destroy(owned.pageable);
  else
    DRIVER_CHECK(driver_, mem_release(owned.handle));
  granules_.erase(static_cast<std::uint64_t>(granule));
}

void CudaMemory::map(DevicePtr<std::byte> slot, GranuleId granule) {
  expect_no_capture("map");
  Granule& owned = require_granule(granule);
  const std::uint64_t address = slot.address();
  GENAI_EXPECT(address % granule_bytes_ == 0 && is_reserved(address), "the slot is not in a reserved range");
  GENAI_EXPECT(owned.slot == 0, "the granule is already mapped");
  GENAI_EXPECT(slots_.find(address) == slots_.end(), "the slot already has a granule");
  if (owned.placement == Placement::pageable) {
    const DevicePtr<std::byte> slot_of_bytes = pageable_slot(address);
    pageable_->map(slot_of_bytes, owned.pageable);
    owned.slot = address;
    const auto bytes_at = reinterpret_cast<std::uint64_t>(pageable_->host_view(slot_of_bytes));
    const std::lock_guard lock(slots_mutex_);
    slots_[address] = {static_cast<std::uint64_t>(granule), owned.placement, bytes_at};
    return;
  }
  CUDA_CHECK(cudaSetDevice(ordinal_));
  DRIVER_CHECK(driver_, mem_map(address, granule_bytes_, 0, owned.handle, 0));

  CUmemAccessDesc access[2] = {};
  access[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[0].location.id = ordinal_;
  access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  access[1].location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  access[1].location.id = host_node_;
  access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const std::size_t reader_count = owned.placement == Placement::host ? 2 : 1;
  const CUresult status = driver_.mem_set_access(address, granule_bytes_, access, reader_count);
  if (status != CUDA_SUCCESS) {
    (void)driver_.mem_unmap(address, granule_bytes_);
    throw_driver_error(driver_, status, "cuMemSetAccess", __FILE__, __LINE__);
  }
  owned.slot = address;
  {
    const std::lock_guard lock(slots_mutex_);
    slots_[address] = {static_cast<std::uint64_t>(granule), owned.placement, address};
  }
  if (!owned.cleared) {
    clear(address, granule_bytes_);
    owned.cleared = true;
  }
}

void CudaMemory::unmap(DevicePtr<std::byte> slot) {
  expect_no_capture("unmap");
  const auto found = slots_.find(slot.address());
  GENAI_EXPECT(found != slots_.end(), "nothing is mapped at the slot");
  CUDA_CHECK(cudaSetDevice(ordinal_));
  if (found->second.placement == Placement::pageable)
    pageable_->unmap(pageable_slot(slot.address()));
  else
    DRIVER_CHECK(driver_, mem_unmap(slot.address(), granule_bytes_));
  granules_.at(found->second.granule).slot = 0;
  const std::lock_guard lock(slots_mutex_);
  slots_.erase(found);
}

std::optional<DevicePtr<std::byte>> CudaMemory::allocate(Placement placement, std::size_t bytes) {
  expect_no_capture("allocate");
  if (placement == Placement::pageable) {
    const auto begin = pageable_ == nullptr ? std::nullopt : pageable_->allocate(Placement::host, bytes);
    if (begin) allocations_[begin->address()] = {bytes, placement};
    return begin;
  }
  CUDA_CHECK(cudaSetDevice(ordinal_));
  void* const memory = allocate_plain(placement, bytes);
  if (memory == nullptr) return std::nullopt;
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  allocations_[begin] = {bytes, placement};
  clear(begin, bytes);
  return DevicePtr<std::byte>(begin);
}

void CudaMemory::free(DevicePtr<std::byte> begin) {
  expect_no_capture("free");
  const auto found = allocations_.find(begin.address());
  GENAI_EXPECT(found != allocations_.end(), "free of what was not allocated");
  CUDA_CHECK(cudaSetDevice(ordinal_));
  if (found->second.placement == Placement::pageable)
    pageable_->free(begin);
  else
    free_plain(found->second.placement, reinterpret_cast<void*>(begin.address()));
  allocations_.erase(found);
}

std::byte* CudaMemory::host_view(DevicePtr<std::byte> address) {
  const std::uint64_t begin = address.address() / granule_bytes_ * granule_bytes_;
  if (const auto found = slots_.find(begin); found != slots_.end()) {
    if (found->second.placement == Placement::device) return nullptr;
    return reinterpret_cast<std::byte*>(found->second.bytes_at + (address.address() - begin));
  }
  const auto after = allocations_.upper_bound(address.address());
  if (after == allocations_.begin()) return nullptr;
  const auto& [first, allocation] = *std::prev(after);
  if (address.address() - first >= allocation.bytes || allocation.placement == Placement::device) return nullptr;
  return reinterpret_cast<std::byte*>(address.address());
}

std::uint64_t CudaMemory::transfer_address(std::uint64_t address) const {
  const std::lock_guard lock(slots_mutex_);
  const std::uint64_t begin = address / granule_bytes_ * granule_bytes_;
  const auto found = slots_.find(begin);
  return found == slots_.end() ? address : found->second.bytes_at + (address - begin);
}

std::size_t CudaMemory::placement_run(std::uint64_t address, std::size_t bytes) const {
  const std::lock_guard lock(slots_mutex_);
  const std::uint64_t first_slot = address / granule_bytes_ * granule_bytes_;
  const auto first = slots_.find(first_slot);
  if (first == slots_.end()) return bytes;
  const Placement placement = first->second.placement;
  std::uint64_t end = first_slot + granule_bytes_;
  while (end < address + bytes) {
    const auto next = slots_.find(end);
    if (next == slots_.end() || next->second.placement != placement) break;
    end += granule_bytes_;
  }
  return static_cast<std::size_t>(std::min<std::uint64_t>(end - address, bytes));
}

}  // namespace genai::cuda
