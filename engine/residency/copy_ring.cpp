#include "engine/residency/copy_ring.h"

#include <algorithm>
#include <utility>

#include "engine/error.h"

namespace genai {

CopyRing::CopyRing(Device& device, Lists lists, DevicePtr<std::byte> slots_base, std::uint64_t slot_bytes,
                   std::int32_t slot_count)
    : lists_(std::move(lists)), slots_base_(slots_base), slot_bytes_(slot_bytes), slot_count_(slot_count) {
  bool has_chunks = false;
  for (const std::vector<RingChunk>& list : lists_) {
    for (const RingChunk& chunk : list) {
      std::uint64_t bytes = 0;
      for (const RingCopy& copy : chunk) bytes += copy.bytes;
      GENAI_EXPECT(bytes <= slot_bytes, "a chunk larger than a slot");
      has_chunks = true;
    }
  }
  if (!has_chunks) return;
  GENAI_EXPECT(slot_count > 0, "a ring without slots");
  copies_ = device.create_stream();
  pass_began_ = device.create_event();
  copies_done_ = device.create_event();
  for (std::int32_t slot = 0; slot < slot_count; ++slot) {
    filled_.push_back(device.create_event());
    freed_.push_back(device.create_event());
  }
}

DevicePtr<std::byte> CopyRing::slot_address(std::int32_t chunk) const {
  return slots_base_.byte_offset(static_cast<std::int64_t>(slot_bytes_) * slot_of(chunk));
}

void CopyRing::enqueue_copies(RingList list, std::int32_t chunk) {
  DevicePtr<std::byte> destination = slot_address(chunk);
  for (const RingCopy& copy : chunks(list)[static_cast<std::size_t>(chunk)]) {
    copies_->copy(destination, copy.source, copy.bytes);
    destination = destination.byte_offset(static_cast<std::int64_t>(copy.bytes));
    pass_bytes_ += copy.bytes;
    ++pass_copies_;
  }
  copies_->record(*filled_[static_cast<std::size_t>(slot_of(chunk))]);
}

void CopyRing::restore(std::int32_t slot) {
  if (slot < chunk_count(RingList::narrow)) enqueue_copies(RingList::narrow, slot);
}

void CopyRing::prime() {
  for (std::int32_t slot = 0; slot < slot_count_; ++slot) restore(slot);
  if (copies_ != nullptr) copies_->synchronize();
}

void CopyRing::begin_pass(Stream& compute, RingList list, std::int32_t first, std::int32_t end) {
  GENAI_EXPECT(first >= 0 && first <= end && end <= chunk_count(list), "a pass over chunks that exist");
  pass_bytes_ = 0;
  pass_copies_ = 0;
  list_ = list;
  starts_filled_ = list == RingList::narrow && first == 0;
  first_chunk_ = next_chunk_ = first;
  end_chunk_ = end;
  if (first == end) return;
  compute.record(*pass_began_);
  copies_->wait(*pass_began_);
  if (starts_filled_) return;
  for (std::int32_t chunk = first; chunk < std::min(first + slot_count_, end); ++chunk) enqueue_copies(list, chunk);
}

DevicePtr<const std::byte> CopyRing::acquire(Stream& compute, std::int32_t chunk) {
  GENAI_EXPECT(chunk == next_chunk_ && chunk < end_chunk_, "chunks are acquired in order, each once a pass");
  ++next_chunk_;
  // What was in its slot before the pass began (C3) needs no wait: the pass began behind those copies.
  const bool was_there = starts_filled_ && chunk < slot_count_;
  if (!was_there) compute.wait(*filled_[static_cast<std::size_t>(slot_of(chunk))]);
  return slot_address(chunk);
}

void CopyRing::release(Stream& compute, std::int32_t chunk) {
  GENAI_EXPECT(chunk < next_chunk_, "a chunk is released after it was acquired");
  Event& freed = *freed_[static_cast<std::size_t>(slot_of(chunk))];
  compute.record(freed);
  if (waits_for_readers_) copies_->wait(freed);
  const std::int32_t following = chunk + slot_count_;
  if (following < end_chunk_) {
    enqueue_copies(list_, following);
  } else {
    restore(slot_of(chunk));
  }
}

void CopyRing::end_pass(Stream& compute) {
  GENAI_EXPECT(next_chunk_ == end_chunk_, "a pass uses every one of its chunks");
  if (first_chunk_ == end_chunk_) return;
  copies_->record(*copies_done_);
  compute.wait(*copies_done_);
}

}  // namespace genai
