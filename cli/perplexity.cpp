#include "cli/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/content_hash.h"
#include "cli/interrupt.h"
#include "cli/prompt_source.h"
#include "cli/session.h"
#include "cli/version.h"
#include "engine/decode/perplexity.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

SessionOptions session_options(const PerplexityOptions& options, const std::string& model_path) {
  SessionOptions session;
  session.model_path = model_path;
  session.force_pre_tokenizer = options.force_pre_tokenizer;
  session.placement = options.placement;
  session.progress = [](std::uint64_t, std::uint64_t) { throw_if_interrupted(); };
  return session;
}

Json document(const PerplexityResult& result, const PerplexityOptions& options, const Session& session) {
  Json json;
  json["schema_version"] = kReportSchema;
  json["genai_version"] = kVersion;
  json["arithmetic"] = kArithmetic;
  json["model"] = {{"path", session.facts().path}, {"arch", session.facts().arch}};
  json["window_tokens"] = options.window;
  json["windows"] = result.windows.size();
  json["predictions"] = result.predictions();
  json["mean_nll"] = result.mean_nll();
  json["mean_nll_error"] = result.mean_nll_error();
  json["perplexity"] = exact_double_exp(result.mean_nll());
  json["perplexity_error"] = exact_double_exp(result.mean_nll()) * result.mean_nll_error();
  if (!options.reference_path.empty()) {
    json["reference"] = options.reference_path;
    json["reference_mean_nll"] = result.reference_mean_nll();
    json["mean_kl"] = result.mean_kl();
    json["max_kl"] = result.max_kl();
    json["same_best_share"] = result.same_best_share();
  }
  json["logits_hash"] = hash_text(result.logits_hash());
  Json windows = Json::array();
  for (const WindowScore& window : result.windows) windows.push_back(window.nll_sum / window.predictions);
  json["window_nll"] = windows;
  return json;
}

std::string summary(const PerplexityResult& result, const PerplexityOptions& options) {
  const double perplexity = exact_double_exp(result.mean_nll());
  std::string text =
      fmt::format("{} windows of {} tokens, {} predictions\nmean NLL {:.6f} +/- {:.6f}\nperplexity {:.4f} +/- {:.4f}\n",
                  result.windows.size(), options.window, result.predictions(), result.mean_nll(),
                  result.mean_nll_error(), perplexity, perplexity * result.mean_nll_error());
  if (!options.reference_path.empty())
    text +=
        fmt::format("reference NLL {:.6f}, KL from it {:.6f}, largest {:.6f}, same best token at {:.2f} %\n",
                    result.reference_mean_nll(), result.mean_kl(), result.max_kl(), 100.0 * result.same_best_share());
  return text + fmt::format("logits hash {}\n", hash_text(result.logits_hash()));
}

}  // namespace

int perplexity(const PerplexityOptions& options, Output& output, Console& console) {
  Session session(session_options(options, options.model_path));
  PerplexityRequest request{.tokens = session.encode(read_prompt(options.text), options.text.parse_special),
                            .window = options.window,
                            .first_token = std::nullopt,
                            .max_windows = options.max_windows};
  if (session.tokenizer().adds_bos()) request.first_token = session.tokenizer().bos_id();
  std::optional<Session> reference;
  if (!options.reference_path.empty()) {
    reference.emplace(session_options(options, options.reference_path));
    if (reference->config().vocabulary_size != session.config().vocabulary_size)
      throw UsageError("the two models have different vocabularies", "compare models of one family");
  }
  const std::int32_t available = window_count(static_cast<std::int64_t>(request.tokens.size()), request.window);
  const std::int32_t windows = request.max_windows < 0 ? available : std::min(available, request.max_windows);
  console.begin_progress("loading");
  session.load();
  if (reference) reference->load();
  console.end_progress();
  for (const std::string& warning : session.warnings()) console.warn(warning);

  console.begin_progress("scoring");
  const PerplexityResult result = measure_perplexity(
      session.loop(), reference ? &reference->loop() : nullptr, request, [&](const PerplexityResult& so_far) {
        throw_if_interrupted();
        console.show_progress(so_far.windows.size(), static_cast<std::uint64_t>(windows), "windows");
      });
  console.end_progress();
  output.write(options.json ? document(result, options, session).dump() + "\n" : summary(result, options));
  return 0;
}

}  // namespace genai::cli
