// error.h - what can go wrong, as types. The command line maps each type to an exit code (cli/main.cpp); the engine
// itself never prints and never exits. Every message says what happened and why; the hint says what the user can do.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace genai {

// A failure that is nobody's fault but ours or the machine's. Exit code 1.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = {}) : std::runtime_error(what), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// The caller asked for something contradictory or out of range. Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A model file that cannot be trusted or is not supported. Exit code 3.
class ModelFileError : public Error {
 public:
  // `offset` is the byte position in `file` at which reading stopped making sense.
  ModelFileError(std::string file, std::uint64_t offset, std::string expected, std::string found, std::string hint = {})
      : Error(file + ": at byte " + std::to_string(offset) + ": expected " + expected + ", found " + found,
              std::move(hint)),
        file_(std::move(file)),
        offset_(offset) {}
  // For problems of meaning (a missing tensor, an unknown architecture) that no single byte is guilty of.
  ModelFileError(std::string file, const std::string& problem, std::string hint = {})
      : Error(file + ": " + problem, std::move(hint)), file_(std::move(file)) {}
  const std::string& file() const { return file_; }
  std::uint64_t offset() const { return offset_; }

 private:
  std::string file_;
  std::uint64_t offset_ = 0;
};

// The device refused: no driver, out of memory, lost. Exit code 4.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// Page-locked host memory was refused. Whoever can do with pageable memory catches this and goes on with that.
class PinnedMemoryError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// The request does not fit the memory it may use. Exit code 5.
class BudgetError : public Error {
 public:
  BudgetError(const std::string& what, std::uint64_t asked_bytes, std::uint64_t available_bytes, std::string hint = {})
      : Error(what, std::move(hint)), asked_bytes_(asked_bytes), available_bytes_(available_bytes) {}
  std::uint64_t asked_bytes() const { return asked_bytes_; }
  std::uint64_t available_bytes() const { return available_bytes_; }

 private:
  std::uint64_t asked_bytes_;
  std::uint64_t available_bytes_;
};

// A prompt (or prompt and answer) longer than the context. Exit code 6.
class ContextError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] inline void expectation_failed(const char* condition, const std::string& message, const char* file,
                                            int line) {
  throw Error(std::string(file) + ":" + std::to_string(line) + ": " + message + " (" + condition + ")",
              "this is a bug in genai: please report it with the command line");
}

}  // namespace genai

// Precondition of a public call: always on, throws.
#define GENAI_EXPECT(condition, message) \
  ((condition) ? (void)0 : ::genai::expectation_failed(#condition, (message), __FILE__, __LINE__))
