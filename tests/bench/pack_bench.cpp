// pack_bench.cpp - how fast one core packs each type of weight, in bytes of the file a second: what bounds loading
// where it is below half of the read peak (genai_read_peak), since each byte is read once and written once.
//   genai_pack_bench [MEBIBYTES of the file, default 64]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/model/pack.h"
#include "engine/packed_layout.h"

using namespace genai;

int main(int argument_count, char** arguments) {
  constexpr std::int64_t kCols = 4096;
  const std::int64_t file_bytes = (argument_count > 1 ? std::atoll(arguments[1]) : 64) << 20;
  for (const DType dtype : {DType::F32, DType::F16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0,
                            DType::Q4_K, DType::Q5_K, DType::Q6_K}) {
    FileMatrix matrix{nullptr, dtype, 0, kCols};
    matrix.rows = file_bytes / file_row_bytes(matrix) / kStripRows * kStripRows;
    const std::int64_t strip_count = matrix.rows / kStripRows;
    // Any bytes are weights to the packer; all of both ranges is touched before the clock starts.
    const std::vector<std::byte> source(static_cast<std::size_t>(matrix.rows * file_row_bytes(matrix)),
                                        std::byte{0x5a});
    std::vector<std::byte> packed(static_cast<std::size_t>(strip_count * strip_bytes(dtype, kCols)), std::byte{1});
    matrix.data = source.data();
    double best_seconds = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto start = std::chrono::steady_clock::now();
      pack_strips({.first = matrix, .second = {}}, 0, strip_count, packed.data());
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (taken.count() < best_seconds) best_seconds = taken.count();
    }
    std::printf("%-5s %6.2f GB/s\n", std::string(dtype_info(dtype).name).c_str(),
                static_cast<double>(source.size()) / best_seconds / 1e9);
  }
}
