// The executable and the world around it: Ctrl-C, readers that go away, full disks, closed descriptors.
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using Json = nlohmann::json;

namespace {

// A model that says "xx" for ever, and the arguments that let it.
struct Endless {
  Endless() {
    ScriptedModel model;
    const auto ids = model.add_line({"a", "xx"});
    model.says({ids[1], ids[1]});
    model.writer().build().write(path);
  }
  std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"-m", path, "-p", "a", "-c", "1000000", "--log-level", "error"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  TemporaryFolder folder;
  std::string path = folder / "endless.gguf";
};

}  // namespace

TEST_CASE("cli: Ctrl-C keeps the text so far, prints the report and exits 130") {
  const Endless model;
  Process process(model.arguments());
  REQUIRE(process.wait_until([&] { return process.out().size() >= 10; }));
  process.signal(SIGINT);
  const ProcessResult result = process.finish();
  INFO(result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 130);
  CHECK(result.out.find_first_not_of('x') == std::string::npos);
  const Json report = Json::parse(result.err);
  CHECK(report.at("finish_reason") == "interrupted");
  CHECK(result.out.size() == 2 * report.at("generated_tokens").get<std::size_t>());
}

TEST_CASE("cli: Ctrl-C gives out what a stop text held back") {
  const Endless model;
  Process process(model.arguments({"--stop", "xxxxxxxxxxxx", "--stop", "y"}));
  const ProcessResult stopped = process.finish();
  CHECK(stopped.exit_code == 0);
  CHECK(stopped.out.empty());

  Process held(model.arguments({"-n", "3", "--stop", "xxxxxxxxxxxx"}));
  CHECK(held.finish().out == "xxxxxx");
}

TEST_CASE("cli: Ctrl-C while the prompt is read from stdin exits 130 with no text") {
  const Endless model;
  Process process({"-m", model.path, "-p", "-"}, {.input = "a", .keep_stdin_open = true});
  REQUIRE(process.wait_until([&] { return process.is_idle(); }));
  process.signal(SIGINT);
  const ProcessResult result = process.finish();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 130);
  CHECK(result.out.empty());
}

TEST_CASE("cli: a second Ctrl-C ends a run that cannot even write") {
  const Endless model;
  // A pipe that is full before the run begins, and that nobody reads.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const std::string filling(65536, '.');
  while (::write(ends[1], filling.data(), filling.size()) > 0) {
  }
  while (::write(ends[1], ".", 1) > 0) {
  }
  ::fcntl(ends[1], F_SETFL, 0);
  Process process(model.arguments({"--dump-prompt"}), {.out = ends[1]});
  REQUIRE(process.wait_until([&] { return !process.err().empty(); }));  // the handler is in place
  REQUIRE(process.wait_until([&] { return process.is_idle(); }));
  for (int i = 0; i < 100 && !process.has_ended(); ++i) {
    process.signal(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const ProcessResult result = process.finish();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 130);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("cli: a reader that goes away ends the run quietly") {
  const Endless model;
  Process process(model.arguments());
  REQUIRE(process.wait_until([&] { return process.out().size() >= 4; }));
  process.close_stdout();
  const ProcessResult result = process.finish();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 0);
  CHECK(Json::parse(result.err).at("finish_reason") == "output_closed");
}

TEST_CASE("cli: text that cannot be written is a failure, not a success") {
  const Endless model;
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  const ProcessResult result = run_genai(model.arguments(), {.out = full});
  ::close(full);
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("cannot write the text") != std::string::npos);

  const ProcessResult closed = run_genai(model.arguments(), {.closed_stdout = true});
  CHECK(closed.exit_code == 1);
  CHECK(closed.err.find("cannot write the text") != std::string::npos);
}

TEST_CASE("cli: on a terminal the report is one line of words, and text that ends inside a line gets a line break") {
  const Endless model;
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const int child_side = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(child_side >= 0);
  ::fcntl(terminal, F_SETFL, O_NONBLOCK);
  const auto shown = [&] {
    char buffer[4096];
    const ssize_t count = ::read(terminal, buffer, sizeof buffer);
    return std::string(buffer, count > 0 ? static_cast<std::size_t>(count) : 0);
  };

  const ProcessResult piped = run_genai(model.arguments({"-n", "2"}), {.err = child_side});
  CHECK(piped.exit_code == 0);
  CHECK(piped.out == "xxxx");
  const std::string summary = shown();
  CHECK(summary.starts_with("[2 tokens"));
  CHECK(summary.find('{') == std::string::npos);
  CHECK(summary.ends_with("]\r\n"));

  CHECK(run_genai(model.arguments({"-n", "2", "--report", "none"}), {.out = child_side, .err = child_side}).exit_code ==
        0);
  CHECK(shown() == "xxxx\r\n");
  ::close(child_side);
  ::close(terminal);
}
