// device_contract_exchange.h - the cases of device_contract.h about ask_host and take_answer: a thread of the test
// plays the host cores.
#pragma once
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/exact_math.h"
#include "engine/host/exchange_access.h"
#include "engine/host/math.h"
#include "tests/device_contract_support.h"

namespace genai::test {

// Answers every request with result[i] = 2 * input[i] + job, for `width` floats a row.
class DoublingHost {
 public:
  DoublingHost(const ExchangeWord* request, ExchangeWord* result, std::int32_t width, std::uint32_t last)
      : thread_([=] {
          for (std::uint32_t number = 1; number <= last; ++number) {
            const std::uint32_t header = wait_for(request[0], number);
            for (std::int32_t m = 0; m < row_count_of(header); ++m)
              for (std::int32_t i = 0; i < width; ++i) {
                const ExchangeWord& word = request[kHeaderWords + m * input_words(width, false) + i];
                const float value = 2.0f * bits_float(wait_for(word, number)) + static_cast<float>(job_of(header));
                store_word(result[m * width + i], exchange_word(float_bits(value), number));
              }
          }
        }) {}
  ~DoublingHost() { thread_.join(); }

 private:
  static std::uint32_t wait_for(const ExchangeWord& word, std::uint32_t number) {
    while (request_of(load_word(word)) != number) std::this_thread::yield();
    return data_of(load_word(word));
  }

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
  const DevicePtr<std::uint32_t> finished = local.at(32768).as<std::uint32_t>();
  const DevicePtr<ExchangeWord> request = shared.at().as<ExchangeWord>();
  const Address result = shared.at(32768);
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
                                        .norm_weight = {},
                                        .norm_epsilon = 0.0f,
                                        .quantize = false,
                                        .request = request,
                                        .finished = finished,
                                        .number = static_cast<std::uint32_t>(job),
                                        .job = job});
    TakeAnswerArgs answer{};
    answer.outputs[0] = {result.as<const ExchangeWord>(), kWidth, values.as<float>(), kStride};
    answer.output_count = 1;
    answer.row_count = kRows;
    answer.add = add;
    answer.finished = finished;
    answer.number = static_cast<std::uint32_t>(job);
    device.kernels().take_answer(*stream, answer);
  };
  const auto enqueue_all = [&] {
    enqueue(1, false);
    enqueue(2, true);
    enqueue(3, false);
    device.kernels().finish_requests(*stream, {.finished = finished, .count = 3});
  };
  constexpr int kLaunches = 3;
  {
    const DoublingHost host(reinterpret_cast<const ExchangeWord*>(memory.host_view(shared.at())),
                            reinterpret_cast<ExchangeWord*>(memory.host_view(result)), kWidth, 2 * kLaunches * 3);
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

// Normalised or not, quantised or not, whole tiles or less: what the scalar host computes, in words of the request.
inline void requests_hold_rows_as_the_host_prepares_them(Device& device) {
  constexpr std::int32_t kRows = 3;
  constexpr std::int32_t kStride = 5200;
  constexpr float kEpsilon = 1e-5f;
  Region local(device, 24, Placement::device);
  Region shared(device, 48, Placement::host);
  const Address values = local.at();
  const Address weights = local.at(4 * kRows * kStride);
  const Address finished = local.at(4 * (kRows + 1) * kStride);
  auto* const words = reinterpret_cast<ExchangeWord*>(device.memory().host_view(shared.at()));
  const auto stream = device.create_stream();
  std::vector<float> input(kRows * kStride), weight(kStride);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i * 7919 % 1009) / 64.0f - 8.0f;
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i * 31 % 97) / 48.0f - 0.5f;
  stream->upload(values, input.data(), input.size() * sizeof(float));
  stream->upload(weights, weight.data(), weight.size() * sizeof(float));
  std::uint32_t number = 0;
  for (const std::int32_t width : {32, 128, 300, 1024, 2080})
    for (const bool norm : {false, true})
      for (const bool quantize : {false, true}) {
        const std::uint32_t before = number++;
        stream->upload(finished, &before, sizeof before);
        device.kernels().ask_host(*stream, {.input = values.as<const float>(),
                                            .input_stride = kStride,
                                            .row_count = kRows,
                                            .width = width,
                                            .norm_weight = norm ? weights.as<const float>() : DevicePtr<const float>(),
                                            .norm_epsilon = kEpsilon,
                                            .quantize = quantize,
                                            .request = shared.at().as<ExchangeWord>(),
                                            .finished = finished.as<std::uint32_t>(),
                                            .number = 1,
                                            .job = 77});
        stream->synchronize();
        REQUIRE(load_word(words[0]) == exchange_word(request_header(77, kRows), number));
        const std::int64_t row_words = input_words(width, quantize);
        for (std::int32_t m = 0; m < kRows; ++m) {
          std::vector<float> row(static_cast<std::size_t>(padded_width(width)));
          std::copy_n(input.begin() + m * kStride, width, row.begin());
          if (norm) kScalarMath.rms_norm(row.data(), weight.data(), kEpsilon, width, row.data());
          std::vector<ActivationTile> tiles(row.size() / kTileWidth);
          kScalarMath.quantize_row(row.data(), width, tiles.data());
          std::vector<std::uint32_t> expected(static_cast<std::size_t>(row_words));
          const void* const source = quantize ? static_cast<const void*>(tiles.data()) : row.data();
          std::memcpy(expected.data(), source, expected.size() * sizeof expected[0]);
          for (std::int64_t i = 0; i < row_words; ++i)
            REQUIRE(load_word(words[kHeaderWords + m * row_words + i]) ==
                    exchange_word(expected[static_cast<std::size_t>(i)], number));
        }
      }
}

}  // namespace genai::test
