// Real and tiny models against an fp32 implementation. Deviations are printed even where they are within the
// tolerances.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/log_probability.h"
#include "engine/decode/perplexity.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/reference_support.h"

namespace genai {
namespace {

using test::HostModel;
using test::HostModelOptions;
using test::Reference;
using test::ReferenceCase;
using test::ReferenceTolerances;
using test::TinyReference;

// Absolute differences from the reference, one a token.
struct Deviations {
  double sum = 0.0;
  double largest = 0.0;
  int count = 0;

  void add(double actual, double expected) {
    const double deviation = std::abs(actual - expected);
    sum += deviation;
    // A NaN must not hide behind a comparison that is false.
    largest = deviation <= largest ? largest : deviation;
    ++count;
  }
  double mean() const { return count == 0 ? 0.0 : sum / count; }
};

// What the model says after each of `tokens`: the log probability of each `next`, and the best token.
struct Predictions {
  std::vector<double> logprobs;
  std::vector<std::int32_t> best;
};

// `next` may be shorter than `tokens`: what follows unknown is not asked for.
Predictions predict(DecodeLoop& loop, std::span<const std::int32_t> tokens, std::span<const std::int32_t> next) {
  Predictions predictions;
  loop.evaluate(tokens, [&](std::int32_t position, std::span<const float> logits, std::uint64_t) {
    const auto index = static_cast<std::size_t>(position);
    REQUIRE(index == predictions.best.size());
    predictions.best.push_back(highest_logit(logits));
    if (index < next.size()) predictions.logprobs.push_back(log_probability(logits, next[index]));
  });
  REQUIRE(predictions.best.size() == tokens.size());
  return predictions;
}

struct RealModel {
  const char* name;
  const char* reference_file;
  std::optional<std::filesystem::path> (*find)();
  ReferenceTolerances tolerances;
};

const RealModel kSmollm2{"SmolLM2", "reference/smollm2-135m-q4_1.json", test::smollm2, test::kSmollm2Tolerances};
const RealModel kGemma3{"Gemma 3", "reference/gemma3-270m-q4_k_m.json", test::gemma3, test::kGemma3Tolerances};

struct OpenedReference {
  OpenedReference(const std::filesystem::path& data, const std::filesystem::path& model,
                  const HostModelOptions& options)
      : reference(test::read_reference(data)), host(model, options) {}
  Reference reference;
  HostModel host;
};

// Nothing, and a visible line, where the model or the reference is not on this machine.
std::unique_ptr<OpenedReference> open_reference(const RealModel& model) {
  const auto data = test::shared_data(model.reference_file);
  const auto path = model.find();
  if (!data || !path) {
    WARN("SKIPPED: " << model.name << ": " << (data ? "the model (see scripts/fetch_models.sh)" : "the reference data")
                     << " is not on this machine");
    return nullptr;
  }
  HostModelOptions options;
  options.model.context = 1024;
  options.model.max_rows = 256;
  return std::make_unique<OpenedReference>(*data, *path, options);
}

void check_long_window(const RealModel& model) {
  const auto opened = open_reference(model);
  if (!opened) return;
  const test::ReferenceText& text = opened->reference.text;
  const std::span<const std::int32_t> window = std::span(text.ids).first(static_cast<std::size_t>(text.window));
  const Predictions predictions = predict(*opened->host.loop, window.first(window.size() - 1), window.subspan(1));
  double nll = 0.0;
  for (const double logprob : predictions.logprobs) nll -= logprob;
  nll /= static_cast<double>(predictions.logprobs.size());
  Deviations next;
  for (std::size_t i = 0; i < text.next_logprobs.size(); ++i) next.add(predictions.logprobs[i], text.next_logprobs[i]);
  WARN(fmt::format(
      "{}: window of {}: mean nll {:.6f}, off by {:+.6f}; first {} log p: off by {:.4f} on average, {:.3f} at most",
      model.name, text.window, nll, nll - text.mean_nll, next.count, next.mean(), next.largest));
  REQUIRE(next.count == 256);
  CHECK(std::abs(nll - text.mean_nll) <= model.tolerances.mean_nll);
  CHECK(next.mean() <= model.tolerances.next_mean);
  CHECK(next.largest <= model.tolerances.next_max);
}

void check_short_windows(const RealModel& model) {
  const auto opened = open_reference(model);
  if (!opened) return;
  const test::ReferenceText& text = opened->reference.text;
  PerplexityRequest request{.tokens = text.ids, .window = 256, .first_token = std::nullopt};
  if (opened->reference.add_bos) request.first_token = opened->reference.bos_id;
  const PerplexityResult result = measure_perplexity(*opened->host.loop, nullptr, request, {});
  REQUIRE(result.windows.size() == text.windows_256_nll.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < result.windows.size(); ++i) {
    const WindowScore& window = result.windows[i];
    REQUIRE(window.predictions == 255);
    const double off = window.nll_sum / window.predictions - text.windows_256_nll[i];
    INFO(model.name << ", window " << i << ": off by " << off);
    CHECK(std::abs(off) <= model.tolerances.window_nll);
    if (std::abs(off) > std::abs(worst)) worst = off;
  }
  const double off = result.mean_nll() - text.windows_256_mean_nll;
  WARN(fmt::format("{}: {} windows of 256: mean nll {:.6f}, off by {:+.6f}, the worst window by {:+.6f}", model.name,
                   result.windows.size(), result.mean_nll(), off, worst));
  CHECK(std::abs(off) <= model.tolerances.mean_nll);
}

// Prompt and greedy continuation of one case in one go, each step judged after the reference's own tokens.
void check_case(const RealModel& model, const ReferenceCase& each, DecodeLoop& loop, Deviations& all_prompts,
                Deviations& all_greedy) {
  std::vector<std::int32_t> tokens = each.ids;
  tokens.insert(tokens.end(), each.greedy_ids.begin(), each.greedy_ids.end());
  const Predictions predictions =
      predict(loop, std::span(tokens).first(tokens.size() - 1), std::span(tokens).subspan(1));
  Deviations prompt;
  for (std::size_t i = 0; i < each.prompt_logprobs.size(); ++i) {
    prompt.add(predictions.logprobs[i], each.prompt_logprobs[i]);
    all_prompts.add(predictions.logprobs[i], each.prompt_logprobs[i]);
  }
  Deviations greedy;
  int flips = 0;
  double widest_flip = 0.0;
  for (std::size_t step = 0; step < each.greedy_ids.size(); ++step) {
    const std::size_t row = each.ids.size() - 1 + step;
    greedy.add(predictions.logprobs[row], each.greedy_logprobs[step]);
    all_greedy.add(predictions.logprobs[row], each.greedy_logprobs[step]);
    if (predictions.best[row] == each.greedy_ids[step]) continue;
    ++flips;
    widest_flip = std::max(widest_flip, each.margins[step]);
    INFO(model.name << ", " << each.name << ": step " << step << " chooses " << predictions.best[row] << ", not "
                    << each.greedy_ids[step]);
    CHECK(each.margins[step] <= model.tolerances.certain_margin);
  }
  WARN(
      fmt::format("{}: {}: log p off by {:.3f}/{:.2f} in the prompt, {:.3f}/{:.2f} in the answer (mean/max); {} of {} "
                  "choices differ, the widest margin {:.3f}",
                  model.name, each.name, prompt.mean(), prompt.largest, greedy.mean(), greedy.largest, flips,
                  each.greedy_ids.size(), widest_flip));
  INFO(model.name << ", " << each.name);
  REQUIRE(prompt.count + 1 == static_cast<int>(each.ids.size()));
  REQUIRE(greedy.count == 48);
  if (prompt.count >= 8) CHECK(prompt.mean() <= model.tolerances.prompt_mean);
  CHECK(greedy.mean() <= model.tolerances.greedy_mean);
  CHECK(greedy.largest <= model.tolerances.greedy_max);
}

void check_cases(const RealModel& model) {
  const auto opened = open_reference(model);
  if (!opened) return;
  REQUIRE(opened->reference.cases.size() == 15);
  Deviations prompts;
  Deviations greedy;
  for (const ReferenceCase& each : opened->reference.cases)
    check_case(model, each, *opened->host.loop, prompts, greedy);
  WARN(fmt::format("{}: all cases: log p off by {:.4f}/{:.2f} in {} prompt tokens, {:.4f}/{:.2f} in {} of the answers",
                   model.name, prompts.mean(), prompts.largest, prompts.count, greedy.mean(), greedy.largest,
                   greedy.count));
}

// As long as no step is a near-tie, generation must give the reference's tokens.
void check_free_runs(const RealModel& model) {
  const auto opened = open_reference(model);
  if (!opened) return;
  int tokens = 0;
  for (const ReferenceCase& each : opened->reference.cases) {
    const auto near_tie = std::find_if(each.margins.begin(), each.margins.end(),
                                       [&](double margin) { return margin <= model.tolerances.certain_margin; });
    const auto certain = near_tie - each.margins.begin();
    if (certain == 0) continue;
    INFO(model.name << ", " << each.name);
    const Generation generation = opened->host.generate(each.ids, static_cast<std::int32_t>(certain));
    CHECK(generation.tokens == std::vector<std::int32_t>(each.greedy_ids.begin(), each.greedy_ids.begin() + certain));
    tokens += static_cast<int>(certain);
  }
  WARN(fmt::format("{}: free runs: {} tokens before the first near-ties", model.name, tokens));
  CHECK(tokens >= 15);
}

void check_tiny(const TinyReference& tiny, CacheType cache_type, double float_tolerance) {
  const auto path = test::shared_data("reference/tiny/" + tiny.file);
  INFO(tiny.file << (cache_type == CacheType::f32 ? ", f32 cache" : ", f16 cache"));
  REQUIRE(path.has_value());
  HostModelOptions options;
  options.model.context = 128;
  options.model.max_rows = 32;
  options.model.cache_type = cache_type;
  options.device.granule_bytes = std::size_t{64} << 10;
  HostModel host(*path, options);

  Deviations next;
  Deviations top;
  std::int32_t best = -1;
  host.loop->evaluate(tiny.ids, [&](std::int32_t position, std::span<const float> logits, std::uint64_t) {
    const auto index = static_cast<std::size_t>(position);
    if (index < tiny.next_logprobs.size())
      next.add(log_probability(logits, tiny.ids[index + 1]), tiny.next_logprobs[index]);
    if (index + 1 < tiny.ids.size()) return;
    best = highest_logit(logits);
    for (const test::TopToken& token : tiny.last_top8) top.add(log_probability(logits, token.id), token.logprob);
  });
  REQUIRE(next.count == 95);
  REQUIRE(top.count == 8);
  const double mean_tolerance = tiny.has_float_weights ? float_tolerance : 2 * tiny.simulated_mean;
  const double max_tolerance = tiny.has_float_weights ? float_tolerance : 2 * tiny.simulated_max;
  WARN(fmt::format(
      "{}, {} cache: log p off by {:.6f}/{:.6f} (mean/max), allowed {:.4f}/{:.4f}; last top 8 off by {:.6f}", tiny.file,
      cache_type == CacheType::f32 ? "f32" : "f16", next.mean(), next.largest, mean_tolerance, max_tolerance,
      top.largest));
  CHECK(next.mean() <= mean_tolerance);
  CHECK(next.largest <= max_tolerance);
  CHECK(top.largest <= max_tolerance);

  const auto prompt_end = tiny.ids.begin() + static_cast<std::ptrdiff_t>(test::kTinyGreedyPrompt);
  std::vector<std::int32_t> prompt(tiny.ids.begin(), prompt_end);
  if (tiny.has_float_weights) {
    CHECK(best == tiny.last_top8.front().id);
    // A near-tie that the tolerance could turn over would make the rest a matter of luck.
    const auto tie = std::find_if(tiny.margins.begin(), tiny.margins.end(),
                                  [&](double margin) { return margin <= 2 * float_tolerance; });
    const auto certain = tie - tiny.margins.begin();
    CHECK(certain > 0);
    if (cache_type == CacheType::f32) CHECK(certain == 32);
    CHECK(host.generate(prompt, static_cast<std::int32_t>(certain)).tokens ==
          std::vector<std::int32_t>(tiny.greedy_ids.begin(), tiny.greedy_ids.begin() + certain));
    return;
  }
  std::vector<std::int32_t> tokens = prompt;
  tokens.insert(tokens.end(), tiny.greedy_ids.begin(), tiny.greedy_ids.end() - 1);
  const Predictions predictions = predict(*host.loop, tokens, {});
  for (std::size_t step = 0; step < tiny.greedy_ids.size(); ++step) {
    INFO("step " << step << ", margin " << tiny.margins[step]);
    const bool same = predictions.best[prompt.size() - 1 + step] == tiny.greedy_ids[step];
    // Two logits, each off by what is allowed.
    CHECK((same || tiny.margins[step] <= 2 * max_tolerance));
  }
}

void check_all_tiny(CacheType cache_type, double float_tolerance) {
  const auto data = test::shared_data("reference/tiny/tiny.json");
  if (!data) GENAI_SKIP("the tiny reference models are not on this machine");
  const std::vector<TinyReference> references = test::read_tiny_references(*data);
  REQUIRE(references.size() == 20);
  for (const TinyReference& tiny : references) check_tiny(tiny, cache_type, float_tolerance);
}

}  // namespace

TEST_CASE("SmolLM2 predicts a window of 1024 tokens as well as fp32 does", "[reference]") {
  check_long_window(kSmollm2);
}
TEST_CASE("SmolLM2 predicts windows of 256 tokens as well as fp32 does", "[reference]") {
  check_short_windows(kSmollm2);
}
TEST_CASE("SmolLM2 rates and continues prompts as fp32 does", "[reference]") { check_cases(kSmollm2); }
TEST_CASE("SmolLM2 generates the tokens of fp32 up to the first near-tie", "[reference]") { check_free_runs(kSmollm2); }

TEST_CASE("Gemma 3 predicts a window of 1024 tokens as well as fp32 does", "[reference]") {
  check_long_window(kGemma3);
}
TEST_CASE("Gemma 3 predicts windows of 256 tokens as well as fp32 does", "[reference]") {
  check_short_windows(kGemma3);
}
TEST_CASE("Gemma 3 rates and continues prompts as fp32 does", "[reference]") { check_cases(kGemma3); }
TEST_CASE("Gemma 3 generates the tokens of fp32 up to the first near-tie", "[reference]") { check_free_runs(kGemma3); }

TEST_CASE("tiny models of all architectures and tensor types agree with fp32", "[reference]") {
  check_all_tiny(CacheType::f32, 0.0005);
}
TEST_CASE("tiny models agree with fp32 within the rounding of an f16 cache", "[reference]") {
  check_all_tiny(CacheType::f16, 0.01);
}

}  // namespace genai
