// console.h - stderr: messages by level, the report, and a progress line on a terminal. Everything goes out as whole
// lines, and the progress line is gone before anything else appears. Failing to write to stderr is ignored: there is
// nowhere to say so. One thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace genai::cli {

enum class LogLevel { none, error, warn, info, debug };

class Console {
 public:
  explicit Console(int descriptor, LogLevel level = LogLevel::info);

  void set_level(LogLevel level) { level_ = level; }
  bool is_terminal() const { return is_terminal_; }

  void warn(std::string_view message);
  void info(std::string_view message);
  void debug(std::string_view message);
  // What ends the run: shown at every level.
  void fail(std::string_view message, std::string_view hint);
  // A line that was asked for, as it is, at every level.
  void line(std::string_view text);
  // A line break where the text on the terminal ended inside a line.
  void end_line();

  // Work of a known size. The line appears when it has taken half a second, on a terminal, at level info and above.
  void begin_progress(std::string label);
  // REQUIRES: total > 0. `unit` follows the numbers; bytes are shown as MiB.
  void show_progress(std::uint64_t done, std::uint64_t total, std::string_view unit);
  void end_progress();

 private:
  using Clock = std::chrono::steady_clock;
  void message(LogLevel level, std::string_view kind, std::string_view text);
  void erase_progress();
  void write(std::string_view bytes);

  int descriptor_;
  LogLevel level_;
  bool is_terminal_;
  std::string progress_label_;
  Clock::time_point progress_start_;
  Clock::time_point progress_shown_;
  bool progress_visible_ = false;
};

}  // namespace genai::cli
