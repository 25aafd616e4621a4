// replay.h - what a run was asked for, as the file of --report-file keeps it under "replay", so that genai verify can
// ask for it again: every prompt as token ids, every setting, and where it ran.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/row_settings.h"
#include "cli/session.h"
#include "cli/text_requests.h"

namespace genai::cli {

struct Replay {
  struct Row {
    std::vector<std::int32_t> prompt;
    RowSettings settings;  // with a seed
  };
  PlacementOptions placement;  // as it came out: a context, a budget in bytes or none, one backend
  bool graph = true;
  bool ignore_end = false;
  bool show_special = false;
  std::vector<Row> rows;
};

// REQUIRES: the session is loaded.
Replay make_replay(const RunOptions& options, const Session& session, const std::vector<TextRequest>& requests);

// What the rest of the report does not say.
nlohmann::ordered_json replay_json(const Replay& replay);
// From a whole report. Throws UsageError, which names `path`, where something is missing or out of range.
Replay read_replay(const nlohmann::ordered_json& report, const std::string& path);

}  // namespace genai::cli
