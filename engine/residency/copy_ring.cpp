#include "engine/residency/copy_ring.h"

#include <algorithm>
#include <utility>

#include "engine/error.h"

namespace genai {

CopyRing::CopyRing(Device& device, std::vector<RingChunk> chunks, DevicePtr<std::byte> slots_base,
                   std::uint64_t slot_bytes, std::int32_t slot_count)
    : chunks_(std::move(chunks)), slots_base_(slots_base), slot_bytes_(slot_bytes), slot_count_(slot_count) {
  if (chunks_.empty()) return;
  GENAI_EXPECT(slot_count > 0, "a ring without slots");
  for (const RingChunk& chunk : chunks_) GENAI_EXPECT(chunk.bytes <= slot_bytes, "a chunk larger than a slot");
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

void CopyRing::enqueue_copy(std::int32_t chunk) {
  const RingChunk& source = chunks_[static_cast<std::size_t>(chunk)];
  copies_->copy(slot_address(chunk), source.source, source.bytes);
  copies_->record(*filled_[static_cast<std::size_t>(slot_of(chunk))]);
  pass_bytes_ += source.bytes;
  ++pass_copies_;
}

void CopyRing::prime() {
  for (std::int32_t chunk = 0; chunk < std::min(slot_count_, chunk_count()); ++chunk) enqueue_copy(chunk);
  if (copies_ != nullptr) copies_->synchronize();
}

void CopyRing::begin_pass(Stream& compute, std::int32_t first, std::int32_t end) {
  GENAI_EXPECT(first >= 0 && first <= end && end <= chunk_count(), "a pass over chunks that exist");
  pass_bytes_ = 0;
  pass_copies_ = 0;
  first_chunk_ = next_chunk_ = first;
  end_chunk_ = end;
  if (first == end) return;
  compute.record(*pass_began_);
  copies_->wait(*pass_began_);
  if (first == 0) return;
  for (std::int32_t chunk = first; chunk < std::min(first + slot_count_, end); ++chunk) enqueue_copy(chunk);
}

DevicePtr<const std::byte> CopyRing::acquire(Stream& compute, std::int32_t chunk) {
  GENAI_EXPECT(chunk == next_chunk_ && chunk < end_chunk_, "chunks are acquired in order, each once a pass");
  ++next_chunk_;
  // What was in its slot before the pass began (C3) needs no wait: the pass began behind those copies.
  const bool was_there = first_chunk_ == 0 && chunk < slot_count_;
  if (!was_there) compute.wait(*filled_[static_cast<std::size_t>(slot_of(chunk))]);
  return slot_address(chunk);
}

void CopyRing::release(Stream& compute, std::int32_t chunk) {
  GENAI_EXPECT(chunk < next_chunk_, "a chunk is released after it was acquired");
  Event& freed = *freed_[static_cast<std::size_t>(slot_of(chunk))];
  compute.record(freed);
  if (waits_for_readers_) copies_->wait(freed);
  const std::int32_t following = chunk + slot_count_;
  enqueue_copy(following < end_chunk_ ? following : slot_of(chunk));
}

void CopyRing::end_pass(Stream& compute) {
  GENAI_EXPECT(next_chunk_ == end_chunk_, "a pass uses every one of its chunks");
  if (first_chunk_ == end_chunk_) return;
  copies_->record(*copies_done_);
  compute.wait(*copies_done_);
}

}  // namespace genai
