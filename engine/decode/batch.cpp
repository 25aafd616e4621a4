#include "engine/decode/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "engine/error.h"

namespace genai {
namespace {

double seconds_between(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

void add(std::optional<double>& total, double seconds) { total = total.value_or(0.0) + seconds; }

}  // namespace

std::int32_t step_width(std::int32_t row_count, std::int32_t slot_count) {
  return std::min(static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(row_count))), slot_count);
}

Batch::Batch(Model& model, DecodeStep& step, DecodeCounters& counters, std::span<const GenerationRequest> requests,
             const BatchEvents& events, const std::atomic<bool>& interrupted)
    : model_(model),
      step_(step),
      counters_(counters),
      requests_(requests),
      events_(events),
      interrupted_(interrupted),
      generations_(requests.size()) {
  check_requests();
  const std::int32_t slot_count = model.cache().shape().sequence_count;
  for (std::int32_t slot = slot_count; slot-- > 0;) free_slots_.push_back(slot);  // taken from the back
}

void Batch::check_requests() const {
  const std::int32_t context = model_.options().context;
  for (const GenerationRequest& request : requests_) {
    if (request.prompt.empty())
      throw UsageError("the prompt has no tokens", "give a prompt with -p or -f; this model adds no token of its own");
    if (request.prompt.size() > static_cast<std::size_t>(context))
      throw ContextError(
          fmt::format("prompt {} > ctx {}: the prompt has more tokens than the context", request.prompt.size(),
                      context),
          fmt::format("raise the context with -c {} or more, or shorten the prompt", request.prompt.size()));
  }
}

std::int32_t Batch::wanted_tokens(const GenerationRequest& request) const {
  // The last position whose token can still be chosen is the context's size: it needs no place in the cache.
  const std::int32_t room = model_.options().context - static_cast<std::int32_t>(request.prompt.size()) + 1;
  return request.max_tokens < 0 ? room : std::min(room, request.max_tokens);
}

std::vector<Generation> Batch::run() {
  start_time_ = Clock::now();
  while (true) {
    admit_waiting();
    if (rows_.empty()) break;
    const std::int32_t row_count = launch_step();
    show_tokens();  // while the step runs
    accept_step(row_count);
    drop_finished();
  }
  model_.stream().synchronize();
  return std::move(generations_);
}

void Batch::admit_waiting() {
  while (next_request_ < requests_.size()) {
    if (is_interrupted()) return finish_all(FinishReason::interrupted);
    if (events_.may_enter && !events_.may_enter()) return finish_waiting(FinishReason::stop);
    if (free_slots_.empty()) return;
    start(next_request_++);
    drop_finished();
  }
}

void Batch::start(std::size_t request) {
  const GenerationRequest& asked = requests_[request];
  Row& row = rows_.emplace_back(Row{.request = request,
                                    .slot = free_slots_.back(),
                                    .sampler = Sampler(asked.sampler),
                                    .history = asked.prompt,
                                    .wanted = wanted_tokens(asked),
                                    .token_time = {}});
  free_slots_.pop_back();
  if (row.wanted == 0) return finish(row, FinishReason::length);
  const auto begin = Clock::now();
  const bool is_read = read_prompt(row);
  add(counters_.prefill_seconds, seconds_between(begin, Clock::now()));
  if (!is_read) return finish_all(FinishReason::interrupted);
  accept(row, step_.read_results(1).front(), 0);
}

bool Batch::read_prompt(const Row& row) {
  const auto prompt_count = static_cast<std::int32_t>(row.history.size());
  const std::int32_t max_rows = model_.transformer().limits().max_rows;
  for (std::int32_t done = 0; done < prompt_count;) {
    if (is_interrupted()) return false;
    const std::int32_t row_count = std::min(max_rows, prompt_count - done);
    const bool last = done + row_count == prompt_count;
    counters_.prefill_traffic += step_.run_prompt(
        std::span(row.history).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(row_count)), row.slot,
        done, {.first = row_count - 1, .count = last ? 1 : 0});
    ++counters_.prefill_passes;
    counters_.prompt_tokens += static_cast<std::uint64_t>(row_count);
    done += row_count;
    if (last) model_.stream().synchronize();
    if (events_.on_prefill) events_.on_prefill(row.request, done, prompt_count);
  }
  return !is_interrupted();
}

void Batch::accept(Row& row, const RowResult& result, std::int32_t index) {
  Generation& generation = generations_[row.request];
  const std::vector<std::int32_t>& end_ids = requests_[row.request].end_ids;
  step_.require_finite(result);
  generation.logits_hash += result.hash;
  generation.step_hashes.push_back(result.hash);
  const std::int32_t token = choose(row, result, index);
  const auto now = Clock::now();
  if (!counters_.time_to_first_token_seconds) counters_.time_to_first_token_seconds = seconds_between(start_time_, now);
  if (generation.step_hashes.size() > 1) counters_.inter_token_seconds.push_back(seconds_between(row.token_time, now));
  row.token_time = now;
  if (std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end()) {
    generation.end_token = token;
    return finish(row, FinishReason::end_of_generation);
  }
  row.history.push_back(token);
  row.token_is_new = true;
  generation.tokens.push_back(token);
  ++counters_.generated_tokens;
}

std::int32_t Batch::choose(Row& row, const RowResult& result, std::int32_t index) {
  if (requests_[row.request].sampler.is_plain_greedy()) return result.token;
  // Sequence 0 for every request: two requests that are equal draw equal numbers, wherever they run.
  return row.sampler.choose(step_.read_logits(index, 1), row.history, 0,
                            static_cast<std::uint64_t>(row.history.size()));
}

bool Batch::has_all_tokens(const Row& row) const {
  return static_cast<std::int32_t>(generations_[row.request].tokens.size()) == row.wanted;
}

std::int32_t Batch::launch_step() {
  const auto goes_on = [this](const Row& row) { return !has_all_tokens(row); };
  const auto end = std::stable_partition(rows_.begin(), rows_.end(), goes_on);
  const auto row_count = static_cast<std::int32_t>(end - rows_.begin());
  if (row_count == 0) return 0;
  step_begin_ = Clock::now();
  step_rows_.clear();
  for (auto row = rows_.begin(); row != end; ++row)
    step_rows_.push_back({.token = row->history.back(),
                          .position = static_cast<std::int32_t>(row->history.size()) - 1,
                          .sequence = row->slot,
                          .reserved = 0});
  // Rows with all their tokens will read nothing more: their slots are to spare, too.
  std::vector<std::int32_t> spare_slots = free_slots_;
  for (auto row = end; row != rows_.end(); ++row) spare_slots.push_back(row->slot);
  const std::int32_t spare_rows = step_width(row_count, model_.cache().shape().sequence_count) - row_count;
  for (std::int32_t spare = 0; spare < spare_rows; ++spare)
    step_rows_.push_back(
        {.token = 0, .position = 0, .sequence = spare_slots[static_cast<std::size_t>(spare)], .reserved = 0});
  counters_.step_rows += static_cast<std::uint64_t>(row_count);
  step_.run(step_rows_, counters_);
  return row_count;
}

void Batch::show_tokens() {
  for (Row& row : rows_) {
    if (row.finished) continue;
    const bool is_new = std::exchange(row.token_is_new, false);
    if (is_new && events_.on_token && !events_.on_token(row.request, row.history.back()))
      finish(row, FinishReason::stop);
    else if (has_all_tokens(row))
      finish(row, FinishReason::length);
  }
}

void Batch::accept_step(std::int32_t row_count) {
  const bool any_left = std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.finished; });
  if (row_count == 0 || !any_left) return;  // nobody wants what the step gives
  const std::span<const RowResult> results = step_.read_results(row_count);
  if (is_interrupted()) return finish_all(FinishReason::interrupted);
  for (std::int32_t index = 0; index < row_count; ++index)
    if (Row& row = rows_[static_cast<std::size_t>(index)]; !row.finished)
      accept(row, results[static_cast<std::size_t>(index)], index);
  add(counters_.decode_seconds, seconds_between(step_begin_, Clock::now()));
}

void Batch::finish(Row& row, FinishReason reason) {
  row.finished = true;
  generations_[row.request].finish = reason;
  if (events_.on_finished) events_.on_finished(row.request, generations_[row.request]);
}

void Batch::drop_finished() {
  for (const Row& row : rows_)
    if (row.finished) free_slots_.push_back(row.slot);
  std::erase_if(rows_, [](const Row& row) { return row.finished; });
}

void Batch::finish_all(FinishReason reason) {
  show_tokens();
  for (Row& row : rows_)
    if (!row.finished) finish(row, reason);
  finish_waiting(reason);
}

void Batch::finish_waiting(FinishReason reason) {
  for (; next_request_ < requests_.size(); ++next_request_) {
    generations_[next_request_].finish = reason;
    if (events_.on_finished) events_.on_finished(next_request_, generations_[next_request_]);
  }
}

}  // namespace genai
