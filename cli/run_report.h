// run_report.h - collects the report of a run from the session's counters. Made before the generation, so that what it
// compares with is the state of then.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/report.h"
#include "cli/session.h"
#include "cli/text_requests.h"

namespace genai::cli {

class RunReport {
 public:
  // REQUIRES: the session is loaded and outlives this.
  explicit RunReport(Session& session);

  // `output_hash`: of all texts together.
  Report collect(const std::vector<TextRequest>& requests, const std::vector<TextResult>& results,
                 std::uint64_t output_hash) const;

 private:
  Session& session_;
  std::uint64_t cache_address_;
};

// `graph`: steps were to be graphs. `graph_count`: those that there are; more captures mean that one was captured
// again.
void put_graph_counters(const DecodeCounters& counters, bool graph, std::uint64_t graph_count, Report& report);

// Where graphs took more device memory than was kept for them, which nobody can refuse them; else empty.
std::string graph_memory_warning(const Report& report);

}  // namespace genai::cli
