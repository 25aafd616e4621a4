// run_report.h - collects the report of one generation from the session's counters. Made before the generation, so that
// what it compares with is the state of then.
#pragma once
#include <cstdint>
#include <string>

#include "cli/report.h"
#include "cli/session.h"

namespace genai::cli {

class RunReport {
 public:
  // REQUIRES: the session is loaded and outlives this.
  explicit RunReport(Session& session);

  Report collect(const GenerationRequest& request, const Generation& generation, const std::string& finish_reason,
                 std::uint64_t output_hash) const;

 private:
  Session& session_;
  std::uint64_t cache_address_;
};

}  // namespace genai::cli
