// The program: parses, runs one verb, and turns what went wrong into a message and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/inspect.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/perplexity.h"
#include "cli/plan.h"
#include "cli/run.h"
#include "cli/tokenize.h"
#include "cli/verify.h"
#include "engine/error.h"
#include "tokenizer/vocabulary.h"

namespace genai::cli {
namespace {

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kModelFile = 3, kDevice = 4, kBudget = 5, kContext = 6 };

// A descriptor that the parent closed would become that of the next file opened, and text would go there.
void reserve_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int run_verb(const RawCommandLine& line, const Environment& environment, Output& output, Console& console) {
  console.set_level(make_log_level(line));
  std::vector<std::string> warnings = line.warnings;
  switch (line.verb) {
    case Verb::run: {
      const RunOptions options = make_run_options(line, environment, warnings);
      for (const std::string& warning : warnings) console.warn(warning);
      return run(options, output, console);
    }
    case Verb::tokenize: {
      const TokenizeOptions options = make_tokenize_options(line);
      for (const std::string& warning : warnings) console.warn(warning);
      return tokenize(options, output, console);
    }
    case Verb::plan: {
      const PlanOptions options = make_plan_options(line, environment);
      for (const std::string& warning : warnings) console.warn(warning);
      return plan(options, output, console);
    }
    case Verb::bench: {
      const BenchOptions options = make_bench_options(line, environment);
      for (const std::string& warning : warnings) console.warn(warning);
      return bench(options, output, console);
    }
    case Verb::perplexity: {
      const PerplexityOptions options = make_perplexity_options(line, environment);
      for (const std::string& warning : warnings) console.warn(warning);
      return perplexity(options, output, console);
    }
    case Verb::verify: {
      const VerifyOptions options = make_verify_options(line, environment);
      for (const std::string& warning : warnings) console.warn(warning);
      return verify(options, output, console);
    }
    case Verb::inspect: {
      const InspectOptions options = make_inspect_options(line);
      for (const std::string& warning : warnings) console.warn(warning);
      return inspect(options, output, console);
    }
  }
  return kFailure;
}

int run_program(const std::vector<std::string>& arguments, Output& output, Console& console) {
  const Environment environment = read_environment();
  const RawCommandLine line = read_command_line(arguments, environment);
  if (line.find(Flag::help) != nullptr) {
    output.write(help_text(line.verb));
    return kOk;
  }
  if (line.find(Flag::version) != nullptr) {
    output.write(version_text());
    return kOk;
  }
  return run_verb(line, environment, output, console);
}

// Most specific first: the types derive from one another.
int run_and_explain(const std::vector<std::string>& arguments, Output& output, Console& console) {
  const auto explain = [&](const Error& error, int exit_code) {
    console.fail(error.what(), error.hint());
    return exit_code;
  };
  try {
    return run_program(arguments, output, console);
  } catch (const UsageError& error) {
    return explain(error, kUsage);
  } catch (const ModelFileError& error) {
    return explain(error, kModelFile);
  } catch (const DeviceError& error) {
    return explain(error, kDevice);
  } catch (const BudgetError& error) {
    return explain(error, kBudget);
  } catch (const ContextError& error) {
    return explain(error, kContext);
  } catch (const Error& error) {
    return explain(error, kFailure);
  } catch (const TokenizerError& error) {
    console.fail(error.what(), error.hint());
    return kModelFile;
  } catch (const Interrupted&) {
    console.end_progress();
    return kInterruptedExitCode;
  } catch (const std::bad_alloc&) {
    console.fail("out of host memory", "close other programs, or ask for a smaller context (-c) or batch (-ub)");
    return kFailure;
  } catch (const std::exception& error) {
    console.fail(error.what(), "this is a bug in genai: please report it with the command line");
    return kFailure;
  }
}

}  // namespace
}  // namespace genai::cli

int main(int argc, char** argv) {
  using namespace genai::cli;
  reserve_standard_descriptors();
  install_signal_handlers();
  Output output(STDOUT_FILENO);
  Console console(STDERR_FILENO);
  return run_and_explain(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), output, console);
}
