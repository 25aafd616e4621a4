#include "cli/prompt_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/interrupt.h"
#include "engine/error.h"

namespace genai::cli {
namespace {

// Closes what it opened.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void reject(const std::string& name, const std::string& why, const std::string& hint) {
  throw UsageError(fmt::format("cannot read {}: {}", name, why), hint);
}

std::string read_all(int descriptor, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    throw_if_interrupted();
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count > 0) {
      text.append(buffer, static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
      ::poll(&waiting, 1, -1);  // returns early on a signal
    } else if (errno != EINTR) {
      reject(name, std::strerror(errno), "check that it is a text file and readable");
    }
  }
}

}  // namespace

std::string read_text_file(const std::string& path) {
  // Not blocking, so that a pipe without a writer is seen as such instead of waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.number() < 0)
    reject(path, std::strerror(errno), errno == ENOENT ? "check the path" : "check its permissions");
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) reject(path, std::strerror(errno), "check the path");
  if (S_ISDIR(status.st_mode)) reject(path, "it is a folder", "name a file in it");
  std::string text = read_all(file.number(), path);
  if (text.empty() && S_ISFIFO(status.st_mode))
    reject(path, "it is a pipe, and nobody writes to it", "start the writer first, or pipe into stdin with -p -");
  return text;
}

std::string read_prompt(const PromptOptions& options) {
  switch (options.source) {
    case PromptOptions::Source::text:
      return options.text;
    case PromptOptions::Source::file:
      return read_text_file(options.text);
    case PromptOptions::Source::standard_input:
      return read_all(STDIN_FILENO, "stdin");
  }
  return {};
}

}  // namespace genai::cli
