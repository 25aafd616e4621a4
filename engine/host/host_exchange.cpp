#include "engine/host/host_exchange.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/host/host_pointer.h"

namespace genai {

void run_ask_host(const AskHostArgs& args) {
  for (std::int64_t m = 0; m < args.row_count; ++m)
    std::copy_n(host(args.input) + m * args.input_stride, args.width, host(args.host_input) + m * args.width);
  HostExchange& exchange = *host(args.exchange);
  exchange.job = args.job;
  exchange.row_count = args.row_count;
  const std::uint64_t number = *host(args.count) + 1;
  *host(args.count) = number;
  std::atomic_ref(exchange.asked).store(number, std::memory_order_release);
}

void run_take_answer(const TakeAnswerArgs& args) {
  const std::uint64_t number = *host(args.count);
  std::uint64_t& answered = const_cast<std::uint64_t&>(host(args.exchange)->answered);  // atomic_ref takes no const
  while (std::atomic_ref(answered).load(std::memory_order_acquire) < number) std::this_thread::yield();
  for (int i = 0; i < args.output_count; ++i) {
    const TakeAnswerArgs::Output& output = args.outputs[i];
    for (std::int64_t m = 0; m < args.row_count; ++m) {
      const float* result = host(output.result) + m * output.width;
      float* out = host(output.out) + m * output.out_stride;
      for (std::int32_t column = 0; column < output.width; ++column)
        out[column] = args.add ? out[column] + result[column] : result[column];
    }
  }
}

}  // namespace genai
