// output.h - stdout, and the only way to it. Every byte is handed to the system before write() returns, so nothing is
// lost when the process ends. A reader that goes away is an answer, not an error: the text is no longer wanted.
// One thread.
#pragma once
#include <cstdint>
#include <string_view>

namespace genai::cli {

class Output {
 public:
  explicit Output(int descriptor);

  // False once the reader has gone away; from then on nothing is written. Throws Error when the bytes cannot be written
  // for another reason (a full disk, a closed descriptor).
  bool write(std::string_view bytes);

  bool reader_gone() const { return reader_gone_; }
  bool is_terminal() const { return is_terminal_; }
  // Whether a prompt of the shell would begin in the middle of a line.
  bool is_inside_line() const { return is_inside_line_; }

 private:
  int descriptor_;
  bool is_terminal_;
  bool reader_gone_ = false;
  bool is_inside_line_ = false;
};

}  // namespace genai::cli
