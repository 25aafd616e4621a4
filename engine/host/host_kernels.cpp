#include "engine/host/host_kernels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>

#include "engine/error.h"
#include "engine/host/host_attention.h"
#include "engine/host/host_exchange.h"
#include "engine/host/host_pointer.h"
#include "engine/host/host_stream.h"
#include "engine/host/matmul_units.h"

namespace genai {
namespace {

// Below this many elements a call is done by the thread that makes it: waking the others takes longer.
constexpr std::int64_t kInlineElements = 8192;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr int kMaxScanParts = 64;
PackedMatrix packed(const MatrixView& view) { return {host(view.data), view.dtype, view.rows, view.cols}; }

// Calls task(i) for i < task_count, on the pool where there is enough to do.
template <class Task>
void run_tasks(ThreadPool& pool, std::int64_t task_count, std::int64_t elements_each, const Task& task) {
  if (task_count > 1 && task_count * elements_each >= kInlineElements) return pool.run(task_count, task);
  for (std::int64_t i = 0; i < task_count; ++i) task(i);
}

// Where the input of a product is kept once it is normalised and quantised, and what each thread works in. A single row
// is prepared by every thread for itself, which is faster than to wait for one of them.
class MatmulScratch {
 public:
  MatmulScratch(std::byte* base, std::int32_t row_count, std::int32_t width, int thread_count)
      : tile_bytes_(padded_width(width) / kTileWidth * static_cast<std::int64_t>(sizeof(ActivationTile))),
        float_bytes_(padded_width(width) * static_cast<std::int64_t>(sizeof(float))),
        turned_bytes_(is_turned(row_count) ? row_count * turned_row_bytes(width) : 0),
        workspace_bytes_(round_up(matmul_workspace_bytes(width), 64)),
        copies_(row_count == 1 ? thread_count : row_count),
        thread_count_(thread_count),
        base_(base) {}

  std::int64_t bytes() const { return workspace_begin() + thread_count_ * workspace_bytes_; }
  std::int64_t tile_stride_bytes() const { return tile_bytes_; }
  std::int64_t float_stride_bytes() const { return float_bytes_; }
  ActivationTile* tiles(std::int64_t copy) const {
    return reinterpret_cast<ActivationTile*>(base_ + copy * tile_bytes_);
  }
  float* floats(std::int64_t copy) const {
    return reinterpret_cast<float*>(base_ + copies_ * tile_bytes_ + copy * float_bytes_);
  }
  TurnedTile* turned() const {  // of all rows
    return reinterpret_cast<TurnedTile*>(base_ + copies_ * (tile_bytes_ + float_bytes_));
  }
  std::byte* workspace(int thread_index) const { return base_ + workspace_begin() + thread_index * workspace_bytes_; }

 private:
  std::int64_t workspace_begin() const { return copies_ * (tile_bytes_ + float_bytes_) + turned_bytes_; }

  std::int64_t tile_bytes_;
  std::int64_t float_bytes_;
  std::int64_t turned_bytes_;
  std::int64_t workspace_bytes_;
  std::int64_t copies_;
  int thread_count_;
  std::byte* base_;
};

// One matmul call while it runs.
class Matmul {
 public:
  Matmul(const MatmulArgs& args, const HostMath& math, int thread_count)
      : args_(args),
        math_(math),
        width_(args.outputs[0].matrix.cols),
        scratch_(host(args.scratch), args.row_count, width_, thread_count) {
    for (int i = 0; i < args.output_count; ++i)
      (is_float(args.outputs[i].matrix.dtype) ? any_float_ : any_quantized_) = true;
    if (any_quantized_ && math.turn_row != nullptr && is_turned(args.row_count)) turned_ = scratch_.turned();
  }

  // Normalises and quantises row m of the input into copy `copy`.
  void prepare_row(std::int32_t m, std::int64_t copy, int thread_index) const {
    const float* x = host(args_.input) + std::int64_t{m} * args_.input_stride;
    float* floats = any_float_ ? scratch_.floats(copy) : reinterpret_cast<float*>(scratch_.workspace(thread_index));
    if (args_.norm_weight) {
      math_.rms_norm(x, host(args_.norm_weight), args_.norm_epsilon, width_, floats);
      x = floats;
    } else if (any_float_) {
      std::copy_n(x, width_, floats);
    }
    if (any_float_) std::fill(floats + width_, floats + padded_width(width_), 0.0f);
    if (any_quantized_) math_.quantize_row(x, width_, scratch_.tiles(copy));
    if (turned_ != nullptr) math_.turn_row(scratch_.tiles(copy), width_, turned_ + m, args_.row_count);
  }

  // Computes the units [begin, end) with input rows from `copy` on.
  void run_units(std::int64_t begin, std::int64_t end, std::int64_t copy, int thread_index) const {
    for_each_strip_range(
        args_, args_.row_count, begin, end, [&](int output, std::int64_t first_strip, std::int64_t strips) {
          math_.matmul(job_of(args_.outputs[output], copy), first_strip, strips, scratch_.workspace(thread_index));
        });
  }

 private:
  MatmulJob job_of(const MatmulOutput& output, std::int64_t copy) const {
    const bool floats = is_float(output.matrix.dtype);
    return {.matrix = packed(output.matrix),
            .input = floats ? reinterpret_cast<const std::byte*>(scratch_.floats(copy))
                            : reinterpret_cast<const std::byte*>(scratch_.tiles(copy)),
            .input_stride_bytes = floats ? scratch_.float_stride_bytes() : scratch_.tile_stride_bytes(),
            .row_count = args_.row_count,
            .turned = turned_,
            .bias = host(output.bias),
            .out = host(output.out),
            .out_stride = output.out_stride,
            .epilogue = args_.epilogue,
            .soft_cap = args_.soft_cap};
  }

  const MatmulArgs& args_;
  const HostMath& math_;
  std::int32_t width_;
  MatmulScratch scratch_;
  TurnedTile* turned_ = nullptr;
  bool any_float_ = false;
  bool any_quantized_ = false;
};

// Units that threads take in pieces: each from a share of its own, then from those of others, for cores are not equally
// fast when memory, another program or the hypervisor holds some of them up. Who computes a unit changes no bit of it.
class SharedUnits {
 public:
  SharedUnits(std::int64_t unit_count, int thread_count)
      : thread_count_(thread_count), shares_(std::make_unique<Share[]>(static_cast<std::size_t>(thread_count))) {
    for (int i = 0; i < thread_count; ++i) {
      const IndexRange range = static_range(unit_count, i, thread_count);
      shares_[static_cast<std::size_t>(i)].next.store(range.begin, std::memory_order_relaxed);
      shares_[static_cast<std::size_t>(i)].end = range.end;
    }
  }

  // Calls visit(begin, end) until no unit is left.
  template <class Visit>
  void take(int thread_index, const Visit& visit) {
    for (int i = 0; i < thread_count_; ++i) {
      Share& share = shares_[static_cast<std::size_t>((thread_index + i) % thread_count_)];
      for (std::int64_t next = share.next.load(std::memory_order_relaxed); next < share.end;) {
        const std::int64_t count = units_to_take(share.end - next, thread_count_);
        if (!share.next.compare_exchange_weak(next, next + count, std::memory_order_relaxed)) continue;
        visit(next, next + count);
        next = share.next.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  const int thread_count_;
  const std::unique_ptr<Share[]> shares_;
};

HostStream& host_stream(Stream& stream) { return static_cast<HostStream&>(stream); }

void store_elements(const HostMath& math, CacheType type, const float* from, std::byte* to, std::int64_t count) {
  if (type == CacheType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    math.narrow(from, reinterpret_cast<std::uint16_t*>(to), count);
  }
}

// The earlier scan is of lower indices.
LogitScan join(const LogitScan& low, const LogitScan& high) {
  const bool take_high = high.index >= 0 && (low.index < 0 || high.best > low.best);
  LogitScan joined = take_high ? high : low;
  joined.nonfinite = low.nonfinite + high.nonfinite;
  joined.hash = low.hash + high.hash;
  return joined;
}

}  // namespace

std::size_t HostKernels::scratch_bytes(const ScratchLimits& limits) const {
  const int threads = pool_.thread_count();
  std::int64_t matmul = 0;
  for (const std::int32_t row_count : {1, std::min(limits.row_count, kMostTurnedRows), limits.row_count})
    matmul = std::max(matmul, MatmulScratch(nullptr, row_count, limits.input_width, threads).bytes());
  return std::max(static_cast<std::size_t>(matmul), attention_scratch_bytes(limits, threads));
}

void HostKernels::embed(Stream& stream, const EmbedArgs& args) {
  expect_matrix(args.matrix);
  host_stream(stream).enqueue([this, args] {
    const std::int32_t cols = args.matrix.cols;
    run_tasks(pool_, args.row_count, cols, [&](std::int64_t m) {
      const std::int32_t token = host(args.rows)[m].token;
      GENAI_EXPECT(token >= 0 && token < args.matrix.rows + args.rest.rows, "a token outside the vocabulary");
      const bool in_rest = token >= args.matrix.rows;
      math_.embed_row(packed(in_rest ? args.rest : args.matrix), in_rest ? token - args.matrix.rows : token, args.scale,
                      host(args.out) + m * cols);
    });
  });
}

void HostKernels::matmul(Stream& stream, const MatmulArgs& args) {
  expect_product(args);
  host_stream(stream).enqueue([this, args] { run_matmul(args); });
}

void HostKernels::run_matmul(const MatmulArgs& args) const {
  const Matmul job(args, math_, pool_.thread_count());
  SharedUnits units(unit_count(args, args.row_count), pool_.thread_count());
  pool_.parallel([&](int thread_index, int thread_count) {
    std::int64_t copy = 0;
    if (args.row_count == 1) {
      copy = thread_index;
      job.prepare_row(0, copy, thread_index);
    } else {
      const IndexRange rows = static_range(args.row_count, thread_index, thread_count);
      for (std::int64_t m = rows.begin; m < rows.end; ++m)
        job.prepare_row(static_cast<std::int32_t>(m), m, thread_index);
      pool_.barrier().wait();
    }
    units.take(thread_index,
               [&](std::int64_t begin, std::int64_t end) { job.run_units(begin, end, copy, thread_index); });
  });
}

void HostKernels::norm_add(Stream& stream, const NormAddArgs& args) {
  host_stream(stream).enqueue([this, args] {
    run_tasks(pool_, args.row_count, args.width, [&](std::int64_t m) {
      math_.rms_norm_add(host(args.x) + m * args.width, host(args.y) + m * args.width, host(args.weight), args.epsilon,
                         args.width);
    });
  });
}

void HostKernels::gate(Stream& stream, const GateArgs& args) {
  GENAI_EXPECT(is_gated(args.activation), "a gate needs an activation");
  host_stream(stream).enqueue([this, args] {
    constexpr std::int64_t kPiece = 1024;
    const std::int64_t count = std::int64_t{args.row_count} * args.width;
    run_tasks(pool_, (count + kPiece - 1) / kPiece, kPiece, [&](std::int64_t piece) {
      const std::int64_t begin = piece * kPiece;
      math_.gate(args.activation, host(args.gate) + begin, host(args.up) + begin, host(args.out) + begin,
                 static_cast<std::int32_t>(std::min(kPiece, count - begin)));
    });
  });
}

void HostKernels::rotate(Stream& stream, const RotateArgs& args) {
  GENAI_EXPECT(args.cache.head_dim % 8 == 0 && args.cache.head_dim <= kMaxHeadDim, "a head size that is not supported");
  GENAI_EXPECT(args.rotated % 2 == 0 && args.rotated <= args.cache.head_dim, "rotated elements come in pairs");
  host_stream(stream).enqueue([this, args] { run_rotate(args); });
}

void HostKernels::run_rotate(const RotateArgs& args) const {
  const std::int32_t head_dim = args.cache.head_dim;
  const std::int32_t kv_heads = args.cache.kv_head_count;
  const std::int64_t heads_each = args.head_count + kv_heads;
  run_tasks(pool_, args.row_count * heads_each, head_dim, [&](std::int64_t task) {
    const std::int64_t m = task / heads_each;
    const std::int32_t head = static_cast<std::int32_t>(task % heads_each);
    const StepRow& row = host(args.rows)[m];
    const float* table = host(args.table) + std::int64_t{row.position} * args.rotated;
    if (head < args.head_count) {
      float* q = host(args.q) + (m * args.head_count + head) * head_dim;
      if (args.q_norm) math_.rms_norm(q, host(args.q_norm), args.norm_epsilon, head_dim, q);
      math_.rotate_head(q, table, args.rotated, args.interleaved);
      return;
    }
    const std::int32_t kv_head = head - args.head_count;
    const float* k = host(args.k) + (m * kv_heads + kv_head) * head_dim;
    const float* v = host(args.v) + (m * kv_heads + kv_head) * head_dim;
    alignas(64) float turned[kMaxHeadDim];
    if (args.k_norm) {
      math_.rms_norm(k, host(args.k_norm), args.norm_epsilon, head_dim, turned);
    } else {
      std::copy_n(k, head_dim, turned);
    }
    math_.rotate_head(turned, table, args.rotated, args.interleaved);
    const ChunkAddress chunk = chunk_address(args.cache, row.sequence, row.position / kChunkPositions, kv_head);
    const std::int64_t in_chunk = row.position % kChunkPositions;
    const std::int64_t element_bytes = args.cache.type == CacheType::f16 ? 2 : 4;
    for (std::int32_t i = 0; i < head_dim; i += 8)
      store_elements(math_, args.cache.type, turned + i,
                     chunk.keys + (i * kChunkPositions + in_chunk * 8) * element_bytes, 8);
    store_elements(math_, args.cache.type, v, chunk.values + in_chunk * head_dim * element_bytes, head_dim);
  });
}

void HostKernels::attention(Stream& stream, const AttentionArgs& args) {
  GENAI_EXPECT(args.row_count > 0, "attention with no rows");
  GENAI_EXPECT(args.cache.kv_head_count > 0 && args.head_count % args.cache.kv_head_count == 0,
               "query heads are a multiple of key-value heads");
  GENAI_EXPECT(args.cache.head_dim % 8 == 0, "a head size that is not supported");
  host_stream(stream).enqueue([this, args] { run_attention(args, math_, pool_); });
}

void HostKernels::argmax(Stream& stream, const ArgmaxArgs& args) {
  host_stream(stream).enqueue([this, args] { run_argmax(args); });
}

void HostKernels::run_argmax(const ArgmaxArgs& args) const {
  const int parts = args.width < kInlineElements ? 1 : std::min(pool_.thread_count(), kMaxScanParts);
  for (std::int64_t m = 0; m < args.row_count; ++m) {
    const float* row = host(args.logits) + m * args.width;
    std::array<LogitScan, kMaxScanParts> scans{};
    pool_.run(parts, [&](std::int64_t part) {
      const IndexRange range = static_range(args.width, static_cast<int>(part), parts);
      scans[part] = math_.scan_logits(row, static_cast<std::int32_t>(range.begin), static_cast<std::int32_t>(range.end),
                                      host(args.rows)[m].position);
    });
    LogitScan scan = scans[0];
    for (int part = 1; part < parts; ++part) scan = join(scan, scans[part]);
    host(args.tokens)[m] = scan.index;
    host(args.hashes)[m] = scan.hash;
    host(args.nonfinite)[m] = scan.nonfinite;
  }
}

void HostKernels::advance_step(Stream& stream, const AdvanceArgs& args) {
  host_stream(stream).enqueue([args] {
    for (std::int32_t m = 0; m < args.row_count; ++m) {
      host(args.rows)[m].token = host(args.tokens)[m];
      host(args.rows)[m].position += 1;
    }
  });
}

void HostKernels::ask_host(Stream& stream, const AskHostArgs& args) {
  host_stream(stream).enqueue([this, args] { run_ask_host(args, math_); });
}

void HostKernels::take_answer(Stream& stream, const TakeAnswerArgs& args) {
  host_stream(stream).enqueue([args] { run_take_answer(args); });
}

void HostKernels::finish_requests(Stream& stream, const FinishRequestsArgs& args) {
  host_stream(stream).enqueue([args] { *host(args.finished) += args.count; });
}

}  // namespace genai
