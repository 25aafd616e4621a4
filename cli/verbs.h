// verbs.h - what genai can be asked to do: the first word of its command line.
#pragma once
#include <cstdint>
#include <string_view>

namespace genai::cli {

// Each a bit, so that the flags' table can say which verbs know a flag.
enum class Verb : std::uint8_t {
  run = 1,
  tokenize = 2,
  inspect = 4,
  plan = 8,
  perplexity = 16,
  verify = 32,
  bench = 64
};
inline constexpr Verb kVerbs[] = {Verb::run,        Verb::verify,  Verb::plan,    Verb::bench,
                                  Verb::perplexity, Verb::inspect, Verb::tokenize};
std::string_view verb_name(Verb verb);
std::string_view verb_summary(Verb verb);

}  // namespace genai::cli
