// machine_facts.h - what the report says about the processor and this process. Nothing where the system does not say.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace genai::cli {

std::string cpu_name();
// The most memory that this process ever had in use. Shared mappings count, so weights in host memory do.
std::optional<std::uint64_t> rss_peak_bytes();
// Anonymous memory of this process that lies on huge pages now.
std::optional<std::uint64_t> huge_page_bytes();

}  // namespace genai::cli
