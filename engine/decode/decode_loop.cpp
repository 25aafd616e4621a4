#include "engine/decode/decode_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/error.h"

namespace genai {
namespace {

template <class T>
DevicePtr<const std::byte> bytes_of(DevicePtr<T> pointer) {
  return pointer.template as<const std::byte>();
}

double seconds_since(DecodeLoop::Clock::time_point start) {
  return std::chrono::duration<double>(DecodeLoop::Clock::now() - start).count();
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::end_of_generation:
      return "end_of_generation";
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::interrupted:
      return "interrupted";
  }
  return "unknown";
}

DecodeLoop::DecodeLoop(Model& model, const Options& options) : model_(model), options_(options) {
  rows_.reserve(static_cast<std::size_t>(model.transformer().limits().max_rows));
}

PassTraffic DecodeLoop::run_rows(std::span<const std::int32_t> tokens, std::int32_t first_position,
                                 std::int32_t first_logit_row, std::int32_t logit_row_count) {
  Transformer& transformer = model_.transformer();
  const auto row_count = static_cast<std::int32_t>(tokens.size());
  model_.stream().synchronize();  // rows_ may still be on its way
  rows_.clear();
  for (std::int32_t row = 0; row < row_count; ++row)
    rows_.push_back({.token = tokens[static_cast<std::size_t>(row)],
                     .position = first_position + row,
                     .sequence = 0,
                     .reserved = 0});
  model_.ensure_positions(0, first_position + row_count);
  model_.stream().upload(transformer.workspace().rows.as<std::byte>(), rows_.data(), rows_.size() * sizeof(StepRow));
  return transformer.run(
      model_.stream(),
      {.row_count = row_count, .first_logit_row = first_logit_row, .logit_row_count = logit_row_count});
}

PassTraffic DecodeLoop::enqueue_step() {
  Transformer& transformer = model_.transformer();
  const Workspace& space = transformer.workspace();
  model_.device().kernels().advance_step(model_.stream(), {.rows = space.rows, .tokens = space.tokens, .row_count = 1});
  return transformer.run(model_.stream(), {.row_count = 1, .first_logit_row = 0, .logit_row_count = 1});
}

void DecodeLoop::run_step(std::int32_t position) {
  model_.ensure_positions(0, position + 1);
  ++counters_.decode_steps;
  if (!options_.graph) {
    ++counters_.eager_steps;
    counters_.decode_traffic += enqueue_step();
    return;
  }
  if (step_graph_ == nullptr) {
    model_.stream().begin_capture();
    step_traffic_ = enqueue_step();
    step_graph_ = model_.stream().end_capture();
    ++counters_.captures;
  }
  counters_.graph_nodes = step_graph_->node_count();
  model_.stream().launch(*step_graph_);
  counters_.decode_traffic += step_traffic_;
  ++counters_.replays;
}

DecodeLoop::StepResult DecodeLoop::read_step() {
  const Workspace& space = model_.transformer().workspace();
  StepResult result{};
  std::int32_t nonfinite = 0;
  Stream& stream = model_.stream();
  stream.download(&result.token, bytes_of(space.tokens), sizeof result.token);
  stream.download(&result.hash, bytes_of(space.hashes), sizeof result.hash);
  stream.download(&nonfinite, bytes_of(space.nonfinite), sizeof nonfinite);
  stream.synchronize();
  if (nonfinite > 0) report_nonfinite(nonfinite);
  return result;
}

std::span<const float> DecodeLoop::read_logits(std::int32_t row_count) {
  const auto count = static_cast<std::size_t>(row_count) * static_cast<std::size_t>(model_.config().vocabulary_size);
  logits_.resize(count);
  model_.stream().download(logits_.data(), bytes_of(model_.transformer().workspace().logits), count * sizeof(float));
  model_.stream().synchronize();
  return logits_;
}

std::int32_t DecodeLoop::choose(const GenerationRequest& request, Sampler& sampler, const StepResult& step,
                                std::span<const std::int32_t> history) {
  if (request.sampler.is_plain_greedy()) return step.token;
  const std::int32_t token = sampler.choose(read_logits(1), history, 0, static_cast<std::uint64_t>(history.size()));
  const DevicePtr<std::byte> destination = model_.transformer().workspace().tokens.as<std::byte>();
  model_.stream().upload(destination, &token, sizeof token);
  model_.stream().synchronize();
  return token;
}

DecodeLoop::StepResult DecodeLoop::prefill(const GenerationRequest& request, const std::atomic<bool>& interrupted,
                                           const OnPrefill& on_prefill) {
  const auto start = Clock::now();
  const auto prompt_count = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t max_rows = model_.transformer().limits().max_rows;
  StepResult result{};
  for (std::int32_t done = 0; done < prompt_count && !interrupted.load(std::memory_order_relaxed);) {
    const std::int32_t row_count = std::min(max_rows, prompt_count - done);
    const bool last = done + row_count == prompt_count;
    counters_.prefill_traffic +=
        run_rows(std::span(request.prompt).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(row_count)),
                 done, row_count - 1, last ? 1 : 0);
    ++counters_.prefill_passes;
    done += row_count;
    if (last) result = read_step();
    counters_.prompt_tokens = static_cast<std::uint64_t>(done);
    if (on_prefill) on_prefill(done, prompt_count);
  }
  model_.stream().synchronize();
  counters_.prefill_seconds = seconds_since(start);
  return result;
}

Generation DecodeLoop::generate(const GenerationRequest& request, const OnToken& on_token,
                                const std::atomic<bool>& interrupted, const OnPrefill& on_prefill) {
  const std::int32_t context = model_.options().context;
  const auto prompt_count = static_cast<std::int32_t>(request.prompt.size());
  if (request.prompt.empty())
    throw UsageError("the prompt has no tokens", "give a prompt with -p or -f; this model adds no token of its own");
  if (request.prompt.size() > static_cast<std::size_t>(context))
    throw ContextError(
        fmt::format("prompt {} > ctx {}: the prompt has more tokens than the context", prompt_count, context),
        fmt::format("raise the context with -c {} or more, or shorten the prompt", prompt_count));
  counters_ = {};
  const std::uint64_t growth_before = model_.cache().growth_events();
  const auto start = Clock::now();
  Sampler sampler(request.sampler);
  Generation generation;
  std::vector<std::int32_t> history = request.prompt;

  // The last position whose token can still be chosen is `context`: it needs no place in the cache.
  const std::int32_t room = context - prompt_count + 1;
  const std::int32_t wanted = request.max_tokens < 0 ? room : std::min(room, request.max_tokens);
  if (wanted == 0) return generation;

  StepResult step = prefill(request, interrupted, on_prefill);
  auto previous = Clock::now();
  // rows[0] must hold the last token of the prompt when the first step advances it.
  if (!interrupted.load(std::memory_order_relaxed)) {
    rows_.assign(1, {.token = request.prompt.back(), .position = prompt_count - 1, .sequence = 0, .reserved = 0});
    model_.stream().upload(model_.transformer().workspace().rows.as<std::byte>(), rows_.data(), sizeof(StepRow));
  }
  while (true) {
    if (interrupted.load(std::memory_order_relaxed)) {
      generation.finish = FinishReason::interrupted;
      break;
    }
    generation.logits_hash += step.hash;
    generation.step_hashes.push_back(step.hash);
    const std::int32_t token = choose(request, sampler, step, history);
    if (!counters_.time_to_first_token_seconds)
      counters_.time_to_first_token_seconds = seconds_since(start);
    else
      counters_.inter_token_seconds.push_back(seconds_since(previous));
    previous = Clock::now();
    if (std::find(request.end_ids.begin(), request.end_ids.end(), token) != request.end_ids.end()) {
      generation.finish = FinishReason::end_of_generation;
      generation.end_token = token;
      break;
    }
    history.push_back(token);
    generation.tokens.push_back(token);
    ++counters_.generated_tokens;
    const bool last = static_cast<std::int32_t>(generation.tokens.size()) == wanted;
    // The next step runs while the caller prints this token.
    if (!last) run_step(static_cast<std::int32_t>(history.size()) - 1);
    if (on_token && !on_token(token)) {
      generation.finish = FinishReason::stop;
      break;
    }
    if (last) break;
    step = read_step();
  }
  model_.stream().synchronize();
  counters_.kv_growth_events = model_.cache().growth_events() - growth_before;
  return generation;
}

void DecodeLoop::evaluate(std::span<const std::int32_t> tokens, const OnLogits& on_logits) {
  const PassLimits& limits = model_.transformer().limits();
  const auto vocabulary_size = static_cast<std::size_t>(model_.config().vocabulary_size);
  const auto token_count = static_cast<std::int32_t>(tokens.size());
  if (token_count > model_.options().context)
    throw ContextError(fmt::format("{} tokens > ctx {}", token_count, model_.options().context),
                       "raise the context with -c");
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(limits.max_logit_rows));
  for (std::int32_t done = 0; done < token_count;) {
    const std::int32_t row_count = std::min(limits.max_rows, token_count - done);
    run_rows(tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(row_count)), done, 0,
             std::min(limits.max_logit_rows, row_count));
    for (std::int32_t first = 0; first < row_count; first += limits.max_logit_rows) {
      const std::int32_t logit_rows = std::min(limits.max_logit_rows, row_count - first);
      if (first > 0) model_.transformer().run_logits(model_.stream(), first, logit_rows);
      model_.stream().download(hashes.data(), bytes_of(model_.transformer().workspace().hashes),
                               static_cast<std::size_t>(logit_rows) * sizeof(std::uint64_t));
      const std::span<const float> logits = read_logits(logit_rows);
      for (std::int32_t row = 0; row < logit_rows; ++row)
        on_logits(done + first + row, logits.subspan(static_cast<std::size_t>(row) * vocabulary_size, vocabulary_size),
                  hashes[static_cast<std::size_t>(row)]);
    }
    done += row_count;
  }
}

void DecodeLoop::report_nonfinite(std::int32_t count) {
  std::string where;
  if (options_.check) {
    // The rows of the failed pass are still in place: run them again, looking at the residual stream between layers.
    Transformer& transformer = model_.transformer();
    const auto row_count = static_cast<std::int32_t>(rows_.size());
    std::vector<float> x(rows_.size() * static_cast<std::size_t>(model_.config().width));
    where = "; all layers are finite, so the output matrix is not";
    bool found = false;
    transformer.run(
        model_.stream(), {.row_count = row_count, .first_logit_row = 0, .logit_row_count = 0}, [&](std::int32_t layer) {
          if (found) return;
          model_.stream().download(x.data(), bytes_of(transformer.workspace().x), x.size() * sizeof(float));
          model_.stream().synchronize();
          found = !std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
          if (found)
            where = layer < 0 ? "; they begin in the embedding" : fmt::format("; they begin in layer {}", layer);
        });
  }
  throw Error(fmt::format("{} of {} logits are not finite numbers{}", count, model_.config().vocabulary_size, where),
              options_.check
                  ? "the model file is damaged: try `genai inspect --check`"
                  : "the model file may be damaged: try `genai inspect --check`, or run with --check to learn "
                    "in which layer it begins");
}

}  // namespace genai
