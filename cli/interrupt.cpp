#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace genai::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch nothing else");

void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(kInterruptedExitCode);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction previous {};
  if (::sigaction(SIGINT, nullptr, &previous) == 0 && previous.sa_handler != SIG_IGN) {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    // No SA_RESTART: a read of the prompt from a terminal must return.
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& interrupt_flag() { return interrupted; }

void throw_if_interrupted() {
  if (interrupted.load(std::memory_order_relaxed)) throw Interrupted();
}

}  // namespace genai::cli
