// version.h - which genai this is. The build defines GENAI_VERSION from the project's version.
#pragma once
#include <string_view>

namespace genai::cli {

#ifdef GENAI_VERSION
inline constexpr std::string_view kVersion = GENAI_VERSION;
#else
inline constexpr std::string_view kVersion = "0.0.0-unversioned";
#endif
// Of engine/README.md: changes with any bit of any logit.
inline constexpr int kArithmetic = 1;
// Of the report (report.h): changes when a field changes its meaning or goes away, not when one is added.
inline constexpr int kReportSchema = 1;

}  // namespace genai::cli
