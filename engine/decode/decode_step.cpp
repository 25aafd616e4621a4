#include "engine/decode/decode_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/decode/step_bytes.h"
#include "engine/error.h"

namespace genai {
namespace {

template <class T>
DevicePtr<const std::byte> bytes_of(DevicePtr<T> pointer) {
  return pointer.template as<const std::byte>();
}

template <class T>
void upload(Stream& stream, DevicePtr<T> destination, const std::vector<T>& source) {
  stream.upload(destination.template as<std::byte>(), source.data(), source.size() * sizeof(T));
}

template <class T>
void download(Stream& stream, std::vector<T>& destination, DevicePtr<T> source) {
  stream.download(destination.data(), bytes_of(source), destination.size() * sizeof(T));
}

// While a capture is open no memory can be given back.
void give_up_capture(Stream& stream) noexcept {
  try {
    stream.end_capture();
  } catch (const std::exception&) {  // half a capture need not be one that may end
  }
}

}  // namespace

DecodeStep::DecodeStep(Model& model, const Options& options)
    : model_(model), options_(options), clock_(model.device()) {
  // No graph can hold a copy that the driver has to stage.
  options_.graph = options.graph && !model.has_pageable_weights();
  rows_.reserve(static_cast<std::size_t>(model.transformer().limits().max_rows));
}

PassTraffic DecodeStep::run_prompt(std::span<const std::int32_t> tokens, std::int32_t sequence,
                                   std::int32_t first_position, const LogitRows& logit_rows) {
  Transformer& transformer = model_.transformer();
  const auto row_count = static_cast<std::int32_t>(tokens.size());
  model_.stream().synchronize();  // sent_rows_ may still be on their way
  sent_rows_.clear();
  for (std::int32_t row = 0; row < row_count; ++row)
    sent_rows_.push_back({.token = tokens[static_cast<std::size_t>(row)],
                          .position = first_position + row,
                          .sequence = sequence,
                          .reserved = 0});
  model_.ensure_positions(sequence, first_position + row_count);
  upload(model_.stream(), transformer.workspace().rows, sent_rows_);
  rows_ = sent_rows_;
  tokens_.clear();
  return transformer.run(
      model_.stream(),
      {.row_count = row_count, .first_logit_row = logit_rows.first, .logit_row_count = logit_rows.count});
}

// Advancing a row gives it the token of workspace.tokens and the next position.
void DecodeStep::place(std::span<const StepRow> rows) {
  const Workspace& space = model_.transformer().workspace();
  const auto follows = [](const StepRow& held, const StepRow& wanted) {
    return held.sequence == wanted.sequence && held.position + 1 == wanted.position;
  };
  if (!std::equal(rows_.begin(), rows_.end(), rows.begin(), rows.end(), follows)) {
    sent_rows_.assign(rows.begin(), rows.end());
    for (StepRow& row : sent_rows_) --row.position;
    upload(model_.stream(), space.rows, sent_rows_);
  }
  const auto is_token_of = [](std::int32_t held, const StepRow& wanted) { return held == wanted.token; };
  if (!std::equal(tokens_.begin(), tokens_.end(), rows.begin(), rows.end(), is_token_of)) {
    sent_tokens_.clear();
    for (const StepRow& row : rows) sent_tokens_.push_back(row.token);
    upload(model_.stream(), space.tokens, sent_tokens_);
  }
  rows_.assign(rows.begin(), rows.end());
  tokens_.clear();
}

PassTraffic DecodeStep::enqueue(std::int32_t width) {
  Transformer& transformer = model_.transformer();
  const Workspace& space = transformer.workspace();
  model_.device().kernels().advance_step(model_.stream(),
                                         {.rows = space.rows, .tokens = space.tokens, .row_count = width});
  return transformer.run(model_.stream(), {.row_count = width, .first_logit_row = 0, .logit_row_count = width});
}

void DecodeStep::run(std::span<const StepRow> rows, DecodeCounters& counters) {
  const auto width = static_cast<std::int32_t>(rows.size());
  GENAI_EXPECT(width > 0 && width <= model_.transformer().limits().max_logit_rows, "a step wider than its workspace");
  for (const StepRow& row : rows) model_.ensure_positions(row.sequence, row.position + 1);
  place(rows);
  ++counters.decode_steps;
  CapturedStep* const step = options_.graph ? &captured(width, counters) : nullptr;
  PassTraffic traffic;
  clock_.begin(model_.stream());
  if (step != nullptr) {
    model_.stream().launch(*step->graph);
    traffic = step->traffic;
    counters.graph_nodes = step->graph->node_count();
    ++counters.replays;
  } else {
    traffic = enqueue(width);
    ++counters.eager_steps;
  }
  clock_.end(model_.stream(), step_read_bytes(model_.config(), model_.cache().shape(), traffic, rows),
             counters.device_time);
  counters.decode_traffic += traffic;
}

DecodeStep::CapturedStep& DecodeStep::captured(std::int32_t width, DecodeCounters& counters) {
  CapturedStep& step = captured_[width];
  if (step.graph != nullptr) return step;
  model_.stream().begin_capture();
  try {
    step.traffic = enqueue(width);
  } catch (...) {
    give_up_capture(model_.stream());
    throw;
  }
  step.graph = model_.stream().end_capture();
  ++counters.captures;
  return step;
}

std::optional<std::uint64_t> DecodeStep::graph_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [width, step] : captured_) {
    const std::optional<std::uint64_t> bytes = step.graph == nullptr ? 0 : step.graph->device_bytes();
    if (!bytes) return std::nullopt;
    total += *bytes;
  }
  return total;
}

std::span<const RowResult> DecodeStep::read_results(std::int32_t row_count) {
  const Workspace& space = model_.transformer().workspace();
  const auto count = static_cast<std::size_t>(row_count);
  tokens_.resize(count);
  hashes_.resize(count);
  nonfinite_.resize(count);
  download(model_.stream(), tokens_, space.tokens);
  download(model_.stream(), hashes_, space.hashes);
  download(model_.stream(), nonfinite_, space.nonfinite);
  model_.stream().synchronize();
  if (model_.host_lane() != nullptr) model_.host_lane()->rethrow_failure();
  results_.clear();
  for (std::size_t row = 0; row < count; ++row)
    results_.push_back({.token = tokens_[row], .hash = hashes_[row], .nonfinite = nonfinite_[row]});
  return results_;
}

std::span<const float> DecodeStep::read_logits(std::int32_t first_row, std::int32_t row_count) {
  const std::int64_t vocabulary_size = model_.config().vocabulary_size;
  logits_.resize(static_cast<std::size_t>(row_count * vocabulary_size));
  download(model_.stream(), logits_, model_.transformer().workspace().logits + first_row * vocabulary_size);
  model_.stream().synchronize();
  return logits_;
}

void DecodeStep::require_finite(const RowResult& result) {
  if (result.nonfinite == 0) return;
  throw Error(fmt::format("{} of {} logits are not finite numbers{}", result.nonfinite, model_.config().vocabulary_size,
                          options_.check ? find_nonfinite_layer() : ""),
              options_.check
                  ? "the model file is damaged: try `genai inspect --check`"
                  : "the model file may be damaged: try `genai inspect --check`, or run with --check to learn "
                    "in which layer it begins");
}

// The rows of the failed pass are still in place: runs them again, looking at the residual stream between layers.
std::string DecodeStep::find_nonfinite_layer() {
  Transformer& transformer = model_.transformer();
  std::string where;
  std::vector<float> x(rows_.size() * static_cast<std::size_t>(model_.config().width));
  const PassShape shape{
      .row_count = static_cast<std::int32_t>(rows_.size()), .first_logit_row = 0, .logit_row_count = 0};
  transformer.run(model_.stream(), shape, [&](std::int32_t layer) {
    if (!where.empty()) return;
    download(model_.stream(), x, transformer.workspace().x);
    model_.stream().synchronize();
    if (std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); })) return;
    where = layer < 0 ? "; they begin in the embedding" : fmt::format("; they begin in layer {}", layer);
  });
  return where.empty() ? "; all layers are finite, so the output matrix is not" : where;
}

}  // namespace genai
