#include "engine/decode/perplexity.h"

#include <cmath>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"

namespace genai {
namespace {

using test::arbitrary_tokens;
using test::HostModel;
using test::HostModelOptions;

constexpr int kVocabulary = 320;  // of the tiny models

HostModelOptions options_with(int max_rows) {
  HostModelOptions options;
  options.device.granule_bytes = std::size_t{64} << 10;
  options.device.threads = 1;
  options.model.context = 128;
  options.model.max_rows = max_rows;
  return options;
}

bool same(const WindowScore& a, const WindowScore& b) {
  return a.predictions == b.predictions && a.nll_sum == b.nll_sum && a.nll_square_sum == b.nll_square_sum &&
         a.logits_hash == b.logits_hash;
}

}  // namespace

TEST_CASE("KL of equal rows is zero, of others positive and as in the definition", "[perplexity]") {
  const std::vector<float> p{0.5f, -1.0f, 2.0f, 0.0f};
  const std::vector<float> q{0.0f, 1.0f, -2.0f, 0.25f};
  CHECK(kl_divergence(p, p) == Approx(0.0).margin(1e-15));
  double p_sum = 0.0;
  double q_sum = 0.0;
  for (const float value : p) p_sum += std::exp(static_cast<double>(value));
  for (const float value : q) q_sum += std::exp(static_cast<double>(value));
  double expected = 0.0;
  for (std::size_t index = 0; index < p.size(); ++index)
    expected +=
        std::exp(static_cast<double>(p[index])) / p_sum * ((p[index] - std::log(p_sum)) - (q[index] - std::log(q_sum)));
  CHECK(kl_divergence(p, q) == Approx(expected).epsilon(1e-12));
  CHECK(exact_double_exp(3.0) == Approx(std::exp(3.0)).epsilon(1e-14));
  CHECK(std::isinf(exact_double_exp(1e4)));
}

TEST_CASE("perplexity scores every token of a window but the first, and has the same bits for every pass width",
          "[perplexity]") {
  const auto path = test::shared_data("reference/tiny/tiny-qwen2-Q4_K_M.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  PerplexityRequest request{
      .tokens = arbitrary_tokens(260, kVocabulary, 21), .window = 64, .first_token = std::nullopt};
  HostModel model(*path, options_with(64));
  int calls = 0;
  const PerplexityResult whole =
      measure_perplexity(*model.loop, nullptr, request, [&](const PerplexityResult&) { ++calls; });
  REQUIRE(whole.windows.size() == 4);  // the last four tokens make no window
  CHECK(calls == 4);
  CHECK(whole.predictions() == 4 * 63);
  CHECK(whole.mean_nll() > 0.0);
  CHECK(whole.mean_nll_error() > 0.0);
  for (const int max_rows : {1, 7, 40}) {
    HostModel other(*path, options_with(max_rows));
    const PerplexityResult again = measure_perplexity(*other.loop, nullptr, request, {});
    REQUIRE(again.windows.size() == 4);
    for (std::size_t index = 0; index < 4; ++index) CHECK(same(again.windows[index], whole.windows[index]));
  }
  request.max_windows = 2;
  CHECK(measure_perplexity(*model.loop, nullptr, request, {}).windows.size() == 2);
  request.first_token = 5;
  CHECK_FALSE(same(measure_perplexity(*model.loop, nullptr, request, {}).windows[1], whole.windows[1]));
}

TEST_CASE("a model has no divergence from itself and some from its quantised form", "[perplexity]") {
  const auto exact = test::shared_data("reference/tiny/tiny-llama-F32.gguf");
  const auto coarse = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!exact || !coarse) GENAI_SKIP("the tiny reference models are not there");
  const PerplexityRequest request{
      .tokens = arbitrary_tokens(128, kVocabulary, 22), .window = 64, .first_token = std::nullopt};
  HostModel reference(*exact, options_with(16));
  HostModel same_model(*exact, options_with(64));
  HostModel quantised(*coarse, options_with(64));
  const PerplexityResult none = measure_perplexity(*same_model.loop, &*reference.loop, request, {});
  CHECK(none.mean_kl() == Approx(0.0).margin(1e-12));
  CHECK(none.max_kl() == Approx(0.0).margin(1e-12));
  CHECK(none.reference_mean_nll() == none.mean_nll());
  CHECK(none.same_best_share() == 1.0);
  const PerplexityResult some = measure_perplexity(*quantised.loop, &*reference.loop, request, {});
  CHECK(some.reference_mean_nll() == none.mean_nll());
  CHECK(some.mean_nll() != none.mean_nll());
  CHECK(some.mean_kl() > 1e-4);
  CHECK(some.max_kl() > some.mean_kl());
  CHECK(some.same_best_share() < 1.0);
}

TEST_CASE("a text shorter than a window, and a window beyond the context, are refused", "[perplexity]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel model(*path, options_with(64));
  PerplexityRequest request{.tokens = arbitrary_tokens(63, kVocabulary, 23), .window = 64, .first_token = std::nullopt};
  CHECK_THROWS_AS(measure_perplexity(*model.loop, nullptr, request, {}), UsageError);
  request.window = 1;
  CHECK_THROWS_AS(measure_perplexity(*model.loop, nullptr, request, {}), UsageError);
  request.tokens = arbitrary_tokens(400, kVocabulary, 23);
  request.window = 130;  // 129 inputs for a context of 128
  CHECK_THROWS_AS(measure_perplexity(*model.loop, nullptr, request, {}), ContextError);
}

}  // namespace genai
