// host_attention.h - attention on the host: how rows, heads and chunks of the cache are cut among threads. Two ways,
// equal bits: a task is some rows of one key-value head and walks its chunks; or, where that gives the threads too
// little to do, a task is one chunk, and the chunks of a head are merged in order afterwards.
#pragma once
#include <cstddef>

#include "engine/device/kernels.h"
#include "engine/host/math.h"
#include "engine/host/thread_pool.h"

namespace genai {

std::size_t attention_scratch_bytes(const ScratchLimits& limits, int thread_count);

// REQUIRES: args.scratch has attention_scratch_bytes for limits that cover `args`.
void run_attention(const AttentionArgs& args, const HostMath& math, ThreadPool& pool);

// Where one head of one layer in one chunk of a sequence begins; its values follow `kv_head_count` heads of keys later.
struct ChunkAddress {
  std::byte* keys;    // [D/8][64][8]
  std::byte* values;  // [64][D]
};
ChunkAddress chunk_address(const CacheView& cache, std::int32_t sequence, std::int32_t chunk, std::int32_t kv_head);

}  // namespace genai
