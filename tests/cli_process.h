// cli_process.h - runs the genai executable as a user would: own process, own environment, pipes for the three streams,
// and what it cost. $GENAI_BINARY, else the one that was built with the tests. It runs on the host device.
#pragma once
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace genai::test {

struct ProcessResult {
  int exit_code = -1;  // 128 + N where signal N ended it
  bool timed_out = false;
  std::string out;
  std::string err;
  double cpu_seconds = 0.0;
  std::uint64_t rss_peak_bytes = 0;  // never below what this process had at the fork:
  std::uint64_t rss_floor_bytes = 0;
};

struct ProcessOptions {
  std::map<std::string, std::string> environment{};  // beside what the tests run in, less every GENAI_ variable
  std::string input{};
  bool keep_stdin_open = false;  // after `input`, until the process has ended
  std::optional<int> out{};      // stdout goes here and is not collected
  std::optional<int> err{};      // so does stderr
  bool closed_stdout = false;
};

// One child. Its streams are collected whenever something is waited for.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  // False when the child ended, or nothing of the kind happened for a minute.
  bool wait_until(const std::function<bool()>& condition);
  void signal(int number);
  void close_stdout();
  bool has_ended();
  // Whether the child used no processor time for a while: it waits for something.
  bool is_idle();
  ProcessResult finish();

 private:
  void collect(int timeout_ms);

  pid_t id_ = -1;
  int in_ = -1, out_pipe_ = -1, err_pipe_ = -1;
  std::string input_;
  bool keep_stdin_open_ = false;
  std::string out_, err_;
  std::uint64_t rss_floor_bytes_ = 0;
  std::optional<ProcessResult> result_;
};

ProcessResult run_genai(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

}  // namespace genai::test
