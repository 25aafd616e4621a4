// The copy ring by itself: whatever the number of slots and chunks, and in every order of work, a chunk that was
// acquired has its own bytes until it is released, pass after pass; and not where slots do not wait for their readers.
#include "engine/residency/copy_ring.h"

#include "engine/host/host_device.h"
#include "tests/catch.h"
#include "tests/device_contract_support.h"
#include "tests/model_support.h"

namespace genai {
namespace {

using namespace test;

constexpr std::uint64_t kChunkBytes = 256;

struct Pass {
  RingList list;
  std::int32_t first;
  std::int32_t end;
};

// Copies what each acquired chunk holds to a place of its own, and says whether all are right after each pass.
bool passes_read_their_chunks(std::uint64_t seed, std::int32_t slots, std::int32_t chunks, bool waits) {
  HostDeviceOptions options;
  options.granule_bytes = 16384;
  options.seed = seed;
  options.threads = 1;
  HostDevice device(options);
  Region cold(device, 1, Placement::host);
  Region warm(device, 2, Placement::device);
  const auto stream = device.create_stream();
  const Bytes data = pattern(kChunkBytes * static_cast<std::size_t>(chunks), 7);
  write(*stream, cold.at(), data);
  CopyRing::Lists lists;  // equal ones: what differs is what is in the slots when a pass begins
  for (std::vector<RingChunk>& list : lists)
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk)
      list.push_back({{.source = cold.at(static_cast<std::size_t>(chunk) * kChunkBytes), .bytes = kChunkBytes}});
  CopyRing ring(device, std::move(lists), warm.at(), kChunkBytes, slots);
  if (!waits) ring.omit_reader_waits_for_test();
  ring.prime();
  const auto result = [&](std::int32_t chunk) {
    return warm.at(device.memory().granule_bytes() + static_cast<std::size_t>(chunk) * kChunkBytes);
  };
  bool all_right = true;
  constexpr RingList kNarrow = RingList::narrow;
  constexpr RingList kWide = RingList::wide;
  for (const Pass pass : {Pass{kNarrow, 0, chunks}, Pass{kNarrow, 0, chunks}, Pass{kWide, 0, chunks},
                          Pass{kNarrow, 0, chunks / 2}, Pass{kNarrow, chunks / 2, chunks}, Pass{kWide, 0, chunks / 2},
                          Pass{kNarrow, 0, chunks}, Pass{kNarrow, 0, 0}, Pass{kNarrow, 0, chunks}}) {
    stream->fill_zero(result(0), data.size());
    ring.begin_pass(*stream, pass.list, pass.first, pass.end);
    for (std::int32_t chunk = pass.first; chunk < pass.end; ++chunk) {
      stream->copy(result(chunk), ring.acquire(*stream, chunk), kChunkBytes);
      ring.release(*stream, chunk);
    }
    ring.end_pass(*stream);
    const Bytes found = read(*stream, result(0), data.size());
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(pass.first) * kChunkBytes);
    const auto end = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(pass.end) * kChunkBytes);
    all_right = all_right && std::equal(data.begin() + begin, data.begin() + end, found.begin() + begin);
    const auto used = static_cast<std::uint64_t>(pass.end - pass.first);
    if (pass.list == kNarrow && pass.first == 0 && pass.end == chunks)
      all_right = all_right && ring.pass_copies() == used;
  }
  return all_right;
}

}  // namespace

TEST_CASE("a chunk has its own bytes until it is released, with any slots and in every order of work", "[copy_ring]") {
  const std::uint64_t seeds = kSanitized ? 20 : 200;
  for (const std::int32_t slots : {1, 2, 3, 5}) {
    for (const std::int32_t chunks : {4, 11}) {
      std::uint64_t wrong = 0;
      std::uint64_t wrong_without_waits = 0;
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        wrong += passes_read_their_chunks(seed, slots, chunks, true) ? 0 : 1;
        if (seed < 20) wrong_without_waits += passes_read_their_chunks(seed, slots, chunks, false) ? 0 : 1;
      }
      INFO(slots << " slots, " << chunks << " chunks");
      CHECK(wrong == 0);
      if (chunks > slots) CHECK(wrong_without_waits > 0);
    }
  }
}

}  // namespace genai
