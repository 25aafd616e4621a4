// read_peak.cpp - how fast this machine's cores read memory: the roof for decoding on the host. Prints one JSON line.
//   genai_read_peak [THREADS] [MEBIBYTES] [REPEATS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

// Eight independent sums, so that loads and not additions are waited for.
std::uint64_t read_all(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t index = 0; index + 8 <= count; index += 8)
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += words[index + lane];
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::max(1, std::atoi(argv[1])) : static_cast<int>(std::thread::hardware_concurrency());
  const std::size_t mebibytes = argc > 2 ? static_cast<std::size_t>(std::max(1, std::atoi(argv[2]))) : 1024;
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  const std::size_t words_each = mebibytes * (std::size_t{1} << 20) / 8 / static_cast<std::size_t>(threads);
  std::vector<std::vector<std::uint64_t>> blocks(static_cast<std::size_t>(threads));
  std::vector<std::uint64_t> sums(blocks.size());
  const auto on_all_threads = [&](auto work) {
    std::vector<std::jthread> workers;
    for (std::size_t index = 0; index < blocks.size(); ++index) workers.emplace_back(work, index);
  };
  on_all_threads([&](std::size_t index) { blocks[index].assign(words_each, index + 1); });
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    on_all_threads([&](std::size_t index) { sums[index] += read_all(blocks[index].data(), words_each); });
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
