// session_support.h - a whole run of the command line in this process, on a host device that the test chooses: what its
// report says. For what no flag can choose: small granules, memory that is refused.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/run_report.h"
#include "engine/host/host_device.h"

namespace genai::test {

struct SessionRun {
  SessionRun() {
    device.threads = 1;
    placement.context = 128;
    placement.pass_rows = 16;
    placement.lane_speeds = {.kind = cli::LaneSpeedSource::Kind::none};
  }

  HostDeviceOptions device;
  bool separate_host = false;  // rows of Lane::host are computed by another device, as for a GPU
  cli::PlacementOptions placement;
  bool graph = true;
  std::string fallback_reason;  // as if another device had been asked for
  std::vector<std::string> prompts{"hello there"};
  std::vector<std::int32_t> max_tokens{9};  // of each prompt
};

struct SessionOutcome {
  nlohmann::json report;
  std::vector<std::string> warnings;
};

inline SessionOutcome run_session(const std::string& model_path, const SessionRun& run) {
  struct NoSink final : cli::TextSink {
    bool write(std::size_t, std::string_view) override { return true; }
    void end(std::size_t) override {}
    bool is_closed() const override { return false; }
  } sink;
  cli::SessionOptions options;
  options.model_path = model_path;
  options.placement = run.placement;
  options.graph = run.graph;
  options.open = [&run](const DeviceRequest&) {
    OpenedDevice opened;
    opened.device = std::make_unique<HostDevice>(run.device);
    if (run.separate_host) opened.host_device = std::make_unique<HostDevice>(run.device);
    opened.threads = 1;
    opened.fallback_reason = run.fallback_reason;
    return opened;
  };
  cli::Session session(options);
  session.load();
  std::vector<cli::TextRequest> requests;
  for (std::size_t row = 0; row < run.prompts.size(); ++row) {
    cli::RowSettings settings;
    settings.max_tokens = run.max_tokens.at(row);
    settings.seed = 1;
    requests.push_back(
        cli::make_text_request(session, session.encode(run.prompts[row], false), settings, /*ignore_end=*/true));
  }
  const cli::RunReport report(session);
  const std::vector<cli::TextResult> results = cli::generate_texts(session, requests, false, sink);
  const cli::Report collected = report.collect(requests, results, results.front().output_hash);
  return {.report = nlohmann::json::parse(cli::report_json(collected, cli::ReportDetail::run)),
          .warnings = session.warnings()};
}

}  // namespace genai::test
