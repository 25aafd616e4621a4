// The executable's manners: exit codes, what goes to which stream, the report, environment twins, seeds, context,
// budget. Models are scripted, so nothing here needs a download.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/exact_math.h"
#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using Json = nlohmann::json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t line_count(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// One model for all: after "a" comes "bcdefgh", then the letters go round.
struct Letters {
  Letters() {
    ScriptedModel model;
    auto ids = model.add_line({"a", "b", "c", "d", "e", "f", "g", "h"});
    model.says({ids.back(), ids.front()});
    model.writer().build().write(path);
  }
  ProcessResult run(std::vector<std::string> more, const ProcessOptions& options = {}) const {
    more.insert(more.begin(), {"-m", path});
    return run_genai(more, options);
  }

  TemporaryFolder folder;
  std::string path = folder / "letters.gguf";
};

const Letters& letters() {
  static const Letters shared;
  return shared;
}

void check_usage_error(const std::vector<std::string>& arguments, const std::string& part,
                       const ProcessOptions& options = {}) {
  const ProcessResult result = run_genai(arguments, options);
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("genai: "));
  CHECK(contains(result.err, part));
}

}  // namespace

TEST_CASE("cli: stdout is the text and nothing else, stderr one line of JSON") {
  const ProcessResult result = letters().run({"-p", "a", "-n", "5"});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "bcdef");
  CHECK(line_count(result.err) == 1);
  CHECK(Json::parse(result.err).is_object());
  // The verb may be said.
  const ProcessResult said = run_genai({"run", "-m", letters().path, "-p", "a", "-n", "5"});
  CHECK(said.out == "bcdef");
}

TEST_CASE("cli: quiet flags silence stderr and never the text") {
  const std::vector<std::vector<std::string>> variants = {
      {"-q"}, {"--quiet"}, {"--log-level", "none", "--report", "none"}, {"--report", "none"}};
  for (const std::vector<std::string>& quiet : variants) {
    std::vector<std::string> arguments = {"-p", "a", "-n", "3"};
    arguments.insert(arguments.end(), quiet.begin(), quiet.end());
    const ProcessResult result = letters().run(arguments);
    CHECK(result.exit_code == 0);
    CHECK(result.out == "bcd");
    CHECK(result.err.empty());
  }
  // The report is no log: it stays where it is asked for.
  CHECK(Json::parse(letters().run({"-p", "a", "-n", "1", "--log-level", "none"}).err).contains("logits_hash"));
  CHECK(Json::parse(letters().run({"-p", "a", "-n", "1", "-q", "--report", "json"}).err).contains("logits_hash"));
  // An error ends the run, so it is said at every level.
  CHECK(contains(letters().run({"-p", "zzz", "-q", "--log-level", "none"}).err, "genai: "));
}

TEST_CASE("cli: the report has every field with its type, and none that was not measured") {
  const ProcessResult result = letters().run({"-p", "ab", "-n", "5", "--seed", "0"});
  const Json report = Json::parse(result.err);
  INFO(result.err);
  for (const char* name : {"genai_version", "mode", "finish_reason", "prompt_hash", "output_hash", "logits_hash"})
    CHECK(report.at(name).is_string());
  for (const char* name : {"schema_version",     "arithmetic",       "committed_peak_bytes",
                           "resident_bytes",     "cold_bytes",       "step_weight_bytes",
                           "captures",           "replays",          "fallbacks",
                           "invalidations",      "segments",         "eager_nodes",
                           "kv_committed_bytes", "kv_growth_events", "kv_bytes_moved",
                           "context_tokens",     "ubatch_tokens",    "batch",
                           "prompt_tokens",      "generated_tokens", "seed",
                           "rss_peak_bytes"})
    CHECK(report.at(name).is_number_integer());
  for (const char* name :
       {"load_ms", "time_to_first_token_ms", "prefill_tokens_per_second", "decode_tokens_per_second"})
    CHECK(report.at(name).is_number());
  for (const char* name : {"hbm_gbps", "read_peak_gbps", "roofline_fraction"})  // of a GPU
    CHECK_FALSE(report.contains(name));
  for (const char* name : {"p50", "p90", "p99", "max"}) CHECK(report.at("inter_token_ms").at(name).is_number());
  CHECK(report.at("device").at("name").is_string());
  CHECK(report.at("host").at("threads").is_number_integer());
  CHECK(report.at("host").at("threads_reason").is_string());
  CHECK(report.at("host").at("isa").is_string());
  CHECK(report.at("model").at("path") == letters().path);
  CHECK(report.at("model").at("arch") == "llama");
  CHECK(report.at("model").at("bytes") == std::filesystem::file_size(letters().path));
  CHECK(report.at("model").at("hash").get<std::string>().size() == 16);

  CHECK(report.at("mode") == "resident");
  CHECK(report.at("prompt_tokens") == 2);
  CHECK(report.at("generated_tokens") == 5);
  CHECK(report.at("seed") == 0);
  CHECK(report.at("cold_bytes") == 0);
  CHECK(report.at("captures") == 1);
  CHECK(report.at("replays") == 4);
  CHECK(report.at("segments") == 1);
  CHECK(report.at("kv_growth_events") == 1);
  CHECK(report.at("kv_bytes_moved") == 0);
  CHECK(report.at("logits_hash").get<std::string>().size() == 16);

  CHECK_FALSE(report.contains("budget_bytes"));
  CHECK_FALSE(report.contains("fallback_reason"));
  CHECK_FALSE(report.contains("hbm_gbps"));
  // One token has no time between tokens; no token has no time at all.
  const Json one = Json::parse(letters().run({"-p", "a", "-n", "1"}).err);
  CHECK_FALSE(one.contains("inter_token_ms"));
  CHECK_FALSE(one.contains("decode_tokens_per_second"));
  CHECK(one.contains("time_to_first_token_ms"));
  const Json none = Json::parse(letters().run({"-p", "a", "-n", "0"}).err);
  CHECK(none.at("generated_tokens") == 0);
  CHECK_FALSE(none.contains("time_to_first_token_ms"));
  CHECK_FALSE(none.contains("logits_hash"));
}

TEST_CASE("cli: a report in words, in a file, and both at once") {
  const std::string file = letters().folder / "report.json";
  const ProcessResult result = letters().run({"-p", "a", "-n", "4", "--report", "human", "--report-file", file});
  CHECK(result.out == "bcde");
  CHECK(line_count(result.err) == 1);
  CHECK(contains(result.err, "4 tokens"));
  CHECK(contains(result.err, "GB/s"));
  CHECK(contains(result.err, "logits "));
  CHECK(Json::parse(read_whole_file(file)).at("generated_tokens") == 4);

  CHECK(letters().run({"-p", "a", "--report-file", "/nowhere/report.json"}).exit_code == 2);
  check_usage_error({"-m", letters().path, "-p", "a", "--report-file", letters().path}, "names the model itself");
  CHECK(letters().run({"-p", "a", "-n", "1"}).out == "b");  // still whole
}

TEST_CASE("cli: the report file has the hash of each step's logits, and one changed logit changes one of them") {
  // After "a" comes "bcdefgh" in every model; `weight` is the logit of "e" after "d", before the norm.
  TemporaryFolder folder;
  const auto write_model = [&](const std::string& name, float weight) {
    ScriptedModel model;
    model.add_line({"a", "b", "c", "d", "e", "f", "g", "h"});
    model.set_weight(4, 5, weight);
    model.writer().build().write(folder / name);
    return folder / name;
  };
  const auto hashes = [&](const std::string& model, const std::vector<std::string>& more,
                          const ProcessOptions& options = {}) {
    const std::string file = folder / "report.json";
    std::vector<std::string> arguments = {"-m", model, "-p", "ab", "-n", "6", "--report-file", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_genai(arguments, options);
    INFO(result.err);
    CHECK(result.out == "cdefgh");
    CHECK_FALSE(contains(result.err, "step_logits_hashes"));  // the line on stderr does not grow with the text
    const Json report = Json::parse(read_whole_file(file));
    std::vector<std::uint64_t> values;
    std::uint64_t total = 0;
    for (const Json& text : report.at("step_logits_hashes"))
      total += values.emplace_back(std::stoull(text.get<std::string>(), nullptr, 16));
    CHECK(total == std::stoull(report.at("logits_hash").get<std::string>(), nullptr, 16));
    return values;
  };

  // What engine/README.md says of a model whose only logits are those of the token that follows.
  std::vector<std::uint64_t> expected;
  const float logit = 1.0f / std::sqrt(1.0f / ScriptedModel::kWidth + 1e-5f);
  for (std::uint32_t position = 1; position <= 6; ++position) {
    const std::uint32_t next = position + 2;  // "ab" are tokens 1 and 2
    std::uint64_t hash = 0;
    for (std::uint32_t index = 0; index <= 8; ++index)
      hash += genai::logit_hash_term(position, index, genai::float_bits(index == next ? logit : 0.0f));
    expected.push_back(hash);
  }
  const std::string plain = write_model("plain.gguf", 1.0f);
  CHECK(hashes(plain, {}) == expected);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--no-cuda-graph"}, {"-t", "3"}, {"-ub", "1"}, {"--cold", "weight"}, {"--temp", "0.5", "--top-k", "1"}})
    CHECK(hashes(plain, more) == expected);
  CHECK(hashes(plain, {}, {.environment = {{"GENAI_ISA", "scalar"}}}) == expected);

  const std::vector<std::uint64_t> changed = hashes(write_model("changed.gguf", std::nextafter(1.0f, 2.0f)), {});
  REQUIRE(changed.size() == expected.size());
  for (std::size_t step = 0; step < expected.size(); ++step) {
    INFO(step);
    CHECK((changed[step] == expected[step]) == (step != 2));  // the step that reads "d"
  }
}

TEST_CASE("cli: graph or separate calls, threads and pass size change counters and no byte") {
  const auto report = [&](const std::vector<std::string>& more, const ProcessOptions& options = {}) {
    std::vector<std::string> arguments = {"-p", "abcdefgh", "-n", "30"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = letters().run(arguments, options);
    CHECK(result.out == "abcdefghabcdefghabcdefghabcdef");
    return Json::parse(result.err);
  };
  const Json plain = report({});
  for (const Json& other : {report({"--no-cuda-graph"}), report({}, {.environment = {{"GENAI_CUDA_GRAPH", "0"}}}),
                            report({"-t", "1"}), report({"-t", "3"}), report({"-ub", "1"}), report({"-b", "3"}),
                            report({"-ub", "7"}), report({}, {.environment = {{"GENAI_ISA", "scalar"}}})}) {
    CHECK(other.at("logits_hash") == plain.at("logits_hash"));
    CHECK(other.at("output_hash") == plain.at("output_hash"));
  }
  CHECK(report({"--no-cuda-graph"}).at("replays") == 0);
  CHECK_FALSE(report({"--no-cuda-graph"}).contains("segments"));
  CHECK(report({}, {.environment = {{"GENAI_CUDA_GRAPH", "0"}}}).at("replays") == 0);
  CHECK(report({"--cuda-graph"}, {.environment = {{"GENAI_CUDA_GRAPH", "0"}}}).at("replays") == 29);
  CHECK(report({"-t", "3"}).at("host").at("threads") == 3);
  CHECK(report({"-b", "3"}).at("ubatch_tokens") == 3);
  CHECK(report({"-ub", "7"}).at("ubatch_tokens") == 7);
  CHECK(report({}, {.environment = {{"GENAI_ISA", "scalar"}}}).at("host").at("isa") == "scalar");
}

TEST_CASE("cli: a flag's environment twin counts, and the flag beats it") {
  CHECK(letters().run({"-p", "a"}, {.environment = {{"GENAI_PREDICT", "3"}}}).out == "bcd");
  CHECK(letters().run({"-p", "a"}, {.environment = {{"GENAI_N_PREDICT", "3"}}}).out == "bcd");
  CHECK(letters().run({"-p", "a", "-n", "2"}, {.environment = {{"GENAI_PREDICT", "3"}}}).out == "bc");
  CHECK(letters().run({"-p", "a", "-n", "6"}, {.environment = {{"GENAI_STOP", "e"}}}).out == "bcd");
  CHECK(run_genai({"-n", "2"}, {.environment = {{"GENAI_MODEL", letters().path}, {"GENAI_PROMPT", "c"}}}).out == "de");
  // An unset value is one that was not given.
  CHECK(letters().run({"-p", "a", "-n", "2"}, {.environment = {{"GENAI_TEMP", ""}}}).out == "bc");
  // A prompt on the command line puts a file in the environment aside.
  CHECK(letters().run({"-p", "c", "-n", "1"}, {.environment = {{"GENAI_FILE", "/nowhere"}}}).out == "d");
  check_usage_error({"-m", letters().path, "-p", "a"}, "GENAI_TEMP", {.environment = {{"GENAI_TEMP", "warm"}}});
  check_usage_error({"-m", letters().path, "-p", "a"}, "contradict",
                    {.environment = {{"GENAI_PREDICT", "1"}, {"GENAI_N_PREDICT", "2"}}});
}

TEST_CASE("cli: a GENAI_ variable that means nothing is warned about, with what was meant") {
  const ProcessResult result =
      letters().run({"-p", "a", "-n", "1", "--report", "none"}, {.environment = {{"GENAI_TMEP", "1"}}});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "b");
  CHECK(contains(result.err, "GENAI_TMEP"));
  CHECK(contains(result.err, "did you mean GENAI_TEMP?"));
  // Known ones, of other verbs and of the tests too, are not.
  const ProcessOptions known = {
      .environment = {{"GENAI_IDS", "1"}, {"GENAI_SHARED_DIR", "/x"}, {"GENAI_TEST_FUZZ_SECONDS", "1"}}};
  CHECK(letters().run({"-p", "a", "-n", "1", "--report", "none"}, known).err.empty());
}

TEST_CASE("cli: usage errors exit 2, say what is wrong and print no text") {
  const std::string& model = letters().path;
  check_usage_error({}, "no model");
  check_usage_error({"-m", model}, "no prompt");
  check_usage_error({"-m", model, "-p", "a", "--tmep", "1"}, "did you mean --temp?");
  check_usage_error({"-m", model, "-p", "a", "-temp", "1"}, "did you mean --temp?");
  check_usage_error({"-m", model, "-p", "a", "--top_k", "1"}, "did you mean --top-k?");
  check_usage_error({"-m", model, "-p", "a", "-fa"}, "unknown flag -fa");
  check_usage_error({"-m", model, "-p", "a", "-n"}, "needs a value");
  check_usage_error({"-m", model, "-p", "two", "words"}, "needs quotes");
  check_usage_error({"generate", "-m", model}, "neither a verb nor a flag");
  check_usage_error({"tokenise", "-m", model}, "did you mean tokenize?");
  check_usage_error({"tokenize", "-m", model, "-p", "a", "--temp", "1"}, "belongs to genai run");
  check_usage_error({"-m", model, "-p", "a", "-f", "x"}, "both give a prompt");
  check_usage_error({"-m", model, "-p", "a", "-n", "-2"}, "from -1 to");
  check_usage_error({"-m", model, "-p", "a", "-n", "1e3"}, "whole number");
  check_usage_error({"-m", model, "-p", "a", "-c", "-1"}, "from 0 to");
  check_usage_error({"-m", model, "-p", "a", "-c", "99999999999"}, "from 0 to");
  check_usage_error({"-m", model, "-p", "a", "-t", "0"}, "from 1 to");
  check_usage_error({"-m", model, "-p", "a", "-ub", "0"}, "from 1 to");
  check_usage_error({"-m", model, "-p", "a", "--temp", "-1"}, "temperature");
  check_usage_error({"-m", model, "-p", "a", "--temp", "nan"}, "expected a number");
  check_usage_error({"-m", model, "-p", "a", "--top-p", "1.5"}, "top_p");
  check_usage_error({"-m", model, "-p", "a", "-s", "-2"}, "whole number");
  check_usage_error({"-m", model, "-p", "a", "--stop", ""}, "empty text");
  check_usage_error({"-m", model, "-p", "a", "-ctk", "f32"}, "same type");
  check_usage_error({"-m", model, "-p", "a", "-ctk", "q8_0", "-ctv", "q8_0"}, "f16 or f32");
  check_usage_error({"-m", model, "-p", "a", "--device", "cud"}, "did you mean cuda?");
  check_usage_error({"-m", model, "-p", "a", "--gpu-budget", "6"}, "no unit");
  check_usage_error({"-m", model, "-p", "a", "--report", "xml"}, "json, human or none");
  check_usage_error({"-m", model, "-p", "a", "--quiet=maybe"}, "1 or 0");
  check_usage_error({"-m", model, "-p", "a", "--cuda-graph", "--no-cuda-graph"}, "contradict");
  check_usage_error({"-m", model, "-p", ""}, "no tokens");
  check_usage_error({"-m", model, "-p", "a"}, "scalar", {.environment = {{"GENAI_ISA", "neon"}}});
}

TEST_CASE("cli: spellings of llama.cpp are understood") {
  const ProcessResult result = letters().run({"--prompt=a",
                                              "-n4",
                                              "-c",
                                              "64",
                                              "-t",
                                              "2",
                                              "-ub",
                                              "4",
                                              "-b",
                                              "8",
                                              "-ctk",
                                              "f32",
                                              "-ctv",
                                              "f32",
                                              "-s",
                                              "7",
                                              "--temp",
                                              "0",
                                              "--repeat-last-n",
                                              "-1",
                                              "--repeat-penalty",
                                              "1.0",
                                              "-sp",
                                              "--"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == "bcde");
  CHECK(letters().run({"-p", "a", "--predict", "2"}).out == "bc");
  CHECK(letters().run({"-p", "a", "--n-predict", "2"}).out == "bc");
  // A value may look like a flag or like a list.
  CHECK(run_genai({"tokenize", "-m", letters().path, "--ids", "-p", "-n"}).err.find("0x2D") != std::string::npos);
  CHECK(letters().run({"-p", "a", "-n", "2", "--stop", "[x,y]", "--stop", "--special"}).out == "bc");
}

TEST_CASE("cli: help and version go to stdout, exit 0, and help names every flag of the verb") {
  const ProcessResult run_help = run_genai({"--help"});
  CHECK(run_help.exit_code == 0);
  CHECK(run_help.err.empty());
  for (const char* part : {"--temp", "-ub", "--gpu-budget", "tokenize", "inspect", "Examples", "GENAI_ISA"})
    CHECK(contains(run_help.out, part));
  CHECK(contains(run_genai({"tokenize", "--help"}).out, "--no-bos"));
  CHECK(contains(run_genai({"inspect", "-h"}).out, "--check"));
  const ProcessResult version = run_genai({"--version"});
  CHECK(version.exit_code == 0);
  CHECK(version.out.starts_with("genai "));
  CHECK(contains(version.out, "arithmetic 1"));
}

TEST_CASE("cli: filters beside a greedy choice are warned about, not ignored in silence") {
  const ProcessResult result = letters().run({"-p", "a", "-n", "1", "--top-k", "5", "--report", "none"});
  CHECK(result.out == "b");
  CHECK(contains(result.err, "--top-k cannot change a greedy choice"));
}

TEST_CASE("cli: seed 0 is a seed, -1 is a random one that the report names") {
  ScriptedModel uniform;  // no line at all: every token is as likely as any other
  for (const char* letter : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"})
    uniform.add(letter);
  const TemporaryFolder folder;
  const std::string path = folder / "uniform.gguf";
  uniform.writer().build().write(path);
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"-m", path, "-p", "a", "-n", "40", "--temp", "1", "--min-p", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_genai(arguments);
  };
  const ProcessResult zero = text({"--seed", "0"});
  CHECK(Json::parse(zero.err).at("seed") == 0);
  CHECK(text({"--seed", "0"}).out == zero.out);
  CHECK(text({"--seed", "1"}).out != zero.out);
  CHECK(Json::parse(text({"--seed", "18446744073709551615"}).err).at("seed") == 18446744073709551615ull);

  std::set<std::string> texts;
  for (const std::vector<std::string>& random : {std::vector<std::string>{}, {"--seed", "-1"}, {"-s", "-1"}}) {
    const ProcessResult drawn = text(random);
    texts.insert(drawn.out);
    const std::uint64_t used = Json::parse(drawn.err).at("seed");
    CHECK(text({"--seed", std::to_string(used)}).out == drawn.out);
  }
  CHECK(texts.size() == 3);
}

TEST_CASE("cli: a prompt of exactly the context runs, one token more exits 6 and nothing is cut") {
  const std::string prompt = "abcdefghabcdefgh";  // 16 tokens
  CHECK(letters().run({"-p", prompt, "-c", "16"}).exit_code == 0);
  CHECK(letters().run({"-p", prompt, "-c", "17"}).exit_code == 0);
  const ProcessResult over = letters().run({"-p", prompt, "-c", "15"});
  CHECK(over.exit_code == 6);
  CHECK(over.out.empty());
  CHECK(contains(over.err, "prompt 16 > ctx 15"));
  CHECK(contains(over.err, "-c 16"));
}

TEST_CASE("cli: without -c the context is the model's, 4096 at most; -c 0 is the model's") {
  std::string prompt;
  while (prompt.size() < 4097) prompt += "abcdefgh";
  prompt.resize(4097);
  const ProcessResult over = letters().run({"-p", "-"}, {.input = prompt});
  CHECK(over.exit_code == 6);
  CHECK(contains(over.err, "prompt 4097 > ctx 4096"));

  ScriptedModel model;
  model.add_line({"a", "b"});
  const TemporaryFolder folder;
  const std::string path = folder / "long.gguf";
  model.writer().u32("llama.context_length", 5000).build().write(path);
  const auto context = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"-m", path, "-p", "a", "-n", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Json::parse(run_genai(arguments).err).at("context_tokens").get<int>();
  };
  CHECK(context({}) == 4096);
  CHECK(context({"-c", "0"}) == 5000);
  CHECK(context({"-c", "12"}) == 12);
  const ProcessResult beyond = run_genai({"-m", path, "-p", "a", "-n", "1", "-c", "6000", "--report", "none"});
  CHECK(beyond.exit_code == 0);
  CHECK(contains(beyond.err, "longer than the 5000"));
}

TEST_CASE("cli: tiny contexts end cleanly with reason length") {
  for (const int context : {1, 2, 8}) {
    const ProcessResult result = letters().run({"-p", "a", "-c", std::to_string(context)});
    INFO("-c " << context << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == std::string("bcdefgha").substr(0, static_cast<std::size_t>(context)));
    CHECK(Json::parse(result.err).at("finish_reason") == "length");
  }
}

TEST_CASE("cli: layers and GiB to offload are budgets, said so, and change no byte") {
  const Json free = Json::parse(letters().run({"-p", "a", "-n", "4"}).err);
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{{"-ngl", "0"},
                                                                                     {"-ngl", "1"},
                                                                                     {"--gpu-layers", "all"},
                                                                                     {"--cpu-offload-gb", "0"},
                                                                                     {"--cpu-offload-gb", "2.5"}}) {
    std::vector<std::string> arguments = {"-p", "a", "-n", "4", "--log-level", "warn"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProcessResult result = letters().run(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == "bcde");
    CHECK(contains(result.err, "is --gpu-budget "));
    const Json report = Json::parse(result.err.substr(result.err.find('{')));
    CHECK(report.at("committed_peak_bytes") <= report.at("budget_bytes"));
    CHECK(report.at("logits_hash") == free.at("logits_hash"));
    if (flags[1] == "all") CHECK(report.at("cold_bytes") == 0);
  }
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"-ngl", "1", "--gpu-budget", "1GiB"},
                                             {"-ngl", "-3"},
                                             {"--cpu-offload-gb", "-1"},
                                             {"-ngl", "1", "--weight-offload", "off"}}) {
    std::vector<std::string> arguments = {"-p", "a", "-n", "4"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    CHECK(letters().run(arguments).exit_code == 2);
  }
}

TEST_CASE("cli: a budget that is too small exits 5 with the ledger, one that is large enough changes nothing") {
  const Json free = Json::parse(letters().run({"-p", "a", "-n", "4"}).err);
  const auto peak = free.at("committed_peak_bytes").get<std::uint64_t>();
  const Json kinds = free.at("committed_bytes");
  CHECK(kinds.at("cold") == 0);
  CHECK(kinds.at("ring") == 0);
  CHECK(kinds.at("kv") == free.at("kv_committed_bytes"));
  CHECK(kinds.at("weights").get<std::uint64_t>() >= free.at("resident_bytes").get<std::uint64_t>());
  CHECK(kinds.at("weights").get<std::uint64_t>() + kinds.at("kv").get<std::uint64_t>() +
            kinds.at("workspace").get<std::uint64_t>() ==
        peak);
  for (const std::string size : {"0B", "1MiB", "0%"}) {
    const ProcessResult result = letters().run({"-p", "a", "-n", "4", "--gpu-budget", size});
    INFO(result.err);
    CHECK(result.exit_code == 5);
    CHECK(result.out.empty());
    for (const char* part : {"weights", "kv cache", "workspace", "hint:"}) CHECK(contains(result.err, part));
  }
  for (const std::string size : {"1GiB", "50%", "auto"}) {
    const ProcessResult result = letters().run({"-p", "a", "-n", "4", "--vram-limit", size});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == "bcde");
    const Json report = Json::parse(result.err);
    CHECK(report.at("committed_peak_bytes") <= report.at("budget_bytes"));
    CHECK(report.at("committed_peak_bytes") == peak);
    CHECK(report.at("logits_hash") == free.at("logits_hash"));
  }
}

TEST_CASE("cli: a device that is not there exits 4, says why and what to do; auto does without and says it once") {
  const ProcessResult result = letters().run({"-p", "a", "--device", "cuda:999"});
  INFO(result.err);
  CHECK(result.exit_code == 4);
  CHECK(result.out.empty());
  CHECK(contains(result.err, "cannot use cuda:999: "));
  CHECK(contains(result.err, "hint: "));
  CHECK(contains(result.err, "use --device cpu"));
  const ProcessResult fallback = letters().run({"-p", "a", "-n", "1", "--device", "auto"});
  INFO(fallback.err);
  CHECK(fallback.exit_code == 0);
  CHECK(fallback.out == "b");
  const std::string said = "warning: running on the host: ";
  const Json report = Json::parse(fallback.err.substr(fallback.err.find("{")));
  CHECK(contains(fallback.err, said) == report.contains("fallback_reason"));
  CHECK(fallback.err.find(said) == fallback.err.rfind(said));
  CHECK(letters().run({"-p", "a", "-n", "1", "--device", "cpu"}).out == "b");
}
