#include "cli/report_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/error.h"

namespace genai::cli {

ReportFile::ReportFile(const std::string& path, const std::string& model_path) : path_(path) {
  if (path.empty()) return;
  std::error_code ignored;
  if (std::filesystem::equivalent(path, model_path, ignored))
    throw UsageError(fmt::format("--report-file names the model itself: {}", path), "choose another name");
  // Not blocking: a pipe that nobody reads is an error, not a wait.
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw UsageError(fmt::format("cannot write the report to {}: {}", path, std::strerror(errno)),
                     "check the path given with --report-file");
  ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
}

ReportFile::~ReportFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ReportFile::write(std::string_view text) {
  while (descriptor_ >= 0 && !text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written > 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      throw Error(fmt::format("cannot write the report to {}: {}", path_, std::strerror(errno)),
                  "the text itself is complete; check where the report goes");
  }
}

}  // namespace genai::cli
