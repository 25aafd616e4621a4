// text_requests.h - from prompts and settings to texts: what the engine is asked for, what the command line adds to it
// (stop texts, visible bytes, hashes), and how each text ended. One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/row_settings.h"
#include "cli/session.h"
#include "engine/decode/generation.h"

namespace genai::cli {

struct TextRequest {
  GenerationRequest generation;
  std::vector<std::string> stops;
  // Those stops that are special tokens: they have no visible text that could be matched, and end the text as tokens.
  std::vector<std::int32_t> stop_ids;
};

// REQUIRES: the settings have a seed.
TextRequest make_text_request(const Session& session, std::vector<std::int32_t> prompt, const RowSettings& settings,
                              bool ignore_end);

struct TextResult {
  Generation generation;
  std::string finish_reason;
  std::uint64_t output_hash = 0;  // of the bytes of the text
};

// Where the bytes of texts go. `row` counts from 0, in the order of the requests.
class TextSink {
 public:
  virtual ~TextSink() = default;
  // False: nobody wants this or any other text any more.
  virtual bool write(std::size_t row, std::string_view bytes) = 0;
  // The text is complete.
  virtual void end(std::size_t row) = 0;
  virtual bool is_closed() const = 0;
};

// Generates all texts, as many at once as the session has sequences. In the order of the requests. Every text is ended
// when this returns, and when it throws.
std::vector<TextResult> generate_texts(Session& session, const std::vector<TextRequest>& requests, bool show_special,
                                       TextSink& sink, const BatchEvents& watcher = {});

}  // namespace genai::cli
