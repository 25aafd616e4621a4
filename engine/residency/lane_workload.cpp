#include "engine/residency/lane_workload.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace genai {
namespace {

constexpr std::size_t kPartAlignment = 256;
constexpr std::size_t kNoiseBytes = std::size_t{1} << 20;

std::size_t aligned(std::size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

std::size_t output_bytes_of(std::int64_t strips, std::int32_t rows) {
  return aligned(static_cast<std::size_t>(strips * rows) * kStripRows * sizeof(float));
}

std::size_t scratch_bytes_of(const Kernels& kernels, std::int32_t rows) {
  return kernels.scratch_bytes({.row_count = rows,
                                .input_width = kWorkloadWidth,
                                .head_count = 1,
                                .head_dim = kBlockWidth,
                                .max_positions = kChunkPositions});
}

std::vector<std::byte> make_noise() {
  std::vector<std::byte> noise(kNoiseBytes);
  std::uint64_t state = 12345;
  for (std::size_t i = 0; i < noise.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    noise[i] = static_cast<std::byte>(state >> 56);
    if (i % 2 == 1) noise[i] &= std::byte{0xbf};  // as a half, no infinity and no NaN
  }
  return noise;
}

struct SeriesLimits {
  std::size_t least_runs;
  std::size_t most_runs;
  double enough_seconds;
};

// Of each run of `body` once it has run for the first time.
std::vector<double> times_of_runs(const std::function<void()>& body, const SeriesLimits& limits) {
  using Clock = std::chrono::steady_clock;
  body();
  std::vector<double> runs;
  for (double total = 0.0;
       runs.size() < limits.least_runs || (total < limits.enough_seconds && runs.size() < limits.most_runs);) {
    const auto start = Clock::now();
    body();
    runs.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += runs.back();
  }
  return runs;
}

double median_of(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& enqueue) {
  stream.begin_capture();
  enqueue();
  return stream.end_capture();
}

}  // namespace

WorkloadVectors::WorkloadVectors(Device& device, ResidencyArena& arena, std::int64_t most_strips,
                                 std::int32_t most_rows)
    : kernels_(device.kernels()), output_bytes_(output_bytes_of(most_strips, most_rows)) {
  const std::size_t input_bytes = static_cast<std::size_t>(most_rows) * kInputBytes;
  const std::size_t total = aligned(input_bytes) + output_bytes_ + scratch_bytes_of(kernels_, most_rows);
  range_ = arena.reserve(MemoryKind::workspace, total);
  range_.commit(0, total);
  output_ = range_.base().byte_offset(static_cast<std::int64_t>(aligned(input_bytes)));
  scratch_ = output_.byte_offset(static_cast<std::int64_t>(output_bytes_));
  std::vector<float> values(input_bytes / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 17) - 2.0f;
  const std::unique_ptr<Stream> stream = device.create_stream();
  stream->upload(input(), values.data(), input_bytes);
  stream->synchronize();
}

MatmulArgs WorkloadVectors::product(DevicePtr<const std::byte> weights, std::int64_t strips, std::int64_t first_strip,
                                    std::int32_t row_count) const {
  const auto rows = static_cast<std::int32_t>(strips * kStripRows);
  MatmulArgs args{};
  args.input = input().as<float>();
  args.input_stride = kWorkloadWidth;
  args.row_count = row_count;
  args.outputs[0] = {
      .matrix = {.data = weights, .dtype = kWorkloadType, .rows = rows, .cols = kWorkloadWidth},
      .bias = {},
      .out = output_.as<float>() + first_strip * kStripRows,
      .out_stride = rows,
  };
  args.output_count = 1;
  args.epilogue = Epilogue::store;
  args.scratch = scratch_;
  return args;
}

void WorkloadVectors::multiply(Stream& stream, DevicePtr<const std::byte> weights, std::int64_t strips,
                               std::int64_t first_strip) {
  kernels_.matmul(stream, product(weights, strips, first_strip));
}

void WorkloadVectors::clear_output(Stream& stream) { stream.fill_zero(output_, output_bytes_); }

std::vector<float> WorkloadVectors::read_output(Stream& stream, std::int64_t strips) const {
  std::vector<float> values(static_cast<std::size_t>(strips) * kStripRows);
  stream.download(values.data(), output_, values.size() * sizeof(float));
  stream.synchronize();
  return values;
}

void fill_with_noise(Device& device, Stream& stream, DevicePtr<std::byte> begin, std::size_t bytes) {
  const std::vector<std::byte> noise = make_noise();
  const std::size_t piece_bytes = std::min(noise.size(), device.memory().granule_bytes());
  for (std::size_t offset = 0; offset < bytes; offset += piece_bytes) {
    const DevicePtr<std::byte> piece = begin.byte_offset(static_cast<std::int64_t>(offset));
    const std::size_t count = std::min(piece_bytes, bytes - offset);
    if (std::byte* view = device.memory().host_view(piece))
      std::memcpy(view, noise.data(), count);
    else
      stream.upload(piece, noise.data(), count);
  }
  stream.synchronize();
}

DevicePtr<const std::byte> host_address(Device& device, DevicePtr<std::byte> begin, std::size_t bytes) {
  const std::byte* const first = device.memory().host_view(begin);
  const std::byte* const last = device.memory().host_view(begin.byte_offset(static_cast<std::int64_t>(bytes) - 1));
  if (first == nullptr || last != first + bytes - 1) return {};
  return DevicePtr<const std::byte>(reinterpret_cast<std::uint64_t>(first));
}

double median_seconds(const std::function<void()>& body) {
  std::vector<double> runs = times_of_runs(body, {.least_runs = 3, .most_runs = 21, .enough_seconds = 0.08});
  return median_of(runs);
}

double median_graph_seconds(Stream& stream, const std::function<void()>& enqueue) {
  const std::unique_ptr<Graph> graph = capture(stream, enqueue);
  return median_seconds([&] {
    stream.launch(*graph);
    stream.synchronize();
  });
}

double mean_of_runs(std::vector<double> seconds) {
  const double most = 2.0 * median_of(seconds);
  double total = 0.0;
  for (const double run : seconds) total += std::min(run, most);
  return total / static_cast<double>(seconds.size());
}

double mean_graph_seconds(Stream& stream, const std::function<void()>& enqueue) {
  const std::unique_ptr<Graph> graph = capture(stream, enqueue);
  return mean_of_runs(times_of_runs(
      [&] {
        stream.launch(*graph);
        stream.synchronize();
      },
      {.least_runs = 5, .most_runs = 200, .enough_seconds = 0.12}));
}

}  // namespace genai
