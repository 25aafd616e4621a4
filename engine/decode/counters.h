// counters.h - what one generation, or one batch of them, did and how long it took. A counter is exact and has a test
// that moves it; a time is measured on the host clock unless said otherwise. Fields that nothing measured stay empty:
// absent is not zero.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/residency/pass_traffic.h"

namespace genai {

// Steps by the device's clock, each from its first operation to its last, and what they read from device memory:
// weights of the resident and ring lanes, and the keys and values that their rows see.
struct DeviceTime {
  std::uint64_t steps = 0;
  double seconds = 0.0;
  std::uint64_t read_bytes = 0;
};

struct DecodeCounters {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t prefill_passes = 0;
  std::uint64_t decode_steps = 0;
  std::uint64_t step_rows = 0;  // tokens taken on by all steps together

  std::uint64_t captures = 0;     // graphs recorded
  std::uint64_t replays = 0;      // graphs launched
  std::uint64_t graph_nodes = 0;  // operations in the graph of a step
  std::uint64_t eager_steps = 0;  // steps run as separate calls

  // Weights of matrices, in the steps of decoding and in the passes over the prompt: read by lane, copied by the ring.
  PassTraffic decode_traffic;
  PassTraffic prefill_traffic;

  std::uint64_t kv_growth_events = 0;

  std::optional<double> prefill_seconds;
  std::optional<double> decode_seconds;  // of steps, from the choice of their tokens to the choice of the next ones
  std::optional<double> time_to_first_token_seconds;
  std::vector<double> inter_token_seconds;  // between two tokens of one text
  DeviceTime device_time;
};

}  // namespace genai
