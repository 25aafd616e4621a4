// rope_table.h - the angles of rotary position embedding, computed on the host once and uploaded. All in double and
// beyond with our own sine, cosine, exponential and logarithm (double_double.h), so that machines with different C
// libraries rotate by the same bits. Pure functions.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/double_double.h"

namespace genai {

enum class RopeScaling : std::uint8_t {
  none,
  linear,  // every frequency divided by `factor`
  yarn,    // high frequencies kept, low ones divided by `factor`, a ramp between them
};

struct RopeSpec {
  double base = 10000.0;
  std::int32_t rotated = 0;  // leading elements of a head that turn; even
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double original_context_tokens = 0.0;  // yarn: the length that the model was first trained for
  double beta_fast = 32.0;               // yarn: pairs that turn more often than this in that length are kept
  double beta_slow = 1.0;                // yarn: pairs that turn less often are divided
  double attention_factor = 1.0;         // multiplies cosine and sine; yarn adds 1 + ln(factor) / 10 by itself
  // Divisors of the frequencies, one a pair; empty: none. (Llama 3.1 and later bring them as a tensor.)
  std::vector<float> frequency_factors;

  bool operator==(const RopeSpec&) const = default;
};

// Angle per position of each pair, in radians. REQUIRES: the spec makes sense (model_config checks files).
std::vector<DoubleDouble> rope_frequencies(const RopeSpec& spec);

// What cosines and sines are multiplied by.
double rope_magnitude(const RopeSpec& spec);

// Fills out[(position - first_position) * rotated + 2 * pair] with the cosine, and the float after it with the sine.
// REQUIRES: out.size() == position_count * rotated.
void fill_rope_table(const RopeSpec& spec, std::int64_t first_position, std::int64_t position_count,
                     std::span<float> out);

}  // namespace genai
