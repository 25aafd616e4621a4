#include "cli/text_requests.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/interrupt.h"
#include "cli/text_writer.h"

namespace genai::cli {
namespace {

bool contains(const std::vector<std::int32_t>& ids, std::optional<std::int32_t> id) {
  return id && std::find(ids.begin(), ids.end(), *id) != ids.end();
}

// The texts while they grow.
class Texts {
 public:
  Texts(const Tokenizer& tokenizer, const std::vector<TextRequest>& requests, bool show_special, TextSink& sink)
      : requests_(requests), show_special_(show_special), sink_(sink), results_(requests.size()) {
    for (std::size_t row = 0; row < requests.size(); ++row)
      writers_.push_back(
          std::make_unique<TextWriter>(tokenizer, requests[row].stops, show_special,
                                       [&sink, row](std::string_view bytes) { return sink.write(row, bytes); }));
  }

  bool push(std::size_t row, std::int32_t token) { return writers_[row]->push(token); }

  void finish(std::size_t row, const Generation& generation) {
    const std::unique_ptr<TextWriter> writer = std::move(writers_[row]);
    if (show_special_ && generation.end_token && !writer->stopped()) writer->push(*generation.end_token);
    writer->finish();
    results_[row].output_hash = writer->output_hash();
    results_[row].finish_reason = finish_reason(row, generation, *writer);
    sink_.end(row);
  }

  // What there is of every text, where something went wrong.
  void give_up() {
    for (std::size_t row = 0; row < writers_.size(); ++row) {
      if (writers_[row] == nullptr) continue;
      writers_[row]->finish();
      sink_.end(row);
    }
  }

  std::vector<TextResult> results(std::vector<Generation> generations) {
    for (std::size_t row = 0; row < results_.size(); ++row) results_[row].generation = std::move(generations[row]);
    return std::move(results_);
  }

 private:
  std::string finish_reason(std::size_t row, const Generation& generation, const TextWriter& writer) const {
    const bool never_began = generation.step_hashes.empty() && generation.finish == FinishReason::stop;
    if (writer.is_unwanted() || never_began) return "output_closed";
    // A stop text may become complete with the very last token.
    if (writer.stopped() || contains(requests_[row].stop_ids, generation.end_token))
      return std::string(finish_reason_name(FinishReason::stop));
    return std::string(finish_reason_name(generation.finish));
  }

  const std::vector<TextRequest>& requests_;
  bool show_special_;
  TextSink& sink_;
  std::vector<std::unique_ptr<TextWriter>> writers_;  // null: the text is complete
  std::vector<TextResult> results_;
};

}  // namespace

TextRequest make_text_request(const Session& session, std::vector<std::int32_t> prompt, const RowSettings& settings,
                              bool ignore_end) {
  TextRequest request;
  request.generation.prompt = std::move(prompt);
  request.generation.max_tokens = settings.max_tokens;
  request.generation.sampler = settings.sampler;
  request.generation.sampler.seed = settings.seed.value();
  request.stops = settings.stops;
  for (const std::string& stop : settings.stops) {
    const std::optional<std::int32_t> id = session.tokenizer().find_token(stop);
    if (id && session.tokenizer().token_type(*id) == TokenType::kControl) request.stop_ids.push_back(*id);
  }
  std::vector<std::int32_t>& end_ids = request.generation.end_ids;
  if (!ignore_end) end_ids = session.tokenizer().end_of_generation_ids();
  end_ids.insert(end_ids.end(), request.stop_ids.begin(), request.stop_ids.end());
  return request;
}

std::vector<TextResult> generate_texts(Session& session, const std::vector<TextRequest>& requests, bool show_special,
                                       TextSink& sink, const BatchEvents& watcher) {
  std::vector<GenerationRequest> generation_requests;
  for (const TextRequest& request : requests) generation_requests.push_back(request.generation);
  Texts texts(session.tokenizer(), requests, show_special, sink);
  BatchEvents events;
  events.on_token = [&](std::size_t row, std::int32_t token) {
    if (watcher.on_token) watcher.on_token(row, token);
    return texts.push(row, token);
  };
  events.on_finished = [&](std::size_t row, const Generation& generation) { texts.finish(row, generation); };
  events.on_prefill = watcher.on_prefill;
  events.may_enter = [&] { return !sink.is_closed(); };
  try {
    return texts.results(session.loop().generate_all(generation_requests, events, interrupt_flag()));
  } catch (...) {
    texts.give_up();
    throw;
  }
}

}  // namespace genai::cli
