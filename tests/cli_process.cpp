#include "tests/cli_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace genai::test {
namespace {

constexpr auto kLongestWait = std::chrono::seconds(60);

std::string binary() {
  if (const char* configured = std::getenv("GENAI_BINARY")) return configured;
#ifdef GENAI_BINARY
  return GENAI_BINARY;
#else
  throw std::runtime_error("GENAI_BINARY names no executable");
#endif
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  int ends[2];
  int reader() const { return ends[0]; }
  int writer() const { return ends[1]; }
};

std::vector<std::string> environment_of(const ProcessOptions& options) {
  std::vector<std::string> entries;
  const auto is_replaced = [&](const std::string& entry) {
    return entry.starts_with("GENAI_") || options.environment.contains(entry.substr(0, entry.find('=')));
  };
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!is_replaced(*entry)) entries.emplace_back(*entry);
  // The same on a machine with a GPU, and without a word about there being none.
  if (!options.environment.contains("GENAI_DEVICE")) entries.emplace_back("GENAI_DEVICE=cpu");
  // No plan depends on how fast this machine is just now.
  if (!options.environment.contains("GENAI_LANE_SPEEDS")) entries.emplace_back("GENAI_LANE_SPEEDS=none");
  for (const auto& [name, value] : options.environment) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// Appends what is there; closes at the end.
void drain(int& descriptor, std::string& text) {
  char buffer[65536];
  const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
  if (count > 0)
    text.append(buffer, static_cast<std::size_t>(count));
  else if (count == 0 || (errno != EAGAIN && errno != EINTR))
    close_if_open(descriptor);
}

// Clock ticks that a process has used.
std::uint64_t used_ticks(pid_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

std::uint64_t own_rss_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size_pages = 0, resident_pages = 0;
  file >> size_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const ProcessOptions& options)
    : input_(options.input), keep_stdin_open_(options.keep_stdin_open) {
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> words = {binary()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> entries = environment_of(options);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(entries);
  const Pipe in, out, err;
  rss_floor_bytes_ = own_rss_bytes();
  id_ = ::fork();
  if (id_ < 0) throw std::runtime_error("no process");
  if (id_ == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    ::dup2(in.reader(), STDIN_FILENO);
    ::dup2(options.out ? *options.out : out.writer(), STDOUT_FILENO);
    ::dup2(options.err ? *options.err : err.writer(), STDERR_FILENO);
    if (options.closed_stdout) ::close(STDOUT_FILENO);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(126);
  }
  ::close(in.reader());
  ::close(out.writer());
  ::close(err.writer());
  in_ = in.writer();
  out_pipe_ = out.reader();
  err_pipe_ = err.reader();
  for (const int descriptor : {in_, out_pipe_, err_pipe_}) ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
}

Process::~Process() {
  if (!result_) {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  close_if_open(in_);
  close_if_open(out_pipe_);
  close_if_open(err_pipe_);
}

void Process::collect(int timeout_ms) {
  if (in_ >= 0 && input_.empty() && !keep_stdin_open_) close_if_open(in_);
  pollfd waiting[] = {{.fd = out_pipe_, .events = POLLIN, .revents = 0},
                      {.fd = err_pipe_, .events = POLLIN, .revents = 0},
                      {.fd = input_.empty() ? -1 : in_, .events = POLLOUT, .revents = 0}};
  if (::poll(waiting, 3, timeout_ms) <= 0) return;
  if (waiting[0].revents != 0) drain(out_pipe_, out_);
  if (waiting[1].revents != 0) drain(err_pipe_, err_);
  if (waiting[2].revents != 0) {
    const ssize_t count = ::write(in_, input_.data(), input_.size());
    if (count > 0)
      input_.erase(0, static_cast<std::size_t>(count));
    else
      input_.clear();
  }
}

bool Process::has_ended() {
  if (result_) return true;
  int status = 0;
  rusage usage{};
  if (::wait4(id_, &status, WNOHANG, &usage) != id_) return false;
  result_.emplace();
  result_->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result_->cpu_seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  result_->rss_peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  result_->rss_floor_bytes = rss_floor_bytes_;
  return true;
}

bool Process::wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  while (!condition()) {
    if (has_ended() || std::chrono::steady_clock::now() > deadline) return false;
    collect(20);
  }
  return true;
}

void Process::signal(int number) { ::kill(id_, number); }

void Process::close_stdout() { close_if_open(out_pipe_); }

bool Process::is_idle() {
  const std::uint64_t before = used_ticks(id_);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return used_ticks(id_) == before;
}

ProcessResult Process::finish() {
  wait_until([this] { return has_ended(); });
  if (!has_ended()) {
    ::kill(id_, SIGKILL);
    while (!has_ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result_->timed_out = true;
  }
  while (out_pipe_ >= 0) collect(-1);
  while (err_pipe_ >= 0) collect(-1);
  result_->out = out_;
  result_->err = err_;
  return *result_;
}

ProcessResult run_genai(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  return Process(arguments, options).finish();
}

}  // namespace genai::test
