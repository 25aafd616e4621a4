// decoder_pair.h - a decoder (decoder_case.h) on the host and on a GPU, and steps of both compared: every vector is
// equal, eagerly and in a graph.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "tests/decoder_case.h"
#include "tests/kernels_cuda_support.h"

namespace genai::test {

class DecoderPair {
 public:
  static constexpr int kReplays = 3;

  // A tool that looks at each access (shared_memory_cuda_test.cpp) sees nothing else in more than one replay.
  explicit DecoderPair(const DecoderCase& shape, int replays = kReplays)
      : shape_(shape),
        replays_(replays),
        data_(decoder_data(shape)),
        host_(fast_host_device(), shape, data_),
        found_(cuda_device(), shape, data_) {
    found_.stream().begin_capture();
    found_.enqueue();
    graph_ = found_.stream().end_capture();
  }

  Decoder& host() { return host_; }
  Decoder& found() { return found_; }
  Graph& graph() { return *graph_; }

  // The step of `rows` with input `x` over a cache of `cache`, on the GPU once by calls, then by replays of the graph.
  // Returns what the host has then.
  DecoderState check_step(const std::vector<StepRow>& rows, const std::vector<float>& x,
                          const std::vector<std::byte>& cache) {
    host_.set_cache(cache);
    host_.set_input(rows.data(), x);
    host_.enqueue();
    const DecoderState expected = host_.state(rows[0]);

    found_.set_cache(cache);
    found_.set_input(rows.data(), x);
    found_.enqueue();
    check_states(expected, found_.state(rows[0]));

    found_.set_cache(cache);
    for (int replay = 0; replay < replays_; ++replay) {
      found_.set_input(rows.data(), x);
      found_.stream().launch(*graph_);
    }
    check_states(expected, found_.state(rows[0]));
    return expected;
  }

  // Steps of one row, the last sequence's, at these ascending positions, each over a cache that is full before it.
  void check_positions(const std::vector<std::int32_t>& positions) {
    Random random(shape_.seed);
    const std::int32_t sequence = shape_.sequences - 1;
    std::vector<std::byte> cache(host_.cache().size(), std::byte{0xff});  // NaN, where nobody has written
    std::int32_t written = 0;
    for (const std::int32_t position : positions) {
      INFO("position " << position);
      fill_cache(cache, shape_, sequence, written, position, random);
      written = position + 1;
      const StepRow row = {0, position, sequence, 0};
      const DecoderState state = check_step({row}, random.values(shape_.width), cache);
      std::copy(state.chunk.begin(), state.chunk.end(), cache.begin() + shape_.chunk_offset(row));
    }
  }

  // Every byte, unwritten ones too.
  void check_caches() { CHECK((host_.cache() == found_.cache())); }
  void check_guards() {
    CHECK(host_.guards_intact());
    CHECK(found_.guards_intact());
  }

 private:
  const DecoderCase shape_;
  const int replays_;
  const DecoderData data_;
  Decoder host_;
  Decoder found_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace genai::test
