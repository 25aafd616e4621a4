#include "cli/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace genai::cli {
namespace {

constexpr auto kProgressAfter = std::chrono::milliseconds(500);
constexpr auto kProgressEvery = std::chrono::milliseconds(100);

}  // namespace

Console::Console(int descriptor, LogLevel level)
    : descriptor_(descriptor), level_(level), is_terminal_(::isatty(descriptor) == 1) {}

void Console::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd waiting{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

void Console::message(LogLevel level, std::string_view kind, std::string_view text) {
  if (level > level_) return;
  erase_progress();
  write(fmt::format("genai: {}{}\n", kind, text));
}

void Console::warn(std::string_view text) { message(LogLevel::warn, "warning: ", text); }
void Console::info(std::string_view text) { message(LogLevel::info, "", text); }
void Console::debug(std::string_view text) { message(LogLevel::debug, "debug: ", text); }

void Console::fail(std::string_view text, std::string_view hint) {
  erase_progress();
  std::string lines = fmt::format("genai: {}\n", text);
  if (!hint.empty()) lines += fmt::format("hint: {}\n", hint);
  write(lines);
}

void Console::line(std::string_view text) {
  erase_progress();
  write(fmt::format("{}\n", text));
}

void Console::end_line() { write("\n"); }

void Console::begin_progress(std::string label) {
  end_progress();
  progress_label_ = std::move(label);
  progress_start_ = Clock::now();
}

void Console::show_progress(std::uint64_t done, std::uint64_t total, std::string_view unit) {
  if (!is_terminal_ || level_ < LogLevel::info) return;
  const auto now = Clock::now();
  if (now - progress_start_ < kProgressAfter) return;
  if (progress_visible_ && now - progress_shown_ < kProgressEvery) return;
  progress_visible_ = true;
  progress_shown_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const bool is_bytes = unit == "bytes";
  const std::string amounts =
      is_bytes ? fmt::format("{} of {} MiB", done >> 20, total >> 20) : fmt::format("{} of {} {}", done, total, unit);
  write(fmt::format("\r\x1b[K{} {:3.0f} %  {}", progress_label_, 100.0 * share, amounts));
}

void Console::end_progress() { erase_progress(); }

void Console::erase_progress() {
  if (progress_visible_) write("\r\x1b[K");
  progress_visible_ = false;
}

}  // namespace genai::cli
