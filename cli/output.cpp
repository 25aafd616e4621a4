#include "cli/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/error.h"

namespace genai::cli {

Output::Output(int descriptor) : descriptor_(descriptor), is_terminal_(::isatty(descriptor) == 1) {}

bool Output::write(std::string_view bytes) {
  while (!bytes.empty() && !reader_gone_) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written > 0) {
      is_inside_line_ = bytes[static_cast<std::size_t>(written) - 1] != '\n';
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EPIPE) {
      reader_gone_ = true;
    } else if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Somebody else made the descriptor non-blocking: wait for room.
      pollfd waiting{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&waiting, 1, -1);
    } else if (written < 0 && errno != EINTR) {
      throw Error(fmt::format("cannot write the text to stdout: {}", std::strerror(errno)),
                  "check where stdout leads: a full disk, or a shell that closed it with >&-");
    }
  }
  return !reader_gone_;
}

}  // namespace genai::cli
