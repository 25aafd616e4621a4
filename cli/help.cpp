#include "cli/help.h"

#include <fmt/format.h>

#include <vector>

#include "cli/version.h"

namespace genai::cli {
namespace {

constexpr std::size_t kHelpColumn = 34;
constexpr std::size_t kWidth = 110;

constexpr std::string_view kRunExamples =
    R"(  genai -m model.gguf -p "Once upon a time" -n 64
  genai -m model.gguf -f prompt.txt --temp 0.8 --seed 7
  echo "2 + 2 =" | genai run -m model.gguf -p - -n 8 --stop "\n" -e
  genai -m model.gguf -p "Hello" --device cpu -t 4 --report json 2>report.json
  genai -m model.gguf --batch-file prompts.jsonl -np 8 --json >results.json
)";
constexpr std::string_view kTokenizeExamples =
    R"(  genai tokenize -m model.gguf -p "Hello world!"
  genai tokenize -m model.gguf -f prompt.txt --ids --no-bos
)";
constexpr std::string_view kInspectExamples =
    R"(  genai inspect model.gguf
  genai inspect -m model.gguf --check
  genai inspect -m model.gguf --json
)";
constexpr std::string_view kRunNotes =
    R"(
stdout carries the generated text and nothing else; between two texts stands a line with the character U+001E alone.
Every flag --some-flag has a twin GENAI_SOME_FLAG in the environment; the flag beats it. GENAI_ISA=scalar, avx2, avx512
or amx chooses the processor's instructions: same bits.

Exit codes: 0 ok, 1 failure, 2 usage, 3 bad model file, 4 device, 5 does not fit the budget, 6 prompt longer than the
context, 130 interrupted.
)";

constexpr std::string_view kPlanExamples =
    R"(  genai plan -m model.gguf --gpu-budget 6GiB
  genai plan -m model.gguf --gpu-budget 10%..100%
  genai plan -m model.gguf --gpu-budget 300MiB --weight-offload stream --json
)";
constexpr std::string_view kPerplexityExamples =
    R"(  genai perplexity -m model.gguf -f text.txt -c 512
  genai perplexity -m model-Q4_0.gguf -f text.txt --reference model-F32.gguf
)";

constexpr std::string_view kBenchExamples =
    R"(  genai bench --lanes
  genai bench --lanes --max-bytes 1GiB --device cpu -t 4 --json
)";
constexpr std::string_view kVerifyExamples =
    R"(  genai run -m model.gguf -p "Once upon a time" -n 64 --report-file report.json
  genai verify report.json
  genai verify report.json --gpu-budget 300MiB --weight-offload zerocopy
)";
constexpr std::string_view kVerifyNotes =
    R"(
Prompt and settings are the report's; flags say what is different: device, memory, threads, width of passes. Exit codes
are those of genai run, and 0: all agrees, 1: something differs, 2: the report cannot be replayed (damaged, of another
model or arithmetic).
)";

std::string_view examples(Verb verb) {
  switch (verb) {
    case Verb::run:
      return kRunExamples;
    case Verb::tokenize:
      return kTokenizeExamples;
    case Verb::inspect:
      return kInspectExamples;
    case Verb::plan:
      return kPlanExamples;
    case Verb::perplexity:
      return kPerplexityExamples;
    case Verb::verify:
      return kVerifyExamples;
    case Verb::bench:
      return kBenchExamples;
  }
  return "";
}

// `text` from the help column on, broken at spaces.
std::string wrapped(std::string_view text) {
  std::string result;
  std::size_t column = kHelpColumn;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (column > kHelpColumn && column + 1 + word.size() > kWidth) {
      result += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    }
    if (column > kHelpColumn) result += ' ';
    result += word;
    column += word.size() + 1;
  }
  return result;
}

std::string flag_help(const FlagSpec& spec) {
  std::string left = "  ";
  for (const std::string& name : spec.names) left += (left.size() > 2 ? ", " : "") + name;
  if (!spec.value_name.empty()) left += " " + spec.value_name;
  if (left.size() + 2 > kHelpColumn)
    left += "\n" + std::string(kHelpColumn, ' ');
  else
    left.resize(kHelpColumn, ' ');
  return left + wrapped(spec.help) + "\n";
}

}  // namespace

std::string help_text(Verb verb) {
  std::string text = fmt::format("genai {} - {}\n\n", verb_name(verb), verb_summary(verb));
  text += verb == Verb::run      ? "genai [run] -m FILE -p TEXT [flags]\n"
          : verb == Verb::verify ? "genai verify REPORT.json [flags]\n"
          : verb == Verb::bench  ? "genai bench --lanes [flags]\n"
                                 : fmt::format("genai {} -m FILE [flags]\n", verb_name(verb));
  if (verb == Verb::run) {
    text += "\nVerbs (genai VERB --help says more)\n";
    for (const Verb each : kVerbs)
      text += fmt::format("  {:<{}}{}\n", verb_name(each), kHelpColumn - 2, verb_summary(each));
  }
  std::vector<std::string> groups;
  for (const FlagSpec& spec : flag_table()) {
    if (!spec.is_known_to(verb)) continue;
    if (groups.empty() || groups.back() != spec.group) {
      text += fmt::format("\n{}\n", spec.group);
      groups.push_back(spec.group);
    }
    text += flag_help(spec);
  }
  text += fmt::format("\nExamples\n{}", examples(verb));
  if (verb == Verb::run) text += kRunNotes;
  if (verb == Verb::verify) text += kVerifyNotes;
  return text;
}

std::string version_text() { return fmt::format("genai {} (arithmetic {})\n", kVersion, kArithmetic); }

}  // namespace genai::cli
