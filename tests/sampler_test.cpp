#include "engine/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/log_probability.h"
#include "engine/decode/random.h"
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/sampler_reference.h"

using namespace genai;
using genai::test::made_logits;
using genai::test::reference_distribution;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<std::int32_t> kNoHistory;

// Everything off and temperature 1: the model's own distribution.
SamplerSettings plain() {
  SamplerSettings settings;
  settings.temperature = 1.0;
  settings.top_k = 0;
  settings.top_p = 1.0;
  settings.min_p = 0.0;
  return settings;
}

void require_equal(std::span<const TokenProbability> actual, const std::vector<TokenProbability>& expected) {
  std::vector<TokenProbability> visible;
  for (const TokenProbability& each : actual)
    if (each.probability > 1e-300) visible.push_back(each);
  REQUIRE(visible.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(visible[i].token == expected[i].token);
    REQUIRE(visible[i].probability == Approx(expected[i].probability).epsilon(1e-10));
  }
}

std::vector<std::int32_t> tokens_of(std::span<const TokenProbability> distribution) {
  std::vector<std::int32_t> tokens;
  for (const TokenProbability& each : distribution) tokens.push_back(each.token);
  return tokens;
}

void require_refused(void (*change)(SamplerSettings&), const std::string& name) {
  SamplerSettings settings;
  change(settings);
  INFO(name);
  REQUIRE_THROWS_AS(settings.validate(), UsageError);
  REQUIRE_THROWS_AS(Sampler(settings), UsageError);
  try {
    settings.validate();
  } catch (const UsageError& error) {
    REQUIRE(std::string(error.what()).find(name + " is ") == 0);
  }
}

// Draws at positions 0 .. draw_count - 1, counted by token, against the probabilities: Pearson's chi-square, over
// tokens of which at least 5 are expected. The limit is six standard deviations above the mean.
void require_drawn_as(const std::vector<float>& logits, const SamplerSettings& settings,
                      const std::vector<double>& probabilities, int draw_count, std::uint64_t sequence = 0) {
  Sampler sampler(settings);
  std::vector<int> counts(logits.size());
  for (int position = 0; position < draw_count; ++position) {
    const std::int32_t token = sampler.choose(logits, kNoHistory, sequence, static_cast<std::uint64_t>(position));
    REQUIRE(static_cast<std::size_t>(token) < logits.size());
    ++counts[static_cast<std::size_t>(token)];
  }
  double chi_square = 0.0;
  int cells = 0;
  double rare_expected = 0.0;
  double rare_count = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double expected = probabilities[i] * draw_count;
    if (probabilities[i] == 0.0) REQUIRE(counts[i] == 0);
    if (expected < 5.0) {
      rare_expected += expected;
      rare_count += counts[i];
      continue;
    }
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rare_expected >= 5.0) {
    chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
    ++cells;
  } else {
    REQUIRE(rare_count <= 25.0);
  }
  const double freedom = std::max(cells - 1, 1);
  INFO("chi-square " << chi_square << " with " << freedom << " degrees of freedom");
  REQUIRE(chi_square < freedom + 6.0 * std::sqrt(2.0 * freedom));
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(p > 0 ? static_cast<float>(std::log(p)) : -kInfinity);
  return logits;
}

}  // namespace

TEST_CASE("sampler settings out of range are usage errors that name the setting") {
  SamplerSettings().validate();
  plain().validate();
  require_refused([](SamplerSettings& s) { s.temperature = NAN; }, "temperature");
  require_refused([](SamplerSettings& s) { s.temperature = -0.1; }, "temperature");
  require_refused([](SamplerSettings& s) { s.temperature = HUGE_VAL; }, "temperature");
  require_refused([](SamplerSettings& s) { s.top_k = -1; }, "top_k");
  require_refused([](SamplerSettings& s) { s.top_p = NAN; }, "top_p");
  require_refused([](SamplerSettings& s) { s.top_p = 1.01; }, "top_p");
  require_refused([](SamplerSettings& s) { s.top_p = -0.01; }, "top_p");
  require_refused([](SamplerSettings& s) { s.min_p = NAN; }, "min_p");
  require_refused([](SamplerSettings& s) { s.min_p = 1.5; }, "min_p");
  require_refused([](SamplerSettings& s) { s.typical_p = -1; }, "typical_p");
  require_refused([](SamplerSettings& s) { s.typical_p = NAN; }, "typical_p");
  require_refused([](SamplerSettings& s) { s.repeat_penalty = 0; }, "repeat_penalty");
  require_refused([](SamplerSettings& s) { s.repeat_penalty = -1; }, "repeat_penalty");
  require_refused([](SamplerSettings& s) { s.repeat_penalty = NAN; }, "repeat_penalty");
  require_refused([](SamplerSettings& s) { s.repeat_penalty = HUGE_VAL; }, "repeat_penalty");
  require_refused([](SamplerSettings& s) { s.repeat_last_n = -2; }, "repeat_last_n");
  require_refused([](SamplerSettings& s) { s.presence_penalty = NAN; }, "presence_penalty");
  require_refused([](SamplerSettings& s) { s.presence_penalty = -HUGE_VAL; }, "presence_penalty");
  require_refused([](SamplerSettings& s) { s.frequency_penalty = NAN; }, "frequency_penalty");
  require_refused([](SamplerSettings& s) { s.frequency_penalty = HUGE_VAL; }, "frequency_penalty");
}

TEST_CASE("greedy takes the highest logit and the lowest token among equals") {
  for (std::size_t count = 1; count < 40; ++count)
    for (std::size_t best = 0; best < count; ++best) {
      std::vector<float> logits(count, -3.0f);
      logits[best] = 2.0f;
      logits[count - 1] = std::max(logits[count - 1], 2.0f);
      REQUIRE(Sampler(SamplerSettings()).sample(logits, kNoHistory, 0, 0).token == static_cast<std::int32_t>(best));
    }
  const std::vector<float> zeros = {-1.0f, -0.0f, 0.0f};
  REQUIRE(Sampler(SamplerSettings()).choose(zeros, kNoHistory, 0, 0) == 1);
}

TEST_CASE("a NaN logit never wins and a row without a finite winner is an error") {
  for (const double temperature : {0.0, 1.0}) {
    SamplerSettings settings = plain();
    settings.temperature = temperature;
    Sampler sampler(settings);
    for (std::uint64_t position = 0; position < 200; ++position) {
      REQUIRE(sampler.choose(std::vector<float>{kNan, 1.0f, kNan}, kNoHistory, 0, position) == 1);
      REQUIRE(sampler.choose(std::vector<float>{-kNan, -kInfinity, -3e38f}, kNoHistory, 0, position) == 2);
    }
    REQUIRE_THROWS_AS(sampler.sample(std::vector<float>(20, kNan), kNoHistory, 0, 0), Error);
    REQUIRE_THROWS_AS(sampler.sample(std::vector<float>(20, -kInfinity), kNoHistory, 0, 0), Error);
    REQUIRE_THROWS_AS(sampler.sample(std::vector<float>{1.0f, kInfinity, kNan}, kNoHistory, 0, 0), Error);
    REQUIRE_THROWS_AS(sampler.sample(std::vector<float>{kNan, -kInfinity}, kNoHistory, 0, 0), Error);
    REQUIRE_THROWS_AS(sampler.sample(std::vector<float>{}, kNoHistory, 0, 0), Error);
  }
}

TEST_CASE("the choice carries its log probability in the model's own distribution") {
  SamplerSettings settings = plain();
  settings.temperature = 3.0;
  settings.top_k = 2;
  settings.presence_penalty = 1.0;
  Sampler sampler(settings);
  const std::vector<float> logits = logits_of({0.5, 0.25, 0.125, 0.125});
  const std::vector<std::int32_t> history = {0, 1};
  for (std::uint64_t position = 0; position < 50; ++position) {
    const Choice choice = sampler.sample(logits, history, 0, position);
    REQUIRE(choice.log_probability == Approx(static_cast<double>(logits[static_cast<std::size_t>(choice.token)])));
    REQUIRE(choice.token == sampler.choose(logits, history, 0, position));
  }
}

TEST_CASE("every filter keeps what a full sort in double keeps") {
  struct Change {
    const char* name;
    void (*apply)(SamplerSettings&);
  };
  const Change changes[] = {
      {"nothing", [](SamplerSettings&) {}},
      {"top_k 1", [](SamplerSettings& s) { s.top_k = 1; }},
      {"top_k 5", [](SamplerSettings& s) { s.top_k = 5; }},
      {"top_k 40", [](SamplerSettings& s) { s.top_k = 40; }},
      {"top_k 700", [](SamplerSettings& s) { s.top_k = 700; }},
      {"top_p 0", [](SamplerSettings& s) { s.top_p = 0.0; }},
      {"top_p 0.3", [](SamplerSettings& s) { s.top_p = 0.3; }},
      {"top_p 0.95", [](SamplerSettings& s) { s.top_p = 0.95; }},
      {"top_p 0.9999999", [](SamplerSettings& s) { s.top_p = 0.9999999; }},
      {"min_p 0.05", [](SamplerSettings& s) { s.min_p = 0.05; }},
      {"min_p 0.9", [](SamplerSettings& s) { s.min_p = 0.9; }},
      {"min_p 1", [](SamplerSettings& s) { s.min_p = 1.0; }},
      {"typical 0", [](SamplerSettings& s) { s.typical_p = 0.0; }},
      {"typical 0.2", [](SamplerSettings& s) { s.typical_p = 0.2; }},
      {"typical 0.9", [](SamplerSettings& s) { s.typical_p = 0.9; }},
      {"temperature 0.3", [](SamplerSettings& s) { s.temperature = 0.3; }},
      {"temperature 7", [](SamplerSettings& s) { s.temperature = 7.0; }},
      {"the defaults", [](SamplerSettings& s) { s = SamplerSettings{.temperature = 0.8}; }},
      {"greedy", [](SamplerSettings& s) { s = SamplerSettings(); }},
      {"all",
       [](SamplerSettings& s) {
         s = {.temperature = 0.7,
              .top_k = 60,
              .typical_p = 0.951,
              .top_p = 0.903,
              .min_p = 0.02,
              .repeat_penalty = 1.2,
              .repeat_last_n = 16,
              .presence_penalty = 0.3,
              .frequency_penalty = -0.1,
              .seed = 1};
       }},
  };
  for (const Change& change : changes)
    for (const std::size_t count : {1u, 2u, 3u, 17u, 320u, 5003u})
      for (const double spread : {0.1, 6.0, 40.0})
        for (const double step : {0.0, 0.5}) {
          SamplerSettings settings = plain();
          change.apply(settings);
          const std::vector<float> logits = made_logits(count, count, spread, step);
          std::vector<std::int32_t> history;
          for (std::size_t i = 0; i < 50; ++i) history.push_back(static_cast<std::int32_t>((i * i) % count));
          INFO(change.name << ", vocabulary " << count << ", spread " << spread << ", step " << step);
          Sampler sampler(settings);
          require_equal(sampler.distribution(logits, history), reference_distribution(logits, history, settings));
        }
}

TEST_CASE("equal logits are kept by rank of token") {
  const std::vector<float> level(1000, 0.25f);
  SamplerSettings settings = plain();
  settings.top_k = 3;
  REQUIRE(tokens_of(Sampler(settings).distribution(level, kNoHistory)) == std::vector<std::int32_t>{0, 1, 2});
  settings = plain();
  settings.top_p = 0.0039;
  REQUIRE(tokens_of(Sampler(settings).distribution(level, kNoHistory)) == std::vector<std::int32_t>{0, 1, 2, 3});
  settings = plain();
  settings.typical_p = 0.0015;
  REQUIRE(tokens_of(Sampler(settings).distribution(level, kNoHistory)) == std::vector<std::int32_t>{0, 1});
  settings = plain();
  settings.min_p = 1.0;
  REQUIRE(Sampler(settings).distribution(level, kNoHistory).size() == 1000);
  std::vector<float> rising = level;
  for (std::size_t i = 500; i < 1000; ++i) rising[i] = 1.0f;
  settings = plain();
  settings.top_k = 2;
  REQUIRE(tokens_of(Sampler(settings).distribution(rising, kNoHistory)) == std::vector<std::int32_t>{500, 501});
}

TEST_CASE("a filter that is off changes no draw") {
  const std::vector<float> logits = made_logits(320, 9, 8.0);
  Sampler reference(plain());
  std::vector<SamplerSettings> variants(5, plain());
  variants[0].top_k = 320;
  variants[1].top_k = 1000000;
  variants[2].top_p = 1.0;
  variants[3].repeat_last_n = 0;
  variants[3].repeat_penalty = 2.0;
  variants[4].repeat_last_n = -1;
  const std::vector<std::int32_t> history = {3, 4, 5};
  for (const SamplerSettings& settings : variants) {
    Sampler sampler(settings);
    for (std::uint64_t position = 0; position < 500; ++position)
      REQUIRE(sampler.choose(logits, history, 1, position) == reference.choose(logits, history, 1, position));
  }
}

TEST_CASE("top_k = 1, a temperature near 0 and min_p = 1 equal greedy") {
  Sampler greedy{SamplerSettings()};
  std::vector<SamplerSettings> variants(4, plain());
  variants[0].top_k = 1;
  variants[1].temperature = 1e-300;
  variants[2].min_p = 1.0;
  variants[3].top_p = 0.0;
  for (const SamplerSettings& settings : variants) {
    Sampler sampler(settings);
    for (std::uint64_t position = 0; position < 200; ++position) {
      const std::vector<float> logits = made_logits(777, position, 10.0);
      REQUIRE(sampler.choose(logits, kNoHistory, 0, position) == greedy.choose(logits, kNoHistory, 0, position));
    }
  }
}

TEST_CASE("a huge temperature draws evenly from what the filters left") {
  SamplerSettings settings = plain();
  settings.temperature = 1e300;
  settings.top_k = 8;
  const std::vector<float> logits = made_logits(100, 4, 60.0);
  Sampler sampler(settings);
  std::vector<double> probabilities(100, 0.0);
  for (const TokenProbability& each : sampler.distribution(logits, kNoHistory)) {
    REQUIRE(each.probability == 0.125);
    probabilities[static_cast<std::size_t>(each.token)] = 0.125;
  }
  require_drawn_as(logits, settings, probabilities, 20000);
}

TEST_CASE("filters look at probabilities before the temperature") {
  SamplerSettings settings = plain();
  settings.temperature = 100.0;
  settings.top_p = 0.7;
  const std::vector<float> logits = logits_of({0.1, 0.6, 0.2, 0.1});
  REQUIRE(tokens_of(Sampler(settings).distribution(logits, kNoHistory)) == std::vector<std::int32_t>{1, 2});
}

TEST_CASE("penalties move exactly the tokens of the window") {
  std::vector<float> logits = {2.0f, -2.0f, 0.0f, 1.0f, 3.0f, 1.0f};
  const std::vector<std::int32_t> history = {5, 5, 4, 0, 1, 0, 2, 0};
  const auto moved = [&](const SamplerSettings& settings) {
    Sampler sampler(settings);
    std::vector<double> log_p;
    for (const TokenProbability& each : sampler.distribution(logits, history))
      log_p.push_back(std::log(each.probability));
    REQUIRE(log_p.size() == logits.size());
    std::vector<double> change;  // against token 3, which is not in the history
    for (std::size_t i = 0; i < log_p.size(); ++i)
      change.push_back(log_p[i] - log_p[3] - static_cast<double>(logits[i] - logits[3]));
    return change;
  };
  const auto require_change = [&](const SamplerSettings& settings, const std::vector<double>& expected) {
    const std::vector<double> change = moved(settings);
    for (std::size_t i = 0; i < expected.size(); ++i) REQUIRE(change[i] == Approx(expected[i]).margin(1e-6));
  };
  SamplerSettings settings = plain();
  settings.repeat_penalty = 2.0;
  settings.repeat_last_n = 5;  // 0 1 0 2 0
  require_change(settings, {-1.0, -2.0, 0.0, 0.0, 0.0, 0.0});
  settings.repeat_last_n = 6;  // and 4
  require_change(settings, {-1.0, -2.0, 0.0, 0.0, -1.5, 0.0});
  settings.repeat_last_n = -1;
  require_change(settings, {-1.0, -2.0, 0.0, 0.0, -1.5, -0.5});
  settings.repeat_last_n = 1000;
  require_change(settings, {-1.0, -2.0, 0.0, 0.0, -1.5, -0.5});
  settings.repeat_last_n = 0;
  require_change(settings, {0.0, 0.0, 0.0, 0.0, 0.0, 0.0});
  settings.repeat_last_n = -1;
  settings.repeat_penalty = 1.0;
  settings.presence_penalty = 0.5;
  require_change(settings, {-0.5, -0.5, -0.5, 0.0, -0.5, -0.5});
  settings.frequency_penalty = 0.25;
  require_change(settings, {-1.25, -0.75, -0.75, 0.0, -0.75, -1.0});
  settings.presence_penalty = 0.0;
  settings.frequency_penalty = -1.0;
  require_change(settings, {3.0, 1.0, 1.0, 0.0, 1.0, 2.0});
}

TEST_CASE("a sampler forgets the penalties of the last call") {
  SamplerSettings settings = plain();
  settings.frequency_penalty = 1.0;
  Sampler used(settings);
  const std::vector<float> logits = made_logits(320, 2, 4.0);
  const std::vector<std::int32_t> first = {1, 2, 3, 3, 3};
  const std::vector<std::int32_t> second = {3, 7};
  used.choose(logits, first, 0, 0);
  const std::vector<float> short_row = made_logits(10, 2, 4.0);
  used.choose(short_row, second, 0, 0);
  require_equal(used.distribution(logits, second), reference_distribution(logits, second, settings));
}

TEST_CASE("penalties apply to greedy and a history outside the vocabulary is refused") {
  SamplerSettings settings;
  REQUIRE(settings.is_plain_greedy());
  settings.repeat_penalty = 2.0;
  REQUIRE_FALSE(settings.is_plain_greedy());
  Sampler sampler(settings);
  const std::vector<float> logits = {3.0f, 2.0f};
  REQUIRE(sampler.sample(logits, kNoHistory, 0, 0).token == 0);
  REQUIRE(sampler.sample(logits, std::vector<std::int32_t>{0}, 0, 0).token == 1);
  REQUIRE_THROWS_AS(sampler.sample(logits, std::vector<std::int32_t>{2}, 0, 0), Error);
  REQUIRE_THROWS_AS(sampler.sample(logits, std::vector<std::int32_t>{-1}, 0, 0), Error);
  settings.repeat_last_n = 0;
  REQUIRE(settings.is_plain_greedy());
  settings.temperature = 0.1;
  REQUIRE_FALSE(settings.is_plain_greedy());
}

TEST_CASE("penalties beyond the range of a float saturate") {
  SamplerSettings settings = plain();
  settings.repeat_penalty = 1e-300;
  Sampler sampler(settings);
  REQUIRE(sampler.choose(std::vector<float>{1.0f, 2.0f}, std::vector<std::int32_t>{0}, 0, 0) == 0);
  settings = plain();
  settings.presence_penalty = 1e300;
  Sampler other(settings);
  REQUIRE(other.choose(std::vector<float>{1.0f, 2.0f}, std::vector<std::int32_t>{0, 1}, 0, 0) >= 0);
}

TEST_CASE("tokens are drawn as often as their probability says") {
  const std::vector<std::vector<double>> distributions = {
      {0.5, 0.5},
      {0.25, 0.75},
      {0.9, 0.1},
      {0.001, 0.999},
      {0.999, 0.001},
      {0.1, 0.2, 0.3, 0.4},
      {0.4, 0.3, 0.2, 0.1},
      {0.0, 0.0, 0.0, 1.0},
      {1.0, 0.0, 0.0, 0.0},
      {0.0, 0.5, 0.0, 0.5},
      {0.7, 0.1, 0.1, 0.01, 0.02, 0.03, 0.04},
      std::vector<double>(320, 1.0 / 320),
  };
  for (const std::vector<double>& probabilities : distributions)
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}})
      for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{15}}) {
        SamplerSettings settings = plain();
        settings.seed = seed;
        INFO("first probability " << probabilities[0] << ", seed " << seed << ", sequence " << sequence);
        require_drawn_as(logits_of(probabilities), settings, probabilities, 20000, sequence);
      }
}

TEST_CASE("one heavy token at the end of a vocabulary of light ones is drawn half of the time") {
  for (const std::size_t heavy : {std::size_t{0}, std::size_t{511}, std::size_t{512}, std::size_t{1999}}) {
    std::vector<double> probabilities(2000, 0.5 / 1999);
    probabilities[heavy] = 0.5;
    require_drawn_as(logits_of(probabilities), plain(), probabilities, 20000);
  }
}

TEST_CASE("draws over many sequences at one position follow the distribution too") {
  const std::vector<float> logits = logits_of({0.1, 0.2, 0.3, 0.4});
  Sampler sampler(plain());
  std::vector<double> share(4);
  for (std::uint64_t sequence = 0; sequence < 20000; ++sequence)
    share[static_cast<std::size_t>(sampler.choose(logits, kNoHistory, sequence, 12))] += 1.0 / 20000;
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(share[i] == Approx(0.1 * static_cast<double>(i + 1)).margin(0.02));
}

TEST_CASE("filtered and tempered draws follow the renormalised distribution") {
  SamplerSettings settings = SamplerSettings{.temperature = 0.8};
  settings.typical_p = 0.97;
  const std::vector<float> logits = made_logits(320, 21, 9.0);
  Sampler sampler(settings);
  std::vector<double> probabilities(320);
  for (const TokenProbability& each : reference_distribution(logits, kNoHistory, settings))
    probabilities[static_cast<std::size_t>(each.token)] = each.probability;
  require_drawn_as(logits, settings, probabilities, 40000);
}

TEST_CASE("the choice depends on seed, sequence and position and not on the order of evaluation") {
  SamplerSettings settings = SamplerSettings{.temperature = 1.0};
  settings.seed = 7;
  settings.repeat_penalty = 1.1;
  const std::vector<std::int32_t> history = {1, 5, 9};
  constexpr std::uint64_t kSequences = 8;
  constexpr std::uint64_t kPositions = 40;
  const auto logits_at = [](std::uint64_t sequence, std::uint64_t position) {
    return made_logits(97, 1000 * sequence + position, 5.0);
  };
  std::vector<Choice> alone;
  for (std::uint64_t sequence = 0; sequence < kSequences; ++sequence) {
    Sampler sampler(settings);
    for (std::uint64_t position = 0; position < kPositions; ++position)
      alone.push_back(sampler.sample(logits_at(sequence, position), history, sequence, position));
  }
  Sampler shared(settings);
  for (std::uint64_t position = kPositions; position-- > 0;)
    for (std::uint64_t sequence = kSequences; sequence-- > 0;) {
      const Choice choice = shared.sample(logits_at(sequence, position), history, sequence, position);
      const Choice& expected = alone[sequence * kPositions + position];
      REQUIRE(choice.token == expected.token);
      REQUIRE(std::memcmp(&choice.log_probability, &expected.log_probability, sizeof(double)) == 0);
    }
  // The same row of logits: other seeds, sequences and positions draw other tokens.
  const std::vector<float> row = made_logits(97, 1, 1.0);
  int different[3] = {};
  for (std::uint64_t i = 0; i < 100; ++i) {
    SamplerSettings other = plain();
    const std::int32_t base = Sampler(other).choose(row, kNoHistory, 3, 100);
    different[0] += base != Sampler(other).choose(row, kNoHistory, 4 + i, 100);
    different[1] += base != Sampler(other).choose(row, kNoHistory, 3, 101 + i);
    other.seed = 1 + i;
    different[2] += base != Sampler(other).choose(row, kNoHistory, 3, 100);
  }
  for (const int count : different) REQUIRE(count > 80);
}

TEST_CASE("a large vocabulary keeps the same tokens as a full sort") {
  const std::size_t count = 262144;
  for (const double spread : {1.0, 12.0}) {
    std::vector<float> logits = made_logits(count, 5, spread);
    SamplerSettings settings = SamplerSettings{.temperature = 0.9};
    for (const std::int32_t top_k : {0, 1, 40, 5000}) {
      settings.top_k = top_k;
      INFO("spread " << spread << ", top_k " << top_k);
      require_equal(Sampler(settings).distribution(logits, kNoHistory),
                    reference_distribution(logits, kNoHistory, settings));
    }
    // Ascending logits are the worst case of a partial selection.
    std::sort(logits.begin(), logits.end());
    settings.top_k = 40;
    require_equal(Sampler(settings).distribution(logits, kNoHistory),
                  reference_distribution(logits, kNoHistory, settings));
  }
}

TEST_CASE("draws and log probabilities have the bits of every other machine") {
  std::uint64_t hash = 0;
  for (const std::size_t count : {5u, 320u, 4099u}) {
    SamplerSettings settings = {.temperature = 0.8,
                                .top_k = 200,
                                .typical_p = 0.98,
                                .top_p = 0.97,
                                .min_p = 0.01,
                                .repeat_penalty = 1.15,
                                .repeat_last_n = -1,
                                .presence_penalty = 0.1,
                                .frequency_penalty = 0.05,
                                .seed = 123456789012345ull};
    for (const double temperature : {0.8, 1.0, 1.3}) {
      settings.temperature = temperature;
      Sampler sampler(settings);
      std::vector<std::int32_t> history;
      for (std::uint64_t position = 0; position < 60; ++position) {
        const Choice choice = sampler.sample(made_logits(count, position, 9.0), history, 2, position);
        history.push_back(choice.token);
        std::uint64_t bits = 0;
        std::memcpy(&bits, &choice.log_probability, sizeof bits);
        hash = (hash ^ bits ^ static_cast<std::uint64_t>(choice.token)) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 29;
      }
    }
  }
  REQUIRE(hash == 0xd4a58c06e6d4b0f5u);
}
