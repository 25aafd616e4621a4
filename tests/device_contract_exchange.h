// device_contract_exchange.h - the cases of device_contract.h about ask_host and take_answer: a thread of the test
// plays the host cores.
#pragma once
#include <atomic>
#include <thread>

#include "tests/device_contract_support.h"

namespace genai::test {

// Answers every request with result[i] = 2 * input[i] + job, for `width` floats a row.
class DoublingHost {
 public:
  DoublingHost(HostExchange& exchange, const float* input, float* result, std::int32_t width, std::uint64_t last)
      : thread_([=, &exchange] {
          for (std::uint64_t number = 1; number <= last; ++number) {
            while (std::atomic_ref(exchange.asked).load(std::memory_order_acquire) < number) std::this_thread::yield();
            for (std::int32_t i = 0; i < exchange.row_count * width; ++i)
              result[i] = 2.0f * input[i] + static_cast<float>(exchange.job);
            std::atomic_ref(exchange.answered).store(number, std::memory_order_release);
          }
        }) {}
  ~DoublingHost() { thread_.join(); }

 private:
  std::thread thread_;
};

// Three requests a launch, of which each reads what the one before it gave: stored, added, stored. Launched three times
// as a graph, and as often without one.
inline void host_answers_arrive_in_order(Device& device) {
  constexpr std::int32_t kWidth = 300;
  constexpr std::int32_t kRows = 3;
  constexpr std::int32_t kStride = kWidth + 20;
  constexpr std::size_t kFloats = kRows * kStride;
  constexpr std::size_t kSlots = 16;  // of 4 KiB at least
  Region local(device, kSlots, Placement::device);
  Region shared(device, kSlots, Placement::host);
  const Address values = local.at();
  const DevicePtr<std::uint64_t> count = local.at(32768).as<std::uint64_t>();
  const Address input = shared.at(1024);
  const Address result = shared.at(16384);
  VirtualMemory& memory = device.memory();
  const auto stream = device.create_stream();
  std::vector<float> expected(kFloats);
  for (std::size_t i = 0; i < kFloats; ++i) expected[i] = static_cast<float>(i % 17);
  stream->upload(values, expected.data(), kFloats * sizeof(float));
  stream->synchronize();

  const auto enqueue = [&](std::int32_t job, bool add) {
    device.kernels().ask_host(*stream, {.input = values.as<const float>(),
                                        .input_stride = kStride,
                                        .row_count = kRows,
                                        .width = kWidth,
                                        .host_input = input.as<float>(),
                                        .exchange = shared.at().as<HostExchange>(),
                                        .count = count,
                                        .job = job});
    TakeAnswerArgs answer{};
    answer.outputs[0] = {result.as<const float>(), kWidth, values.as<float>(), kStride};
    answer.output_count = 1;
    answer.row_count = kRows;
    answer.add = add;
    answer.exchange = shared.at().as<const HostExchange>();
    answer.count = count;
    device.kernels().take_answer(*stream, answer);
  };
  const auto enqueue_all = [&] {
    enqueue(1, false);
    enqueue(2, true);
    enqueue(3, false);
  };
  constexpr int kLaunches = 3;
  {
    const DoublingHost host(*reinterpret_cast<HostExchange*>(memory.host_view(shared.at())),
                            reinterpret_cast<const float*>(memory.host_view(input)),
                            reinterpret_cast<float*>(memory.host_view(result)), kWidth, 2 * kLaunches * 3);
    for (int launch = 0; launch < kLaunches; ++launch) enqueue_all();
    stream->begin_capture();
    enqueue_all();
    const auto graph = stream->end_capture();
    for (int launch = 0; launch < kLaunches; ++launch) stream->launch(*graph);
    stream->synchronize();
  }
  for (int launch = 0; launch < 2 * kLaunches; ++launch)
    for (std::int32_t m = 0; m < kRows; ++m)
      for (std::int32_t column = 0; column < kWidth; ++column) {
        float& value = expected[static_cast<std::size_t>(m * kStride + column)];
        value = 2.0f * value + 1.0f;
        value = value + (2.0f * value + 2.0f);
        value = 2.0f * value + 3.0f;
      }
  std::vector<float> found(kFloats);
  stream->download(found.data(), values, kFloats * sizeof(float));
  stream->synchronize();
  REQUIRE(found == expected);
}

}  // namespace genai::test
