#include "engine/host/host_attention.h"

#include <algorithm>
#include <limits>

#include "engine/error.h"
#include "engine/host/host_pointer.h"
#include "engine/packed_layout.h"

namespace genai {
namespace {

// A group of rows shares one widening of a chunk to float.
constexpr int kGroupRows = 16;
// Splitting over chunks keeps a partial result for every head and chunk; no more than this is set aside for it, unless
// one row alone takes more.
constexpr std::int64_t kSplitBytes = std::int64_t{16} << 20;
constexpr int kTasksPerThread = 4;
// A partial result: the highest score, the sum, and from float 16 on the D weighted values.
constexpr std::int64_t kPartHeader = 16;

std::int64_t chunk_count(std::int32_t positions) {
  return (std::int64_t{positions} + kChunkPositions - 1) / kChunkPositions;
}

std::int64_t part_floats(std::int32_t head_dim) { return kPartHeader + round_up(head_dim, 16); }

// What one thread needs: a chunk's keys and values as floats, one partial result, and the state of a group's heads.
std::int64_t thread_floats(std::int32_t head_count, std::int32_t head_dim) {
  return 2 * kChunkPositions * std::int64_t{head_dim} + part_floats(head_dim) +
         round_up(2 * std::int64_t{kGroupRows} * head_count, 16);
}

// How many rows of a pass may be split over chunks.
std::int64_t split_rows(std::int32_t head_count, std::int32_t head_dim, std::int32_t max_positions, int thread_count) {
  const std::int64_t row_bytes = head_count * chunk_count(max_positions) * part_floats(head_dim) * 4;
  return std::clamp<std::int64_t>(kSplitBytes / std::max<std::int64_t>(row_bytes, 1), 1,
                                  std::int64_t{kTasksPerThread} * thread_count);
}

// Chunks first_chunk .. last_chunk hold the positions that a row sees, first_position .. its own.
struct Visible {
  Visible(const StepRow& row, std::int32_t window)
      : first_position(window > 0 ? std::max(0, row.position - window + 1) : 0),
        last_position(row.position),
        first_chunk(first_position / kChunkPositions),
        last_chunk(last_position / kChunkPositions) {}
  std::int32_t first_in(std::int32_t chunk) const { return std::max(0, first_position - chunk * kChunkPositions); }
  std::int32_t end_in(std::int32_t chunk) const {
    return std::min(kChunkPositions, last_position + 1 - chunk * kChunkPositions);
  }
  bool sees(std::int32_t chunk) const { return chunk >= first_chunk && chunk <= last_chunk; }

  std::int32_t first_position;
  std::int32_t last_position;
  std::int32_t first_chunk;
  std::int32_t last_chunk;
};

// The keys and values of one head in one chunk.
struct ChunkPiece {
  std::int32_t sequence = -1;  // negative: none
  std::int32_t chunk = 0;
  std::int32_t kv_head = 0;
};

class Attention {
 public:
  Attention(const AttentionArgs& args, const HostMath& math, int thread_count)
      : args_(args),
        math_(math),
        rows_(host(args.rows)),
        q_(host(args.q)),
        out_(host(args.out)),
        scratch_(host(args.scratch.as<float>())),
        heads_per_group_(args.head_count / args.cache.kv_head_count),
        thread_count_(thread_count) {}

  // The tasks of one thread: every thread_count-th, since later rows see more positions.
  void run_rows(int thread_index) const {
    const std::int64_t group_rows = std::clamp<std::int64_t>(
        std::int64_t{args_.row_count} * kv_head_count() / (kTasksPerThread * thread_count_), 1, kGroupRows);
    const std::int64_t group_count = (args_.row_count + group_rows - 1) / group_rows;
    for (std::int64_t task = thread_index; task < group_count * kv_head_count(); task += thread_count_) {
      const std::int64_t begin = task / kv_head_count() * group_rows;
      const std::int64_t end = std::min<std::int64_t>(begin + group_rows, args_.row_count);
      attend_group(begin, end, static_cast<std::int32_t>(task % kv_head_count()), thread_index);
    }
  }

  void run_chunks(int thread_index) const {
    std::int64_t first_task = thread_index;  // of this thread in the row, whose tasks are its chunks' key-value heads
    for (std::int64_t m = 0; m < args_.row_count; ++m) {
      const Visible visible(rows_[m], args_.window);
      const std::int64_t task_count = std::int64_t{visible.last_chunk - visible.first_chunk + 1} * kv_head_count();
      const auto piece = [&](std::int64_t task) {
        return ChunkPiece{rows_[m].sequence, visible.first_chunk + static_cast<std::int32_t>(task / kv_head_count()),
                          static_cast<std::int32_t>(task % kv_head_count())};
      };
      std::int64_t task = first_task;
      for (; task < task_count; task += thread_count_) {
        const bool has_next = task + thread_count_ < task_count;
        attend_one_chunk(m, visible, piece(task), has_next ? piece(task + thread_count_) : ChunkPiece{}, thread_index);
      }
      first_task = task - task_count;
    }
  }

  void merge_chunks(int thread_index) const {
    for (std::int64_t task = thread_index; task < std::int64_t{args_.row_count} * args_.head_count;
         task += thread_count_) {
      const std::int64_t m = task / args_.head_count;
      const std::int32_t head = static_cast<std::int32_t>(task % args_.head_count);
      const Visible visible(rows_[m], args_.window);
      AttentionPart state = fresh_state(m, head);
      for (std::int32_t chunk = visible.first_chunk; chunk <= visible.last_chunk; ++chunk) {
        float* stored = stored_part(m, head, chunk - visible.first_chunk);
        math_.merge_chunk(state, {stored[0], stored[1], stored + kPartHeader}, head_dim());
      }
      math_.finish_attention(state, head_dim());
    }
  }

 private:
  std::int32_t head_dim() const { return args_.cache.head_dim; }
  std::int32_t kv_head_count() const { return args_.cache.kv_head_count; }
  const float* query(std::int64_t m, std::int32_t head) const {
    return q_ + (m * args_.head_count + head) * head_dim();
  }
  float* output(std::int64_t m, std::int32_t head) const { return out_ + (m * args_.head_count + head) * head_dim(); }
  float* thread_scratch(int thread_index) const {
    return scratch_ + thread_index * thread_floats(args_.head_count, head_dim());
  }
  float* stored_part(std::int64_t m, std::int32_t head, std::int32_t slot) const {
    const std::int64_t index = (m * args_.head_count + head) * chunk_count(args_.max_positions) + slot;
    return thread_scratch(thread_count_) + index * part_floats(head_dim());
  }

  AttentionPart fresh_state(std::int64_t m, std::int32_t head) const {
    std::fill_n(output(m, head), head_dim(), 0.0f);
    return {-std::numeric_limits<float>::infinity(), 0.0f, output(m, head)};
  }

  ChunkAddress address_of(const ChunkPiece& piece) const {
    return chunk_address(args_.cache, piece.sequence, piece.chunk, piece.kv_head);
  }

  // Asks for bytes [begin, end) of both halves of a piece.
  static void prefetch(const ChunkAddress& piece, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kCacheLine = 64;
    for (std::int64_t offset = begin; offset < end; offset += kCacheLine) {
      __builtin_prefetch(piece.keys + offset, 0, 2);
      __builtin_prefetch(piece.values + offset, 0, 2);
    }
  }

  // A job for the positions below `end` of one piece, widened into the thread's scratch where the cache is f16.
  // Meanwhile the piece that this thread needs next is on its way.
  ChunkJob open_chunk(const ChunkPiece& piece, const ChunkPiece& next, std::int32_t end, int thread_index) const {
    const ChunkAddress address = address_of(piece);
    ChunkJob job{};
    job.head_dim = head_dim();
    job.scale = args_.scale;
    job.soft_cap = args_.soft_cap;
    job.keys = reinterpret_cast<const float*>(address.keys);
    job.values = reinterpret_cast<const float*>(address.values);
    if (args_.cache.type == CacheType::f32) return job;
    float* keys = thread_scratch(thread_index);
    float* values = keys + std::int64_t{kChunkPositions} * head_dim();
    const auto* half_keys = reinterpret_cast<const std::uint16_t*>(address.keys);
    constexpr std::int64_t kOctetBytes = kChunkPositions * 8 * sizeof(std::uint16_t);
    for (std::int32_t octet = 0; octet < head_dim() / 8; ++octet) {
      if (next.sequence >= 0) prefetch(address_of(next), octet * kOctetBytes, (octet + 1) * kOctetBytes);
      math_.widen(half_keys + octet * kChunkPositions * 8, keys + octet * kChunkPositions * 8, std::int64_t{end} * 8);
    }
    math_.widen(reinterpret_cast<const std::uint16_t*>(address.values), values, std::int64_t{end} * head_dim());
    job.keys = keys;
    job.values = values;
    return job;
  }

  void attend_group(std::int64_t begin, std::int64_t end, std::int32_t group, int thread_index) const {
    while (begin < end) {
      std::int64_t run_end = begin + 1;
      while (run_end < end && rows_[run_end].sequence == rows_[begin].sequence) ++run_end;
      attend_run(begin, run_end, group, thread_index);
      begin = run_end;
    }
  }

  // Rows of one sequence through all chunks that any of them sees.
  void attend_run(std::int64_t begin, std::int64_t end, std::int32_t group, int thread_index) const {
    float* part_values = thread_scratch(thread_index) + 2 * std::int64_t{kChunkPositions} * head_dim();
    float* max_and_sum = part_values + part_floats(head_dim());
    const auto state_of = [&](std::int64_t m, std::int32_t head) {
      return max_and_sum + 2 * ((m - begin) * heads_per_group_ + head);
    };
    std::int32_t first_chunk = std::numeric_limits<std::int32_t>::max();
    std::int32_t last_chunk = 0;
    for (std::int64_t m = begin; m < end; ++m) {
      const Visible visible(rows_[m], args_.window);
      first_chunk = std::min(first_chunk, visible.first_chunk);
      last_chunk = std::max(last_chunk, visible.last_chunk);
      for (std::int32_t head = 0; head < heads_per_group_; ++head) {
        const AttentionPart fresh = fresh_state(m, group * heads_per_group_ + head);
        state_of(m, head)[0] = fresh.max;
        state_of(m, head)[1] = fresh.sum;
      }
    }
    for (std::int32_t chunk = first_chunk; chunk <= last_chunk; ++chunk) {
      std::int32_t chunk_end = 0;
      for (std::int64_t m = begin; m < end; ++m) {
        const Visible visible(rows_[m], args_.window);
        if (visible.sees(chunk)) chunk_end = std::max(chunk_end, visible.end_in(chunk));
      }
      if (chunk_end == 0) continue;
      const std::int32_t sequence = rows_[begin].sequence;
      const ChunkPiece next = chunk < last_chunk ? ChunkPiece{sequence, chunk + 1, group} : ChunkPiece{};
      ChunkJob job = open_chunk({sequence, chunk, group}, next, chunk_end, thread_index);
      for (std::int64_t m = begin; m < end; ++m) {
        const Visible visible(rows_[m], args_.window);
        if (!visible.sees(chunk)) continue;
        job.first = visible.first_in(chunk);
        job.last = visible.end_in(chunk);
        for (std::int32_t head = 0; head < heads_per_group_; ++head) {
          const std::int32_t query_head = group * heads_per_group_ + head;
          job.query = query(m, query_head);
          AttentionPart part{0.0f, 0.0f, part_values};
          math_.attend_chunk(job, part);
          float* kept = state_of(m, head);
          AttentionPart state{kept[0], kept[1], output(m, query_head)};
          math_.merge_chunk(state, part, head_dim());
          kept[0] = state.max;
          kept[1] = state.sum;
        }
      }
    }
    for (std::int64_t m = begin; m < end; ++m)
      for (std::int32_t head = 0; head < heads_per_group_; ++head) {
        AttentionPart state{state_of(m, head)[0], state_of(m, head)[1], output(m, group * heads_per_group_ + head)};
        math_.finish_attention(state, head_dim());
      }
  }

  void attend_one_chunk(std::int64_t m, const Visible& visible, const ChunkPiece& piece, const ChunkPiece& next,
                        int thread_index) const {
    ChunkJob job = open_chunk(piece, next, visible.end_in(piece.chunk), thread_index);
    job.first = visible.first_in(piece.chunk);
    job.last = visible.end_in(piece.chunk);
    const std::int32_t first_head = piece.kv_head * heads_per_group_;
    for (std::int32_t head = first_head; head < first_head + heads_per_group_; ++head) {
      float* stored = stored_part(m, head, piece.chunk - visible.first_chunk);
      AttentionPart part{0.0f, 0.0f, stored + kPartHeader};
      job.query = query(m, head);
      math_.attend_chunk(job, part);
      stored[0] = part.max;
      stored[1] = part.sum;
    }
  }

  const AttentionArgs& args_;
  const HostMath& math_;
  const StepRow* rows_;
  const float* q_;
  float* out_;
  float* scratch_;
  std::int32_t heads_per_group_;
  int thread_count_;
};

}  // namespace

ChunkAddress chunk_address(const CacheView& cache, std::int32_t sequence, std::int32_t chunk, std::int32_t kv_head) {
  const std::int64_t element_bytes = cache.type == CacheType::f16 ? 2 : 4;
  const std::int64_t head_bytes = std::int64_t{kChunkPositions} * cache.head_dim * element_bytes;
  std::byte* keys = host(cache.base) + sequence * cache.sequence_stride_bytes + chunk * cache.chunk_bytes +
                    cache.layer_offset_bytes + kv_head * head_bytes;
  return {keys, keys + cache.kv_head_count * head_bytes};
}

std::size_t attention_scratch_bytes(const ScratchLimits& limits, int thread_count) {
  const std::int64_t rows = std::min<std::int64_t>(
      limits.row_count, split_rows(limits.head_count, limits.head_dim, limits.max_positions, thread_count));
  const std::int64_t stored_floats =
      rows * limits.head_count * chunk_count(limits.max_positions) * part_floats(limits.head_dim);
  return static_cast<std::size_t>(4 *
                                  (thread_count * thread_floats(limits.head_count, limits.head_dim) + stored_floats));
}

void run_attention(const AttentionArgs& args, const HostMath& math, ThreadPool& pool) {
  const int thread_count = pool.thread_count();
  const Attention attention(args, math, thread_count);
  const std::int64_t row_tasks = std::int64_t{args.row_count} * args.cache.kv_head_count;
  const bool split =
      thread_count > 1 && row_tasks < std::int64_t{kTasksPerThread} * thread_count &&
      args.row_count <= split_rows(args.head_count, args.cache.head_dim, args.max_positions, thread_count);
  pool.parallel([&](int thread_index, int) {
    if (!split) return attention.run_rows(thread_index);
    attention.run_chunks(thread_index);
    pool.barrier().wait();
    attention.merge_chunks(thread_index);
  });
}

}  // namespace genai
