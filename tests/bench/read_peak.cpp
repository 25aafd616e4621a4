// read_peak.cpp - how fast this machine's cores read MEBIBYTES of memory again and again: the roof for decoding with so
// many bytes of weights on the host, caches included. Prints one JSON line.
//   genai_read_peak [THREADS] [MEBIBYTES] [REPEATS]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Line = std::uint64_t __attribute__((vector_size(64)));
constexpr std::size_t kLineWords = sizeof(Line) / sizeof(std::uint64_t);
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kAheadWords = 2048;  // as far as the kernels ask ahead

// A cache line at a time, with the widest registers there are: loads of 8 bytes reach half of what the caches give.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
std::uint64_t
read_all(const std::uint64_t* words, std::size_t count) {
  Line sums[4] = {};
  for (std::size_t index = 0; index + 4 * kLineWords <= count; index += 4 * kLineWords) {
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < 4; ++lane) {
      __builtin_prefetch(words + index + lane * kLineWords + kAheadWords, 0, 2);
      Line line;
      std::memcpy(&line, words + index + lane * kLineWords, sizeof line);
      sums[lane] += line;
    }
  }
  const Line sum = sums[0] + sums[1] + sums[2] + sums[3];
  std::uint64_t total = 0;
  for (std::size_t word = 0; word < kLineWords; ++word) total += sum[word];
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::max(1, std::atoi(argv[1])) : static_cast<int>(std::thread::hardware_concurrency());
  const std::size_t mebibytes = argc > 2 ? static_cast<std::size_t>(std::max(1, std::atoi(argv[2]))) : 1024;
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  const std::size_t words_each = mebibytes * (std::size_t{1} << 20) / 8 / static_cast<std::size_t>(threads);
  const std::size_t bytes_each = (words_each * 8 + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::vector<std::unique_ptr<std::uint64_t, decltype(&std::free)>> blocks;
  for (int index = 0; index < threads; ++index) {
    blocks.emplace_back(static_cast<std::uint64_t*>(std::aligned_alloc(kHugePageBytes, bytes_each)), &std::free);
    if (blocks.back() == nullptr) return 1;
    madvise(blocks.back().get(), bytes_each, MADV_HUGEPAGE);  // as the weights lie; refused where there are none
  }
  std::vector<std::uint64_t> sums(blocks.size());
  const auto on_all_threads = [&](auto work) {
    std::vector<std::jthread> workers;
    for (std::size_t index = 0; index < blocks.size(); ++index) workers.emplace_back(work, index);
  };
  on_all_threads([&](std::size_t index) { std::fill_n(blocks[index].get(), words_each, index + 1); });
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    on_all_threads([&](std::size_t index) { sums[index] += read_all(blocks[index].get(), words_each); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(static_cast<double>(words_each * 8 * blocks.size()) / seconds / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  std::uint64_t check = 0;
  for (const std::uint64_t sum : sums) check += sum;
  std::printf(
      "{\"threads\": %d, \"mebibytes\": %zu, \"read_gbps_median\": %.2f, \"read_gbps_max\": %.2f, \"check\": %llu}\n",
      threads, mebibytes, rates[rates.size() / 2], rates.back(), static_cast<unsigned long long>(check));
  return 0;
}
