#include "engine/host/host_exchange.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/exact_math.h"
#include "engine/host/exchange_access.h"
#include "engine/host/host_pointer.h"

namespace genai {

void run_ask_host(const AskHostArgs& args, const HostMath& math) {
  const std::uint32_t number = *host(args.finished) + args.number;
  ExchangeWord* word = host(args.request) + kHeaderWords;
  const std::int64_t words = input_words(args.width, args.quantize);
  std::vector<float> row(static_cast<std::size_t>(padded_width(args.width)));
  std::vector<ActivationTile> tiles(static_cast<std::size_t>(padded_width(args.width) / kTileWidth));
  for (std::int64_t m = 0; m < args.row_count; ++m) {
    const float* input = host(args.input) + m * args.input_stride;
    if (args.norm_weight) {
      math.rms_norm(input, host(args.norm_weight), args.norm_epsilon, args.width, row.data());
    } else {
      std::copy_n(input, args.width, row.data());
    }
    if (args.quantize) math.quantize_row(row.data(), args.width, tiles.data());
    const std::byte* const data = args.quantize ? reinterpret_cast<const std::byte*>(tiles.data())
                                                : reinterpret_cast<const std::byte*>(row.data());
    for (std::int64_t i = 0; i < words; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, data + 4 * i, sizeof bits);
      store_word(*word++, exchange_word(bits, number));
    }
  }
  store_word(*host(args.request), exchange_word(request_header(args.job, args.row_count), number));
}

void run_take_answer(const TakeAnswerArgs& args) {
  const std::uint32_t number = *host(args.finished) + args.number;
  for (int i = 0; i < args.output_count; ++i) {
    const TakeAnswerArgs::Output& output = args.outputs[i];
    const ExchangeWord* result = host(output.result);
    for (std::int64_t m = 0; m < args.row_count; ++m) {
      float* out = host(output.out) + m * output.out_stride;
      for (std::int32_t column = 0; column < output.width; ++column) {
        ExchangeWord word = load_word(*result);
        for (; request_of(word) != number; word = load_word(*result)) std::this_thread::yield();
        ++result;
        const float value = bits_float(data_of(word));
        out[column] = args.add ? out[column] + value : value;
      }
    }
  }
}

}  // namespace genai
