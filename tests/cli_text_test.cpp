// What reaches stdout: stops, end-of-generation tokens, code points, special tokens. All through the executable, with
// models whose text is known.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/temporary_folder.h"

using namespace genai::test;

namespace {

// The text that "a" is followed by.
struct Scripted {
  explicit Scripted(const GgufWriter& writer) { writer.build().write(path); }
  explicit Scripted(const ScriptedModel& model) : Scripted(model.writer()) {}

  ProcessResult run(std::vector<std::string> more, const ProcessOptions& options = {}) const {
    std::vector<std::string> arguments = {"-m", path, "-p", "a"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_genai(arguments, options);
  }

  TemporaryFolder folder;
  std::string path = folder / "scripted.gguf";
};

std::string finish_reason(const ProcessResult& result) {
  INFO(result.err);
  return nlohmann::json::parse(result.err).at("finish_reason");
}

}  // namespace

TEST_CASE("cli: the text ends at the limit, at the end token, and in front of a stop text") {
  ScriptedModel model;
  const auto ids = model.add_line({"a", " one", " two", " three", "<end>"});
  const Scripted scripted(model.writer().u32("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(ids.back())));

  const ProcessResult limited = scripted.run({"-n", "2"});
  CHECK(limited.exit_code == 0);
  CHECK(limited.out == " one two");
  CHECK(finish_reason(limited) == "length");

  const ProcessResult ended = scripted.run({});
  CHECK(ended.exit_code == 0);
  CHECK(ended.out == " one two three");
  CHECK(finish_reason(ended) == "end_of_generation");

  const ProcessResult stopped = scripted.run({"--stop", " three"});
  CHECK(stopped.exit_code == 0);
  CHECK(stopped.out == " one two");
  CHECK(finish_reason(stopped) == "stop");
}

TEST_CASE("cli: a stop text that never comes leaves the model's own end in force") {
  ScriptedModel model;
  const auto ids = model.add_line({"a", " one", " two", "<end>", " more"});
  const Scripted scripted(model.writer().u32("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(ids[3])));
  const ProcessResult result = scripted.run({"--stop", "nothing like it", "-n", "9"});
  CHECK(result.out == " one two");
  CHECK(finish_reason(result) == "end_of_generation");
}

TEST_CASE("cli: a stop text is found inside a token, across tokens, and as the first of several") {
  ScriptedModel model;
  model.add_line({"a", " is", " not", " cold", "er"});
  const Scripted scripted(model);
  const auto text = [&](const std::vector<std::string>& stops) {
    std::vector<std::string> arguments = {"-n", "4"};
    for (const std::string& stop : stops) arguments.insert(arguments.end(), {"--stop", stop});
    const ProcessResult result = scripted.run(arguments);
    CHECK(result.exit_code == 0);
    return result.out;
  };
  CHECK(text({"ot"}) == " is n");
  CHECK(text({"t co"}) == " is no");
  CHECK(text({"older"}) == " is not c");
  CHECK(text({"older", "s n"}) == " i");
  CHECK(text({"olderX"}) == " is not colder");  // held back in vain, then given out
  CHECK(text({" is"}) == "");
}

TEST_CASE("cli: llama.cpp's name for a stop text and escapes in it work") {
  ScriptedModel model;
  model.add_line({"a", "b", "\n", "c"});
  const Scripted scripted(model);
  CHECK(scripted.run({"-n", "3"}).out == "b\nc");
  CHECK(scripted.run({"-n", "3", "-e", "-r", "\\n"}).out == "b");
  CHECK(scripted.run({"-n", "3", "-r", "\\n"}).out == "b\nc");
}

TEST_CASE("cli: every end-of-generation token ends the text, and shows only with --special") {
  for (const std::string kind : {"eos", "eot", "eom"}) {
    ScriptedModel model;
    const std::int32_t eos = model.add("<|end|>", ScriptedModel::kControl);
    const auto head = model.add_line({"a", "b", "c"});
    const std::int32_t last = kind == "eos" ? eos : model.add("<the_" + kind + ">", ScriptedModel::kControl);
    const std::int32_t after = model.add("d");
    model.says({head.back(), last, after});
    GgufWriter writer = model.writer();
    writer.u32("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(eos));
    writer.u32("tokenizer.ggml." + kind + "_token_id", static_cast<std::uint32_t>(last));
    const Scripted scripted(writer);
    INFO(kind);
    CHECK(scripted.run({"-n", "4"}).out == "bc");
    CHECK(finish_reason(scripted.run({"-n", "4"})) == "end_of_generation");
    CHECK(scripted.run({"-n", "4", "--special"}).out == (kind == "eos" ? "bc<|end|>" : "bc<the_" + kind + ">"));
    // Gone past, it is silent all the same.
    CHECK(scripted.run({"-n", "4", "--ignore-eos"}).out == "bcd");
    CHECK(finish_reason(scripted.run({"-n", "4", "--ignore-eos"})) == "length");
  }
}

TEST_CASE("cli: a special token can be a stop text, though it has no visible text") {
  ScriptedModel model;
  const std::int32_t turn = model.add("<|turn|>", ScriptedModel::kControl);
  const auto head = model.add_line({"a", "b", "c"});
  const std::int32_t after = model.add("d");
  model.says({head.back(), turn, after});
  const Scripted scripted(model);
  CHECK(scripted.run({"-n", "4"}).out == "bcd");
  const ProcessResult stopped = scripted.run({"-n", "4", "--stop", "<|turn|>"});
  CHECK(stopped.out == "bc");
  CHECK(finish_reason(stopped) == "stop");
}

TEST_CASE("cli: the names of special tokens in a prompt become tokens unless that is refused") {
  ScriptedModel model;
  const std::int32_t turn = model.add("<|t|>", ScriptedModel::kControl);
  for (const char* letter : {"<", "|", "t", ">"}) model.add(letter);
  const Scripted scripted(model);
  const auto ids = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"tokenize", "-m", scripted.path, "-p", "<|t|>", "--ids"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_genai(arguments).out;
  };
  CHECK(ids({}) == "[" + std::to_string(turn) + "]\n");
  CHECK(ids({"--no-parse-special"}) == "[2, 3, 4, 3, 5]\n");
  CHECK(run_genai({"tokenize", "-m", scripted.path, "-p", "<|t|>", "--ids"},
                  {.environment = {{"GENAI_NO_PARSE_SPECIAL", "1"}}})
            .out == "[2, 3, 4, 3, 5]\n");
  CHECK(run_genai({"tokenize", "-m", scripted.path, "-p", "<|t|>", "--ids", "--parse-special"},
                  {.environment = {{"GENAI_NO_PARSE_SPECIAL", "1"}}})
            .out == "[1]\n");
}

TEST_CASE("cli: a code point in pieces appears whole, and bytes that are none pass at once") {
  ScriptedModel model;
  // U+1F60A in four tokens, then a stray continuation byte, then the first half of U+00E9.
  model.add_line({"a", "\xF0", "\x9F", "\x98", "\x8A", "\x80", "x", "\xC3"});
  const Scripted scripted(model);
  CHECK(scripted.run({"-n", "4"}).out == "\xF0\x9F\x98\x8A");
  CHECK(scripted.run({"-n", "7"}).out == "\xF0\x9F\x98\x8A\x80x\xC3");
  // At the end nothing is lost, whole or not.
  CHECK(scripted.run({"-n", "2"}).out == "\xF0\x9F");

  // Whatever has been written at some moment ends with a whole code point.
  const std::vector<std::string> arguments = {"-m", scripted.path, "-p", "a", "-n", "7"};
  Process process(arguments);
  std::vector<std::string> seen;
  process.wait_until([&] {
    if (!process.out().empty() && (seen.empty() || seen.back() != process.out())) seen.push_back(process.out());
    return false;
  });
  process.finish();
  const std::string whole = "\xF0\x9F\x98\x8A";
  for (const std::string& text : seen) CHECK((text.size() >= 4 && text.substr(0, 4) == whole));
}

TEST_CASE("cli: half a code point in front of a stop text is written") {
  ScriptedModel model;
  model.add_line({"a", "x", "\xF0", "\x9F", "STOP"});
  const Scripted scripted(model);
  CHECK(scripted.run({"-n", "9", "--stop", "STOP"}).out == "x\xF0\x9F");
}

TEST_CASE("cli: tokenize shows pieces, ids and JSON") {
  ScriptedModel model;
  model.add_line({"a", "\xF0", "\x9F"});
  const Scripted scripted(model);
  CHECK(run_genai({"tokenize", "-m", scripted.path, "-p",
                   "a\xF0"
                   "a"})
            .out == "     1 -> 'a'\n     2 -> '\\xf0'\n     1 -> 'a'\n");
  const auto json = nlohmann::json::parse(run_genai({"tokenize", "-m", scripted.path, "-p", "a\xF0", "--json"}).out);
  CHECK(json.at("count") == 2);
  CHECK(json.at("ids") == nlohmann::json::array({1, 2}));
  CHECK(json.at("pieces")[0].at("text") == "a");
  CHECK(json.at("pieces")[1].at("hex") == "f0");
  CHECK(run_genai({"tokenize", "-m", scripted.path, "-p", "a", "--ids", "--json"}).exit_code == 2);
}

TEST_CASE("cli: a BOS that the model wants is added once, and --dump-prompt shows it") {
  ScriptedModel model;
  const std::int32_t bos = model.add("<s>", ScriptedModel::kControl);
  const std::int32_t a = model.add("a");
  GgufWriter writer = model.writer();
  writer.u32("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(bos))
      .boolean("tokenizer.ggml.add_bos_token", true);
  const Scripted scripted(writer);
  const std::string both = "[" + std::to_string(bos) + ", " + std::to_string(a) + "]";
  const auto dumped = [&](const std::string& prompt) {
    return run_genai({"-m", scripted.path, "-p", prompt, "-n", "1", "--dump-prompt", "--report", "none"}).err;
  };
  CHECK(dumped("a") == "prompt ids: " + both + "\n");
  CHECK(dumped("<s>a") == "prompt ids: " + both + "\n");
  CHECK(dumped("") == "prompt ids: [" + std::to_string(bos) + "]\n");
  CHECK(run_genai({"tokenize", "-m", scripted.path, "-p", "a", "--ids", "--no-bos"}).out ==
        "[" + std::to_string(a) + "]\n");
}

TEST_CASE("cli: a prompt from the command line, a file, a pipe and stdin is the same, byte for byte") {
  ScriptedModel model;
  model.add_line({"a", "b"});
  model.add("\n");
  const Scripted scripted(model);
  const std::string file = scripted.folder.write("prompt.txt", "ab\n");
  const std::string expected = "[1, 2, 3]\n";
  const std::vector<std::string> start = {"tokenize", "-m", scripted.path, "--ids"};
  const auto ids = [&](std::vector<std::string> more, const ProcessOptions& options = {}) {
    more.insert(more.begin(), start.begin(), start.end());
    return run_genai(more, options).out;
  };
  CHECK(ids({"-p", "ab\n"}) == expected);
  CHECK(ids({"-p", "ab\\n", "-e"}) == expected);
  CHECK(ids({"-f", file}) == expected);
  CHECK(ids({"-p", "-"}, {.input = "ab\n"}) == expected);
  CHECK(ids({"-f", "/dev/stdin"}, {.input = "ab\n"}) == expected);
}
