// interrupt.h - Ctrl-C. The first one sets a flag that long work looks at; the second one ends the process at once.
#pragma once
#include <atomic>
#include <exception>

namespace genai::cli {

inline constexpr int kInterruptedExitCode = 130;

// Work that was given up before there was a result to show. What was half done is dropped.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

// Also makes writing to a closed pipe an error code instead of a signal. Where the parent wants SIGINT ignored (a shell
// that runs us in the background), it stays ignored.
void install_signal_handlers();

const std::atomic<bool>& interrupt_flag();
// Throws Interrupted once the flag is set.
void throw_if_interrupted();

}  // namespace genai::cli
