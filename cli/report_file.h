// report_file.h - the file of --report-file. It is opened before the work begins, so that a path that cannot be written
// is known then, and emptied, so that an old report is never mistaken for this run's.
#pragma once
#include <string>
#include <string_view>

namespace genai::cli {

class ReportFile {
 public:
  // An empty path: no file, and write does nothing. `model_path` is a file that must not be overwritten. Throws
  // UsageError where the file cannot be opened.
  ReportFile(const std::string& path, const std::string& model_path);
  ~ReportFile();
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  // Throws Error where the bytes cannot be written.
  void write(std::string_view text);

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace genai::cli
