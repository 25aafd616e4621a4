// Many texts from one run of the executable: --batch-file and --parallel. Each text is the one that its prompt and
// settings give alone; they come out in the order of the prompts; what is wrong in a file is named by its line.
#include <nlohmann/json.hpp>

#include "cli/batch_file.h"
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using genai::UsageError;
using Json = nlohmann::json;

namespace {

const std::string kSeparator = "\n\x1e\n";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// "a" is followed by "bcdefgh", and so on round.
struct Letters {
  Letters() {
    ScriptedModel model;
    auto ids = model.add_line({"a", "b", "c", "d", "e", "f", "g", "h"});
    model.says({ids.back(), ids.front()});
    model.writer().build().write(path);
  }
  ProcessResult run(std::vector<std::string> more, const ProcessOptions& options = {}) const {
    more.insert(more.begin(), {"-m", path, "-c", "64", "--log-level", "error"});
    return run_genai(more, options);
  }
  ProcessResult run_file(const std::string& text, std::vector<std::string> more) const {
    more.insert(more.begin(), {"--batch-file", folder.write("prompts", text)});
    return run(more);
  }

  TemporaryFolder folder;
  std::string path = folder / "letters.gguf";
};

const Letters& letters() {
  static const Letters shared;
  return shared;
}

std::vector<genai::cli::PromptRow> read_rows(const std::string& text, bool replace_escapes = false) {
  std::vector<std::string> warnings;
  return genai::cli::read_batch_file({.name = "file", .text = text, .replace_escapes = replace_escapes},
                                     {.max_tokens = 9, .seed = 4, .sampler = {}, .stops = {"end"}}, warnings);
}

void check_rejected(const std::string& text, const std::string& part) {
  INFO(text);
  try {
    read_rows(text);
    FAIL_CHECK("nothing was wrong");
  } catch (const UsageError& error) {
    INFO(error.what() << "; " << error.hint());
    CHECK(contains(std::string(error.what()) + "; " + error.hint(), part));
  }
}

}  // namespace

TEST_CASE("cli: a plain batch file is one prompt a line, byte for byte") {
  const auto rows = read_rows("a b\r\n\n{x}\nlast");
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].prompt == "a b\r");
  CHECK(rows[1].prompt.empty());
  CHECK(rows[2].prompt == "{x}");
  CHECK(rows[3].prompt == "last");
  CHECK(rows[3].origin == "file:4");
  CHECK(rows[3].settings.max_tokens == 9);
  CHECK(rows[3].settings.seed == 4u);
  CHECK(read_rows("a\\nb\n", true)[0].prompt == "a\nb");
  CHECK(read_rows("a\\nb\n").front().prompt == "a\\nb");
  check_rejected("", "no prompt");
}

TEST_CASE("cli: a line of JSONL has settings of its own, and the command line's where it says nothing") {
  const auto rows = read_rows(
      "{\"prompt\": \"a\\nb\"}\n"
      "\n"
      "{\"prompt\": \"c\", \"n\": 3, \"temp\": 0.5, \"top_k\": 7, \"top_p\": 0.25, \"min_p\": 0, \"typical_p\": 0.75,"
      " \"repeat_penalty\": 1.5, \"repeat_last_n\": -1, \"presence_penalty\": -0.5, \"frequency_penalty\": 2,"
      " \"seed\": 18446744073709551615, \"stop\": [\"x\", \"y\"]}\n"
      "{\"prompt\": \"d\", \"max_tokens\": -1, \"seed\": -1, \"stop\": \"z\"}");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].prompt == "a\nb");
  CHECK(rows[0].settings.stops == std::vector<std::string>{"end"});
  CHECK(rows[1].origin == "file:3");
  const genai::cli::RowSettings& settings = rows[1].settings;
  CHECK(settings.max_tokens == 3);
  CHECK(settings.sampler.temperature == 0.5);
  CHECK(settings.sampler.top_k == 7);
  CHECK(settings.sampler.top_p == 0.25);
  CHECK(settings.sampler.min_p == 0.0);
  CHECK(settings.sampler.typical_p == 0.75);
  CHECK(settings.sampler.repeat_penalty == 1.5);
  CHECK(settings.sampler.repeat_last_n == -1);
  CHECK(settings.sampler.presence_penalty == -0.5);
  CHECK(settings.sampler.frequency_penalty == 2.0);
  CHECK(settings.seed == 18446744073709551615ull);
  CHECK(settings.stops == std::vector<std::string>{"x", "y"});
  CHECK(rows[2].settings.max_tokens == -1);
  CHECK_FALSE(rows[2].settings.seed);
  CHECK(rows[2].settings.stops == std::vector<std::string>{"z"});
}

TEST_CASE("cli: what is wrong in a batch file is named by file and line") {
  const std::string good = "{\"prompt\": \"a\"}\n";
  check_rejected(good + "{\"prompt\": \"a\", \"stpo\": \"x\"}", "file:2: unknown key 'stpo'; did you mean stop?");
  check_rejected(good + good + "{\"n\": 3}", "file:3: there is no \"prompt\"");
  check_rejected(good + "{\"prompt\": \"a\"", "file:2: not JSON, at byte 15");
  check_rejected(good + "a", "file:2: not JSON");
  check_rejected(good + "[1]", "file:2: not a JSON object");
  check_rejected("{\"prompt\": 3}", "file:1: prompt: expected a text, found 3");
  check_rejected("{\"prompt\": \"a\", \"prompt\": \"b\"}", "file:1: the key 'prompt' stands there twice");
  check_rejected("{\"prompt\": \"a\", \"n\": 1, \"max_tokens\": 2}", "is given twice");
  check_rejected("{\"prompt\": \"a\", \"n\": 1.5}", "a whole number");
  check_rejected("{\"prompt\": \"a\", \"n\": -2}", "from -1 to");
  check_rejected("{\"prompt\": \"a\", \"n\": 18446744073709551615}", "from -1 to");
  check_rejected("{\"prompt\": \"a\", \"top_k\": -1}", "from 0 to");
  check_rejected("{\"prompt\": \"a\", \"seed\": -2}", "from 0 on");
  check_rejected("{\"prompt\": \"a\", \"temperature\": \"hot\"}", "expected a number");
  check_rejected("{\"prompt\": \"a\", \"temperature\": -1}", "file:1: temperature is -1");
  check_rejected("{\"prompt\": \"a\", \"stop\": \"\"}", "not empty");
  check_rejected("{\"prompt\": \"a\", \"stop\": [1]}", "expected a text");
  std::vector<std::string> warnings;
  genai::cli::read_batch_file({.name = "file", .text = good + "{\"prompt\": \"a\", \"top_k\": 3}"}, {}, warnings);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "file:2: filters cannot change a greedy choice"));
}

TEST_CASE("cli: texts of a batch come out in the order of the prompts, one separator between two") {
  for (const char* width : {"1", "2", "3", "16"}) {
    INFO(width);
    const ProcessResult result = letters().run_file("a\ncd\nh\ng\n", {"-n", "3", "-np", width});
    CHECK(result.exit_code == 0);
    CHECK(result.out == "bcd" + kSeparator + "efg" + kSeparator + "abc" + kSeparator + "hab");
    const Json report = Json::parse(result.err);
    CHECK(report.at("batch") == std::min(std::stoi(width), 4));
    CHECK(report.at("rows").size() == 4);
    CHECK(report.at("prompt_tokens") == 5);
    CHECK(report.at("generated_tokens") == 12);
    CHECK(report.at("rows")[1].at("prompt_tokens") == 2);
    CHECK(report.at("rows")[1].at("generated_tokens") == 3);
    CHECK_FALSE(report.contains("finish_reason"));
    CHECK_FALSE(report.contains("seed"));
  }
  const ProcessResult mixed = letters().run_file(
      "{\"prompt\": \"a\", \"n\": 7}\n{\"prompt\": \"a\", \"n\": 0}\n{\"prompt\": \"b\", \"stop\": \"e\"}\n",
      {"-np", "2"});
  CHECK(mixed.out == "bcdefgh" + kSeparator + kSeparator + "cd");
  const Json rows = Json::parse(mixed.err).at("rows");
  CHECK(rows[0].at("finish_reason") == "length");
  CHECK_FALSE(rows[1].contains("logits_hash"));
  CHECK(rows[2].at("finish_reason") == "stop");
  // One line is one text: no separator, and a report as of one prompt.
  const ProcessResult single = letters().run_file("a\n", {"-n", "2", "-np", "4"});
  CHECK(single.out == "bc");
  CHECK(Json::parse(single.err).at("finish_reason") == "length");
  CHECK(Json::parse(single.err).at("batch") == 1);
}

TEST_CASE("cli: each row of a batch file is the run of its prompt and settings alone") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  struct Case {
    std::string line;
    std::vector<std::string> flags;
  };
  const std::vector<Case> cases = {
      {R"({"prompt": "hello there"})", {"-p", "hello there"}},
      {R"({"prompt": "Once", "n": 60, "temperature": 1, "seed": 5})",
       {"-p", "Once", "-n", "60", "--temp", "1", "-s", "5"}},
      {R"({"prompt": "Once", "n": 60, "temperature": 1})", {"-p", "Once", "-n", "60", "--temp", "1"}},
      {R"({"prompt": "x", "n": 3})", {"-p", "x", "-n", "3"}},
      {R"({"prompt": "the cat", "repeat_penalty": 1.3, "min_p": 0, "temp": 0.7})",
       {"-p", "the cat", "--repeat-penalty", "1.3", "--min-p", "0", "--temp", "0.7"}},
      {R"({"prompt": "hello there", "n": 100})", {"-p", "hello there", "-n", "100"}}};
  const std::vector<std::string> common{"-m", path->string(), "-c",    "128", "-n",       "40",  "-s", "11", "-t",
                                        "1",  "--log-level",  "error", "-q",  "--report", "json"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    const ProcessResult result = run_genai(more);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result;
  };
  std::vector<Json> expected;
  std::string lines, text;
  for (const Case& each : cases) {
    const ProcessResult alone = run(each.flags);
    expected.push_back(Json::parse(alone.err));
    text += (text.empty() ? "" : kSeparator) + alone.out;
    lines += each.line + "\n";
  }
  const TemporaryFolder folder;
  const std::string file = folder.write("prompts.jsonl", lines);
  std::optional<std::uint64_t> step_bytes, step_page_ins;
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"-np", "2"},
           {"-np", "4", "--no-cuda-graph"},
           {"-np", "8", "-ub", "1"},
           {"-np", "1", "--cold", "ffn", "--weight-offload", "stream"},
           {"-np", "3", "--cold", "ffn", "--weight-offload", "stream"},
           {"-np", "16", "--cold", "ffn", "--weight-offload", "stream", "--no-cuda-graph"},
           {"-np", "4", "--cold", "ffn", "--weight-offload", "split"}}) {
    std::vector<std::string> arguments{"--batch-file", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult batch = run(arguments);
    INFO(batch.err);
    CHECK(batch.out == text);
    const Json report = Json::parse(batch.err);
    REQUIRE(report.at("rows").size() == cases.size());
    for (std::size_t row = 0; row < cases.size(); ++row)
      for (const char* field :
           {"prompt_tokens", "generated_tokens", "seed", "finish_reason", "prompt_hash", "output_hash", "logits_hash"})
        CHECK(report.at("rows")[row].at(field) == expected[row].at(field));
    if (report.at("mode") != "stream") continue;
    const auto steps = report.at("decode_steps").get<std::uint64_t>();
    CHECK(report.at("htod_bytes").get<std::uint64_t>() % steps == 0);
    if (!step_bytes) {
      step_bytes = report.at("htod_bytes").get<std::uint64_t>() / steps;
      step_page_ins = report.at("page_ins").get<std::uint64_t>() / steps;
    }
    CHECK(report.at("htod_bytes") == *step_bytes * steps);
    CHECK(report.at("page_ins") == *step_page_ins * steps);
  }
}

TEST_CASE("cli: --parallel of one prompt is N texts: equal ones if greedy, else of seeds that count up") {
  const ProcessResult greedy = letters().run({"-p", "a", "-n", "3", "-np", "3"});
  CHECK(greedy.exit_code == 0);
  CHECK(greedy.out == "bcd" + kSeparator + "bcd" + kSeparator + "bcd");
  const Json report = Json::parse(greedy.err);
  CHECK(report.at("captures") == 1);
  CHECK(report.at("invalidations") == 0);
  CHECK(report.at("replays") == 2);
  CHECK(report.at("rows")[0].at("logits_hash") == report.at("rows")[2].at("logits_hash"));

  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const auto run = [&](const char* seed, const char* width) {
    return run_genai({"-m", path->string(), "-p", "Once", "-n", "20", "-c", "64", "--temp", "1", "-s", seed, "-np",
                      width, "-q"})
        .out;
  };
  const std::string first = run("7", "1"), second = run("8", "1"), third = run("9", "1");
  CHECK(first != second);
  CHECK(run("7", "3") == first + kSeparator + second + kSeparator + third);
}

TEST_CASE("cli: --json is one document with a result for each prompt, and nothing else on stdout") {
  const ProcessResult one = letters().run({"-p", "a", "-n", "3", "--json", "-s", "6"});
  const Json document = Json::parse(one.out);
  REQUIRE(document.at("results").size() == 1);
  const Json& result = document.at("results")[0];
  CHECK(result.at("index") == 0);
  CHECK(result.at("text") == "bcd");
  CHECK(result.at("finish_reason") == "length");
  CHECK(result.at("seed") == 6);
  CHECK(result.at("prompt_tokens") == 1);
  CHECK(result.at("generated_tokens") == 3);
  const Json report = Json::parse(one.err);
  for (const char* field : {"output_hash", "logits_hash", "prompt_hash"}) CHECK(result.at(field) == report.at(field));

  const ProcessResult plain = letters().run_file("a\nb\n", {"-n", "2", "-np", "2"});
  const ProcessResult many = letters().run_file("a\nb\n", {"-n", "2", "-np", "2", "--json"});
  CHECK(Json::parse(many.out).at("results")[1].at("text") == "cd");
  CHECK(Json::parse(many.err).at("output_hash") == Json::parse(plain.err).at("output_hash"));
}

TEST_CASE("cli: a batch file is read from stdin too, and is one of three sources of a prompt") {
  const ProcessResult piped = letters().run({"--batch-file", "-", "-n", "1"}, {.input = "a\nb\n"});
  CHECK(piped.out == "b" + kSeparator + "c");
  const ProcessResult bad = letters().run({"--batch-file", "-"}, {.input = "{\"prompt\": 1}"});
  CHECK(bad.exit_code == 2);
  CHECK(contains(bad.err, "stdin:1: prompt"));
  const ProcessResult two = letters().run({"-p", "a", "--batch-file", "x"});
  CHECK(two.exit_code == 2);
  CHECK(contains(two.err, "both give a prompt"));
  // A flag puts variables aside.
  ProcessOptions options;
  options.input = "a\n";
  options.environment = {{"GENAI_PROMPT", "c"}, {"GENAI_FILE", "/nowhere"}};
  CHECK(letters().run({"--batch-file", "-", "-n", "1"}, options).out == "b");
  options.environment = {{"GENAI_BATCH_FILE", "/nowhere"}, {"GENAI_PARALLEL", "2"}};
  CHECK(letters().run({"-p", "a", "-n", "1"}, options).out == "b" + kSeparator + "b");
}

TEST_CASE("cli: errors of a batch are known before anything is computed") {
  const auto check = [](const ProcessResult& result, int exit_code, const std::string& part) {
    INFO(result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(result.out.empty());
    CHECK(contains(result.err, part));
  };
  check(letters().run({"-p", "a", "-np", "0"}), 2, "from 1 to 16");
  check(letters().run({"-p", "a", "-np", "17"}), 2, "from 1 to 16");
  check(letters().run({"--batch-file", "/nowhere/file"}), 2, "cannot read");
  check(letters().run_file("", {}), 2, "no prompt");
  check(letters().run_file("a\n\nb\n", {}), 2, "prompts:2: the prompt has no tokens");
  check(letters().run_file("a\nb\n" + std::string(65, 'a'), {}), 6, "prompts:3: prompt 65 > ctx 64");
  check(letters().run_file("{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"tok\": 1}", {}), 2,
        "prompts:2: unknown key 'tok'");
}

TEST_CASE("cli: the budget holds the cache of every sequence, and the plan says so") {
  const auto plan = [&](const char* width) {
    const ProcessResult result = run_genai({"plan", "-m", letters().path, "-c", "64", "-np", width, "--json"});
    REQUIRE(result.exit_code == 0);
    return Json::parse(result.out);
  };
  const Json one = plan("1"), eight = plan("8");
  CHECK(eight.at("kv_bytes").get<std::uint64_t>() == 8 * one.at("kv_bytes").get<std::uint64_t>());
  const std::string budget = std::to_string(one.at("smallest_budget_bytes").get<std::uint64_t>()) + "B";
  CHECK(letters().run({"-p", "a", "-n", "2", "--gpu-budget", budget}).exit_code == 0);
  const ProcessResult over = letters().run({"-p", "a", "-n", "2", "-np", "8", "--gpu-budget", budget});
  CHECK(over.exit_code == 5);
  CHECK(contains(over.err, "kv cache"));
  CHECK(contains(over.err, "the smallest budget that works is"));
}

TEST_CASE("cli: Ctrl-C in a batch gives out every text so far in order and exits 130") {
  std::string lines;
  for (int row = 0; row < 5; ++row) lines += "a\n";
  const std::string file = letters().folder.write("endless", lines);
  Process process({"-m", letters().path, "--batch-file", file, "-np", "2", "-c", "1000000", "--log-level", "error"});
  REQUIRE(process.wait_until([&] { return process.out().size() >= 10; }));
  process.signal(SIGINT);
  const ProcessResult result = process.finish();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 130);
  const Json rows = Json::parse(result.err).at("rows");
  REQUIRE(rows.size() == 5);
  std::size_t begin = 0;
  for (std::size_t row = 0; row < 5; ++row) {
    CHECK(rows[row].at("finish_reason") == "interrupted");
    const std::size_t end = std::min(result.out.find(kSeparator, begin), result.out.size());
    CHECK(end - begin == rows[row].at("generated_tokens").get<std::size_t>());
    CHECK((end > begin) == (row < 2));
    begin = end + kSeparator.size();
  }
}

TEST_CASE("cli: a reader that goes away ends a batch, and what waits does not begin") {
  std::string lines;
  for (int row = 0; row < 5; ++row) lines += "a\n";
  const std::string file = letters().folder.write("unread", lines);
  Process process({"-m", letters().path, "--batch-file", file, "-np", "2", "-c", "1000000", "--log-level", "error"});
  REQUIRE(process.wait_until([&] { return process.out().size() >= 4; }));
  process.close_stdout();
  const ProcessResult result = process.finish();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == 0);
  const Json rows = Json::parse(result.err).at("rows");
  for (const Json& row : rows) CHECK(row.at("finish_reason") == "output_closed");
  CHECK(rows[4].at("generated_tokens") == 0);
}
