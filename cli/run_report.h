// run_report.h - collects the report of a run from the session's counters. Made before the generation, so that what it
// compares with is the state of then.
#pragma once
#include <cstdint>
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

}  // namespace genai::cli
