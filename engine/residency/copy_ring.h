// copy_ring.h - cold weights on their way: chunks of host memory, copied in the order of use into a few slots of device
// memory by a stream of their own, always as far ahead as slots are free. The copies of a pass are recorded with it, so
// a captured pass needs no decision of the host.
// There are two lists of chunks over the same slots: narrow passes leave some cold rows to host cores, wide ones bring
// all of them in.
//
// Invariants
//   C1 Chunk c is read from slot c mod slots, and only between acquire(c) and release(c).
//   C2 A slot is overwritten only behind the event that release recorded for its last reader (residency invariant R4).
//   C3 Between passes the first `slots` chunks of the narrow list are in their slots: prime() brings them in, each pass
//      brings them back.
// State of a slot in a pass: holds c -> (release) free -> (copy) holds c + slots, or, for the last in its slot, c mod
// slots of the narrow list for the next pass. A pass may use a part of a list, [first, end); one that does not begin
// with what is there by C3 begins with copies.
//
// One thread. Chunks are acquired in ascending order, each once a pass.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/device.h"

namespace genai {

struct RingCopy {
  DevicePtr<const std::byte> source;  // host memory that the device reads
  std::uint64_t bytes = 0;
};

// Copies that lie one behind the other in a slot, together at most as large.
using RingChunk = std::vector<RingCopy>;

enum class RingList : std::uint8_t { narrow, wide };
inline constexpr int kRingListCount = 2;

class CopyRing {
 public:
  using Lists = std::array<std::vector<RingChunk>, kRingListCount>;

  // `slots_base`: slot_count slots of slot_bytes each. No chunks: every call does nothing.
  CopyRing(Device& device, Lists lists, DevicePtr<std::byte> slots_base, std::uint64_t slot_bytes,
           std::int32_t slot_count);

  // Brings in the first chunks of the narrow list and waits for them. Once, before the first pass.
  void prime();

  // The pass uses the chunks [first, end) of the list, all of them.
  void begin_pass(Stream& compute, RingList list, std::int32_t first, std::int32_t end);
  // Makes `compute` wait for the chunk; returns where it lies.
  DevicePtr<const std::byte> acquire(Stream& compute, std::int32_t chunk);
  // All readers of the chunk have been enqueued on `compute`.
  void release(Stream& compute, std::int32_t chunk);
  void end_pass(Stream& compute);

  // Breaks C2 on purpose: a test that then still finds the right bits tests nothing.
  void omit_reader_waits_for_test() { waits_for_readers_ = false; }

  std::int32_t chunk_count(RingList list) const { return static_cast<std::int32_t>(chunks(list).size()); }
  // Enqueued since begin_pass, or by the whole of the last pass.
  std::uint64_t pass_bytes() const { return pass_bytes_; }
  std::uint64_t pass_copies() const { return pass_copies_; }

 private:
  std::int32_t slot_of(std::int32_t chunk) const { return chunk % slot_count_; }
  const std::vector<RingChunk>& chunks(RingList list) const { return lists_[static_cast<std::size_t>(list)]; }
  DevicePtr<std::byte> slot_address(std::int32_t chunk) const;
  void enqueue_copies(RingList list, std::int32_t chunk);
  // Brings back what the slot holds between passes.
  void restore(std::int32_t slot);

  Lists lists_;
  DevicePtr<std::byte> slots_base_;
  std::uint64_t slot_bytes_;
  std::int32_t slot_count_;
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> pass_began_;
  std::unique_ptr<Event> copies_done_;
  std::vector<std::unique_ptr<Event>> filled_;  // by slot
  std::vector<std::unique_ptr<Event>> freed_;   // by slot
  std::uint64_t pass_bytes_ = 0;
  std::uint64_t pass_copies_ = 0;
  bool waits_for_readers_ = true;
  RingList list_ = RingList::narrow;  // of the pass, like the chunks below
  bool starts_filled_ = true;         // its first chunks are in their slots
  std::int32_t first_chunk_ = 0;
  std::int32_t end_chunk_ = 0;
  std::int32_t next_chunk_ = 0;
};

}  // namespace genai
