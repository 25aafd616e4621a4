// copy_peak.cpp - how fast this machine's cores copy a mapped file into fresh memory on huge pages, page faults and
// clearing included: the roof for loading a model that the page cache holds. Prints one JSON line.
//   genai_copy_peak FILE [THREADS] [REPEATS]
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
  if (argc < 2) return 2;
  const std::size_t threads =
      argc > 2 ? static_cast<std::size_t>(std::max(1, std::atoi(argv[2]))) : std::thread::hardware_concurrency();
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  const int file = ::open(argv[1], O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0 || status.st_size <= 0) {
    std::perror(argv[1]);
    return 1;
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const std::size_t room = (bytes + 2 * kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  std::vector<double> rates;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    void* const from = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    void* const to = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED || to == MAP_FAILED) {
      std::perror("mmap");
      return 1;
    }
    ::madvise(to, room, MADV_HUGEPAGE);
    {
      std::vector<std::jthread> workers;
      for (std::size_t index = 0; index < threads; ++index)
        workers.emplace_back([=] {
          const std::size_t begin = bytes / threads * index;
          const std::size_t end = index + 1 == threads ? bytes : begin + bytes / threads;
          std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
        });
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(static_cast<double>(bytes) / seconds / 1e9);
    ::munmap(from, bytes);
    ::munmap(to, room);
  }
  ::close(file);
  std::sort(rates.begin(), rates.end());
  std::printf("{\"threads\": %zu, \"bytes\": %zu, \"copy_gbps_median\": %.2f, \"copy_gbps_max\": %.2f}\n", threads,
              bytes, rates[rates.size() / 2], rates.back());
  return 0;
}
