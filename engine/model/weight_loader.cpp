#include "engine/model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/model/pack.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{2} << 20;

FileMatrix file_matrix(const TensorInfo& tensor) {
  const std::int64_t rows = tensor.shape.size() > 1 ? static_cast<std::int64_t>(tensor.shape[1]) : 1;
  return {.data = tensor.data, .dtype = tensor.dtype, .rows = rows, .cols = static_cast<std::int64_t>(tensor.shape[0])};
}

// The tensors behind a placed one, looked up once.
struct Sources {
  const TensorInfo* first;
  const TensorInfo* second;  // null: not interleaved
};

// A run of strips of one matrix, or one whole vector (strip_count == 0), and where it goes.
struct Piece {
  Sources sources;
  std::int64_t first_strip;
  std::int64_t strip_count;
  MemoryRange* range;
  DevicePtr<std::byte> destination;  // in `range`
  std::int64_t size_bytes;
};

PackSource pack_source(const Sources& sources) {
  PackSource source{.first = file_matrix(*sources.first), .second = std::nullopt};
  if (sources.second != nullptr) source.second = file_matrix(*sources.second);
  return source;
}

std::vector<Piece> cut(const WeightMap& map, const TensorFile& file, MemoryRange& resident, MemoryRange& cold) {
  std::vector<Piece> pieces;
  for (const PlacedTensor& placed : map.tensors) {
    const Sources sources{&file.require_tensor(placed.name),
                          placed.interleaved_name.empty() ? nullptr : &file.require_tensor(placed.interleaved_name)};
    if (!placed.packed) {
      pieces.push_back({sources, 0, 0, &resident, weight_address(placed, Lane::resident, resident.base()),
                        static_cast<std::int64_t>(placed.size_bytes)});
      continue;
    }
    const std::int64_t one_strip = strip_bytes(placed.dtype, placed.cols);
    const std::int64_t at_once = std::max<std::int64_t>(1, kPieceBytes / one_strip);
    for (const Lane lane : {Lane::resident, Lane::ring, Lane::zero_copy, Lane::host}) {
      MemoryRange& range = lane == Lane::resident ? resident : cold;
      const DevicePtr<std::byte> begin = weight_address(placed, lane, range.base());
      const std::int64_t first = placed.plan.first_strip(lane);
      for (std::int64_t done = 0; done < placed.plan.of(lane); done += at_once) {
        const std::int64_t count = std::min(at_once, placed.plan.of(lane) - done);
        pieces.push_back(
            {sources, first + done, count, &range, begin.byte_offset(done * one_strip), count * one_strip});
      }
    }
  }
  return pieces;
}

void fill(const Piece& piece, std::byte* destination) {
  if (piece.strip_count > 0) {
    pack_strips(pack_source(piece.sources), piece.first_strip, piece.strip_count, destination);
  } else {
    widen_row(file_matrix(*piece.sources.first), 0, reinterpret_cast<float*>(destination));
  }
}

// Calls visit(tensor, first byte, byte count) for what a piece reads.
template <class Visit>
void for_each_source(const Piece& piece, const Visit& visit) {
  const auto visit_rows = [&](const TensorInfo& tensor, std::int64_t first_row, std::int64_t row_count) {
    const FileMatrix matrix = file_matrix(tensor);
    const std::int64_t last_row = std::min(matrix.rows, first_row + row_count);
    if (first_row >= last_row) return;
    const std::int64_t row_bytes = file_row_bytes(matrix);
    visit(tensor, static_cast<std::uint64_t>(first_row * row_bytes),
          static_cast<std::uint64_t>((last_row - first_row) * row_bytes));
  };
  const std::int64_t first_row = piece.first_strip * kStripRows;
  const std::int64_t row_count = std::max<std::int64_t>(1, piece.strip_count * kStripRows);
  if (piece.sources.second == nullptr) return visit_rows(*piece.sources.first, first_row, row_count);
  visit_rows(*piece.sources.first, first_row / 2, row_count / 2);
  visit_rows(*piece.sources.second, first_row / 2, row_count / 2);
}

std::uint64_t file_bytes_of(const WeightMap& map, const TensorFile& file) {
  std::uint64_t bytes = 0;
  for (const PlacedTensor& placed : map.tensors) {
    bytes += file.require_tensor(placed.name).bytes;
    if (!placed.interleaved_name.empty()) bytes += file.require_tensor(placed.interleaved_name).bytes;
  }
  return bytes;
}

// Backs the place of a piece when its turn comes, so that nothing waits for all memory before the first byte is packed.
class Places {
 public:
  explicit Places(ResidencyArena& arena) : arena_(arena) {}

  // The piece's place as the host sees it; null where the host cannot write.
  std::byte* prepare(const Piece& piece) {
    const std::lock_guard lock(mutex_);
    const std::int64_t offset = piece.destination.address() - piece.range->base().address();
    piece.range->commit(static_cast<std::size_t>(offset), static_cast<std::size_t>(piece.size_bytes));
    return arena_.memory().host_view(piece.destination);
  }

 private:
  ResidencyArena& arena_;
  std::mutex mutex_;
};

// Two slots of host memory of one worker: one is filled while the other travels.
class StagingSlots {
 public:
  StagingSlots(Device& device, std::byte* memory, DevicePtr<std::byte> address, std::int64_t slot_bytes)
      : memory_(memory), address_(address), slot_bytes_(slot_bytes) {
    for (auto& event : events_) event = device.create_event();
  }

  template <class Fill>
  void send(Stream& stream, std::mutex& stream_mutex, DevicePtr<std::byte> destination, std::int64_t bytes,
            Fill fill_slot) {
    events_[next_]->synchronize();
    const std::int64_t slot_offset = next_ * slot_bytes_;
    fill_slot(memory_ + slot_offset);
    const std::lock_guard lock(stream_mutex);
    stream.copy(destination, address_.byte_offset(slot_offset), static_cast<std::size_t>(bytes));
    stream.record(*events_[next_]);
    next_ = 1 - next_;
  }

 private:
  std::byte* memory_;
  DevicePtr<std::byte> address_;
  std::int64_t slot_bytes_;
  std::unique_ptr<Event> events_[2];
  int next_ = 0;
};

}  // namespace

WeightLoad load_weights(const WeightMap& map, const TensorFile& file, Device& device, ResidencyArena& arena,
                        MemoryRange& resident, MemoryRange& cold, Placement staging_placement, Stream& stream,
                        int thread_count, const LoadProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Piece> pieces = cut(map, file, resident, cold);
  Places places(arena);
  const auto first_resident =
      std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.range == &resident; });
  const bool through_staging = first_resident != pieces.end() && places.prepare(*first_resident) == nullptr;

  std::int64_t slot_bytes = 0;
  for (const Piece& piece : pieces) slot_bytes = std::max(slot_bytes, round_up(piece.size_bytes, 256));
  MemoryRange staging;
  std::byte* staging_memory = nullptr;
  if (through_staging) {
    const auto staging_bytes = static_cast<std::size_t>(2 * thread_count * slot_bytes);
    staging = arena.reserve(MemoryKind::staging, staging_bytes, staging_placement);
    staging.commit(0, staging_bytes);
    staging_memory = arena.memory().host_view(staging.base());
  }

  std::atomic<std::size_t> next_piece{0};
  std::atomic<std::uint64_t> done_bytes{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // of the stream and of `failure`
  std::exception_ptr failure;

  const auto work = [&](int worker, bool reports) {
    try {
      std::optional<StagingSlots> slots;
      const std::int64_t worker_offset = 2 * worker * slot_bytes;
      if (through_staging)
        slots.emplace(device, staging_memory + worker_offset, staging.base().byte_offset(worker_offset), slot_bytes);
      while (!stop.load(std::memory_order_relaxed)) {
        const std::size_t index = next_piece.fetch_add(1, std::memory_order_relaxed);
        if (index >= pieces.size()) break;
        const Piece& piece = pieces[index];
        std::byte* const final_place = places.prepare(piece);
        for_each_source(piece, [&](const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) {
          file.populate_pages(tensor, begin, count);
        });
        if (final_place != nullptr) {
          fill(piece, final_place);
        } else {
          slots->send(stream, mutex, piece.destination, piece.size_bytes, [&](std::byte* slot) { fill(piece, slot); });
        }
        for_each_source(piece, [&](const TensorInfo& tensor, std::uint64_t begin, std::uint64_t count) {
          file.drop_pages(tensor, begin, count);
        });
        done_bytes.fetch_add(static_cast<std::uint64_t>(piece.size_bytes), std::memory_order_relaxed);
        if (reports && progress) progress(done_bytes.load(std::memory_order_relaxed));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
      stop.store(true, std::memory_order_relaxed);
    }
  };

  {
    std::vector<std::jthread> helpers;
    for (int worker = 1; worker < thread_count; ++worker) helpers.emplace_back(work, worker, false);
    work(0, true);
  }
  stream.synchronize();
  if (failure != nullptr) std::rethrow_exception(failure);
  resident.commit(0, map.resident_bytes);  // what lies between pieces
  if (map.cold_bytes > 0) cold.commit(0, map.cold_bytes);
  if (progress) progress(map.total_bytes);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {.file_bytes = file_bytes_of(map, file), .seconds = taken.count()};
}

}  // namespace genai
