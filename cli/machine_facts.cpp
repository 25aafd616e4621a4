#include "cli/machine_facts.h"

#include <fstream>
#include <sstream>

namespace genai::cli {
namespace {

// What follows the colon of the first line that begins with `name`.
std::string find_value(const char* file_name, const std::string& name) {
  std::ifstream file(file_name);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

// A value in kB.
std::optional<std::uint64_t> find_bytes(const char* file_name, const std::string& name) {
  std::istringstream text(find_value(file_name, name));
  std::uint64_t kibibytes = 0;
  if (!(text >> kibibytes)) return std::nullopt;
  return kibibytes * 1024;
}

}  // namespace

std::string cpu_name() { return find_value("/proc/cpuinfo", "model name"); }

// Not getrusage: its figure begins with what the parent had before exec.
std::optional<std::uint64_t> rss_peak_bytes() { return find_bytes("/proc/self/status", "VmHWM"); }

std::optional<std::uint64_t> huge_page_bytes() { return find_bytes("/proc/self/smaps_rollup", "AnonHugePages"); }

}  // namespace genai::cli
