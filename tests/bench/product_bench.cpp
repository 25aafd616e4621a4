// product_bench.cpp - how fast THREADS cores together multiply matrices far larger than their caches with some rows of
// activations at once, in GB/s of packed weights, in pieces as host cores take them that compute for a device
// (host_row_server.h). Where the figures for many rows are those for one, memory bounds a batch as it bounds one row.
//   genai_product_bench [THREADS, default 1] [MEBIBYTES a thread, default 512] [COLUMNS, default 5120] [ROUNDS, default
//   5]
//                       [PATH, default all, such as amx] [TYPE, default all, such as Q4_0]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/host/math.h"
#include "engine/packed_layout.h"

using namespace genai;

namespace {

constexpr std::int32_t kRowCounts[] = {1, 2, 4, 8, 16};
constexpr std::int32_t kMostRows = 16;
constexpr std::int64_t kPieceStrips = 16;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

using Bytes = std::unique_ptr<std::byte, decltype(&std::free)>;

Bytes take(std::int64_t bytes) {
  const std::size_t whole_pages = (static_cast<std::size_t>(bytes) / kHugePageBytes + 1) * kHugePageBytes;
  Bytes memory(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, whole_pages)), &std::free);
  if (memory == nullptr) std::exit(1);
  madvise(memory.get(), whole_pages, MADV_HUGEPAGE);  // as the weights lie; refused where there are none
  std::fill_n(memory.get(), bytes, std::byte{0x15});  // small numbers in every type
  return memory;
}

// What one thread works on.
struct Worker {
  Worker(const HostMath& math, std::int64_t bytes, std::int32_t cols)
      : input_stride_bytes(padded_width(cols) / kTileWidth * static_cast<std::int64_t>(sizeof(ActivationTile))),
        weight_bytes(bytes),
        weights(take(bytes)),
        input(take(kMostRows * input_stride_bytes)),
        workspace(take(matmul_workspace_bytes(cols))),
        out(kMostRows * kPieceStrips * kStripRows) {
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int32_t m = 0; m < kMostRows; ++m) {
      for (std::int32_t i = 0; i < cols; ++i)
        row[static_cast<std::size_t>(i)] = static_cast<float>((i * 7 + m) % 31 - 15);
      math.quantize_row(row.data(), cols, reinterpret_cast<ActivationTile*>(input.get() + m * input_stride_bytes));
    }
  }

  // Returns how many bytes of weights went by.
  std::int64_t multiply(const HostMath& math, DType dtype, std::int32_t cols, std::int32_t row_count) {
    const std::int64_t piece_bytes = kPieceStrips * strip_bytes(dtype, cols);
    const std::int64_t pieces = weight_bytes / piece_bytes;
    MatmulJob job{.matrix = {.data = weights.get(), .dtype = dtype, .rows = kPieceStrips * kStripRows, .cols = cols},
                  .input = input.get(),
                  .input_stride_bytes = input_stride_bytes,
                  .row_count = row_count,
                  .turned = nullptr,
                  .bias = nullptr,
                  .out = out.data(),
                  .out_stride = kPieceStrips * kStripRows,
                  .epilogue = Epilogue::store,
                  .soft_cap = 0.0f};
    for (std::int64_t piece = 0; piece < pieces; ++piece, job.matrix.data += piece_bytes)
      math.matmul(job, 0, kPieceStrips, workspace.get());
    return pieces * piece_bytes;
  }

  std::int64_t input_stride_bytes;
  std::int64_t weight_bytes;
  Bytes weights;
  Bytes input;
  Bytes workspace;
  std::vector<float> out;
};

template <class Work>
double seconds_on_all(std::vector<std::unique_ptr<Worker>>& workers, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (const auto& worker : workers) threads.emplace_back([&] { work(*worker); });
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argument_count, char** arguments) {
  const auto number = [&](int index, std::int64_t otherwise) {
    return argument_count > index ? std::atoll(arguments[index]) : otherwise;
  };
  const std::int64_t thread_count = number(1, 1);
  const std::int64_t bytes = number(2, 512) << 20;
  const auto cols = static_cast<std::int32_t>(number(3, 5120));
  const std::int64_t rounds = number(4, 5);
  const std::string only_path = argument_count > 5 ? arguments[5] : "all";
  const std::string only_type = argument_count > 6 ? arguments[6] : "all";
  std::vector<std::unique_ptr<Worker>> workers(static_cast<std::size_t>(thread_count));
  {
    std::vector<std::jthread> threads;  // each has its memory where it runs
    for (auto& worker : workers)
      threads.emplace_back([&] { worker = std::make_unique<Worker>(kScalarMath, bytes, cols); });
  }
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512, InstructionSet::amx}) {
    const HostMath* math = find_host_math(set);
    if (math == nullptr || (only_path != "all" && only_path != math->name)) continue;
    for (const DType dtype :
         {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
      if (only_type != "all" && only_type != dtype_info(dtype).name) continue;
      std::printf("%-7s %-5s", math->name, std::string(dtype_info(dtype).name).c_str());
      for (const std::int32_t row_count : kRowCounts) {
        double best_rate = 0.0;
        for (std::int64_t round = 0; round < rounds; ++round) {
          std::int64_t bytes_each = 0;
          const double seconds = seconds_on_all(workers, [&](Worker& worker) {
            const std::int64_t multiplied = worker.multiply(*math, dtype, cols, row_count);
            if (&worker == workers.front().get()) bytes_each = multiplied;
          });
          best_rate = std::max(best_rate, static_cast<double>(thread_count * bytes_each) / seconds / 1e9);
        }
        std::printf("  %2d rows %6.2f", row_count, best_rate);
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
}
