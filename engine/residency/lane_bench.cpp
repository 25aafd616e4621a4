#include "engine/residency/lane_bench.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/residency/copy_ring.h"

namespace genai {
namespace {

constexpr std::int64_t kLargestCallStrips = (std::int64_t{512} << 20) / kWorkloadStripBytes;
constexpr std::int64_t kLargestSlotStrips = (std::int64_t{8} << 20) / kWorkloadStripBytes;
constexpr std::int32_t kSlots = 4;
constexpr std::int64_t kSlotsInMatrix = 16;

std::size_t bytes_of(std::int64_t strips) { return static_cast<std::size_t>(strips * kWorkloadStripBytes); }

MemoryRange committed(ResidencyArena& arena, MemoryKind kind, std::size_t bytes, Placement placement) {
  MemoryRange range = arena.reserve(kind, bytes, placement);
  range.commit(0, bytes);
  return range;
}

bool same_bits(const std::vector<float>& left, const std::vector<float>& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

// The product with the whole matrix at `weights`. What it leaves in `output` is written anew, not what was there.
double product_seconds(Stream& stream, WorkloadVectors& vectors, DevicePtr<const std::byte> weights,
                       std::int64_t strips, std::vector<float>& output) {
  vectors.clear_output(stream);
  const double seconds = median_graph_seconds(stream, [&] {
    for (std::int64_t first = 0; first < strips; first += kLargestCallStrips)
      vectors.multiply(stream, weights.byte_offset(first * kWorkloadStripBytes),
                       std::min(kLargestCallStrips, strips - first), first);
  });
  output = vectors.read_output(stream, strips);
  return seconds;
}

}  // namespace

LaneBench::LaneBench(Device& device, Device* host, ResidencyArena& arena, std::uint64_t bytes)
    : device_(device),
      host_(host),
      strips_(std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / kWorkloadStripBytes)),
      stream_(device.create_stream()),
      resident_(committed(arena, MemoryKind::weights, bytes_of(strips_), Placement::device)),
      cold_(committed(arena, MemoryKind::cold, bytes_of(strips_), Placement::host)),
      vectors_(device, arena, strips_),
      slot_strips_(std::clamp<std::int64_t>(strips_ / kSlotsInMatrix, 1, kLargestSlotStrips)),
      slots_(committed(arena, MemoryKind::ring, bytes_of(kSlots * slot_strips_), Placement::device)) {
  fill_with_noise(device, *stream_, resident_.base(), bytes_of(strips_));
  fill_with_noise(device, *stream_, cold_.base(), bytes_of(strips_));
}

LaneBenchResult LaneBench::measure() {
  LaneBenchResult result{.bytes = bytes_of(strips_), .bytes_per_second = {}};
  std::vector<float> expected;
  std::vector<float> found;
  const auto put = [&](Lane lane, double seconds) {
    if (seconds > 0.0)
      result.bytes_per_second[static_cast<std::size_t>(lane)] = static_cast<double>(result.bytes) / seconds;
  };
  const auto compare = [&] { result.bits_equal = result.bits_equal && same_bits(found, expected); };
  put(Lane::resident, product_seconds(*stream_, vectors_, resident_.base(), strips_, expected));
  put(Lane::zero_copy, product_seconds(*stream_, vectors_, cold_.base(), strips_, found));
  compare();
  put(Lane::ring, ring_seconds(found));
  compare();
  const DevicePtr<const std::byte> host_weights = host_address(device_, cold_.base(), bytes_of(strips_));
  if (host_ == nullptr || !host_weights) return result;
  ResidencyArena host_arena(host_->memory());
  const std::unique_ptr<Stream> host_stream = host_->create_stream();
  WorkloadVectors host_vectors(*host_, host_arena, strips_);
  put(Lane::host, product_seconds(*host_stream, host_vectors, host_weights, strips_, found));
  compare();
  return result;
}

double LaneBench::ring_seconds(std::vector<float>& output) {
  std::vector<RingChunk> chunks;
  for (std::int64_t first = 0; first < strips_; first += slot_strips_)
    chunks.push_back({{.source = cold_.base().byte_offset(first * kWorkloadStripBytes),
                       .bytes = bytes_of(std::min(slot_strips_, strips_ - first))}});
  CopyRing ring(device_, {std::move(chunks)}, slots_.base(), bytes_of(slot_strips_), kSlots);
  const std::int32_t chunk_count = ring.chunk_count(RingList::narrow);
  ring.prime();
  vectors_.clear_output(*stream_);
  const double seconds = median_graph_seconds(*stream_, [&] {
    ring.begin_pass(*stream_, RingList::narrow, 0, chunk_count);
    for (std::int32_t chunk = 0; chunk < chunk_count; ++chunk) {
      const std::int64_t first = chunk * slot_strips_;
      vectors_.multiply(*stream_, ring.acquire(*stream_, chunk), std::min(slot_strips_, strips_ - first), first);
      ring.release(*stream_, chunk);
    }
    ring.end_pass(*stream_);
  });
  output = vectors_.read_output(*stream_, strips_);
  return seconds;
}

}  // namespace genai
