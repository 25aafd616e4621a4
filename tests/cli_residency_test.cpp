// Models larger than the budget, through the executable: same text in every mode, counters of the report, the plan
// before it, and what a budget too small says.
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using Json = nlohmann::json;

namespace {

std::vector<std::string> base(const std::string& model) { return {"-m", model, "-c", "128", "-ub", "16", "-t", "1"}; }

Json run_report(const std::string& model, std::vector<std::string> more, std::string* text = nullptr,
                const ProcessOptions& options = {}) {
  std::vector<std::string> arguments = base(model);
  for (const char* word : {"-p", "hello there", "-n", "40", "--ignore-eos", "--report", "json", "--log-level", "error"})
    arguments.emplace_back(word);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult result = run_genai(arguments, options);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  if (text != nullptr) *text = result.out;
  return Json::parse(result.err);
}

Json plan(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> arguments = base(model);
  arguments.insert(arguments.begin(), "plan");
  arguments.emplace_back("--json");
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult result = run_genai(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return Json::parse(result.out);
}

}  // namespace

TEST_CASE("cli: every offload mode writes the resident text and counts what the plan said") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  std::string expected;
  const Json resident = run_report(model, {}, &expected);
  CHECK(resident["mode"] == "resident");
  CHECK(resident["cold_bytes"] == 0);
  CHECK(resident["htod_bytes"] == 0);
  CHECK_FALSE(resident.contains("traffic_over_floor"));
  CHECK_FALSE(resident.contains("budget_bytes"));

  for (const char* mode : {"stream", "zerocopy", "host", "split", "auto"}) {
    INFO(mode);
    std::string text;
    const std::vector<std::string> flags{"--cold", "ffn", "--weight-offload", mode};
    const Json report = run_report(model, flags, &text);
    const Json planned = plan(model, flags);
    CHECK(text == expected);
    CHECK(report["logits_hash"] == resident["logits_hash"]);
    CHECK(report["mode"] == planned["mode"]);
    CHECK(report["mode"] == (std::string(mode) == "auto" ? "stream" : mode));
    CHECK(report["cold_bytes"] == planned["cold_bytes"]);
    CHECK(report["cold_bytes"] > 0);
    const std::uint64_t steps = report["replays"];
    REQUIRE(steps == 39);
    CHECK(report["htod_bytes"] == steps * planned["step_bytes"]["ring"].get<std::uint64_t>());
    CHECK(report["zero_copy_bytes"] == steps * planned["step_bytes"]["zero_copy"].get<std::uint64_t>());
    CHECK(report["host_computed_bytes"] == steps * planned["step_bytes"]["host"].get<std::uint64_t>());
    CHECK(report["evictions"] == report["page_ins"]);
    if (report["floor_bytes_per_step"] > 0) CHECK(report["traffic_over_floor"] == 1.0);
    // The environment's twin does the same.
    ProcessOptions twin;
    twin.environment = {{"GENAI_WEIGHT_OFFLOAD", mode}};
    CHECK(run_report(model, {"--cold", "ffn"}, nullptr, twin)["htod_bytes"] == report["htod_bytes"]);
  }
}

TEST_CASE("cli: a budget too small is exit 5 with a ledger and a budget that works") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  for (const char* mode : {"off", "stream", "zerocopy", "host", "split", "auto"}) {
    for (const char* budget : {"1MiB", "4MiB"}) {
      std::vector<std::string> arguments = base(model);
      for (const char* word : {"-p", "hello", "-n", "2", "--gpu-budget", budget, "--weight-offload", mode})
        arguments.emplace_back(word);
      const ProcessResult result = run_genai(arguments);
      INFO(mode << " " << budget << ": " << result.err);
      CHECK(result.exit_code == 5);
      CHECK(result.out.empty());
      CHECK(result.err.find("kv cache") != std::string::npos);
      const std::string phrase = "the smallest budget that works is ";
      const std::size_t at = result.err.find(phrase);
      REQUIRE(at != std::string::npos);
      const std::string smallest =
          result.err.substr(at + phrase.size(), result.err.find(' ', at + phrase.size()) - at - phrase.size());
      std::replace(arguments.begin(), arguments.end(), std::string(budget), smallest + "B");
      CHECK(run_genai(arguments).exit_code == 0);
    }
  }
}

TEST_CASE("cli: a context that the budget has no room for is refused at once, whatever the pass width") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  for (const char* verb : {"run", "plan"}) {
    std::vector<std::string> arguments{verb,  "-m",   path->string(), "-c",    "1000000",
                                       "-ub", "4096", "--gpu-budget", "300MiB"};
    if (verb == std::string("run")) arguments.insert(arguments.end(), {"-p", "a", "-n", "1"});
    const ProcessResult result = run_genai(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 5);
    CHECK_FALSE(result.timed_out);
    CHECK(result.err.find("kv cache") != std::string::npos);
    CHECK(result.cpu_seconds < 5.0);
  }
}

TEST_CASE("cli: named matrices are kept cold, and that contradicts offload off") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  std::string expected;
  std::string text;
  run_report(model, {}, &expected);
  const Json report = run_report(model, {"--cold", "ffn_down", "--weight-offload", "stream"}, &text);
  CHECK(text == expected);
  CHECK(report["htod_bytes"] > 0);
  std::vector<std::string> arguments = base(model);
  for (const char* word : {"-p", "a", "--cold", "ffn_down", "--weight-offload", "off"}) arguments.emplace_back(word);
  CHECK(run_genai(arguments).exit_code == 2);
  arguments[arguments.size() - 3] = "ffn_sideways";
  arguments.back() = "stream";
  const ProcessResult unknown = run_genai(arguments);
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("ffn_sideways") != std::string::npos);
  arguments.back() = "sometimes";
  CHECK(run_genai(arguments).exit_code == 2);
}

TEST_CASE("cli: the plain arm writes the same text, keeps no account and takes no budget") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  std::string expected;
  std::string text;
  const Json arena = run_report(model, {"--cold", "ffn", "--weight-offload", "split"}, &expected);
  CHECK(arena["allocator"] == "arena");
  CHECK(arena["pinned_bytes"] >= arena["cold_bytes"]);
  CHECK(arena["pageable_bytes"] == 0);
  const TemporaryFolder folder;
  const Json plain = run_report(
      model,
      {"--allocator", "plain", "--cold", "ffn", "--weight-offload", "split", "--report-file", folder / "plain.json"},
      &text);
  CHECK(text == expected);
  CHECK(plain["allocator"] == "plain");
  for (const char* counter : {"logits_hash", "htod_bytes", "host_computed_bytes", "page_ins", "cold_bytes"})
    CHECK(plain[counter] == arena[counter]);
  for (const char* absent :
       {"committed_peak_bytes", "committed_bytes", "pinned_bytes", "pageable_bytes", "budget_bytes"})
    CHECK_FALSE(plain.contains(absent));
  CHECK(plain["kv_growth_events"] == 0);  // the whole context is there from the start

  const std::string report = folder / "plain.json";
  CHECK(run_genai({"verify", report}).exit_code == 0);
  const ProcessResult elsewhere = run_genai({"verify", report, "--gpu-budget", "1GiB"});
  CHECK(elsewhere.exit_code == 0);
  CHECK(elsewhere.out.find("counters are not compared") != std::string::npos);

  std::vector<std::string> arguments = base(model);
  for (const char* word : {"-p", "a", "-n", "1", "--allocator", "plain"}) arguments.emplace_back(word);
  CHECK(run_genai(arguments).exit_code == 0);
  for (const std::vector<std::string>& budget :
       {std::vector<std::string>{"--gpu-budget", "1GiB"}, {"-ngl", "1"}, {"--cpu-offload-gb", "1"}}) {
    std::vector<std::string> both = arguments;
    both.insert(both.end(), budget.begin(), budget.end());
    const ProcessResult result = run_genai(both);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("--allocator plain") != std::string::npos);
  }
  CHECK(run_genai(arguments, {.environment = {{"GENAI_GPU_BUDGET", "1GiB"}}}).exit_code == 2);
  arguments.back() = "simple";
  CHECK(run_genai(arguments).exit_code == 2);
}

TEST_CASE("cli: a limit on locked memory changes nothing where none is needed") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  const rlimit tight{.rlim_cur = std::min<rlim_t>(64 << 10, before.rlim_max), .rlim_max = before.rlim_max};
  const std::vector<std::string> flags{"--cold", "ffn", "--weight-offload", "stream"};
  const Json free = run_report(path->string(), flags);
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &tight) == 0);
  const Json limited = run_report(path->string(), flags);
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
  CHECK(limited["logits_hash"] == free["logits_hash"]);
  CHECK(limited["pageable_bytes"] == 0);
  CHECK_FALSE(limited.contains("fallback_reason"));
}

TEST_CASE("cli: perplexity has the same bits for every -ub and budget, and knows a model from its quantised form") {
  const auto exact = shared_data("reference/tiny/tiny-llama-F32.gguf");
  const auto coarse = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!exact || !coarse) GENAI_SKIP("the tiny reference models are not there");
  std::string text;
  for (int word = 0; word < 60; ++word) text += "word " + std::to_string(word * 7919 % 101) + ", ";
  ProcessOptions options;
  options.input = text;
  const auto score = [&](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> arguments{"perplexity", "-m", model, "-p", "-", "-c", "64", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_genai(arguments, options);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return Json::parse(result.out);
  };
  const Json whole = score(coarse->string(), {});
  CHECK(whole["windows"] > 2);
  CHECK(whole["predictions"] == 63 * whole["windows"].get<int>());
  for (const char* absent : {"mean_kl", "max_kl", "reference_mean_nll"}) CHECK_FALSE(whole.contains(absent));
  for (const char* rows : {"1", "7", "64"}) CHECK(score(coarse->string(), {"-ub", rows}) == whole);
  CHECK(score(coarse->string(), {"--cold", "weight"})["logits_hash"] == whole["logits_hash"]);
  CHECK(score(coarse->string(), {"--chunks", "1"})["windows"] == 1);
  const Json compared = score(coarse->string(), {"--reference", exact->string()});
  CHECK(compared["mean_kl"] > 0.0);
  CHECK(compared["max_kl"] > compared["mean_kl"]);
  CHECK(compared["reference_mean_nll"] == score(exact->string(), {})["mean_nll"]);
  CHECK(run_genai({"perplexity", "-m", coarse->string(), "-p", "short"}).exit_code == 2);
  CHECK(run_genai({"perplexity", "-m", coarse->string(), "-p", "short", "-c", "1"}).exit_code == 2);
}

TEST_CASE("cli: a sweep of budgets plans each, from what does not fit to what is resident") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const Json document = plan(path->string(), {"--gpu-budget", "1%..100%", "--weight-offload", "zerocopy"});
  const Json& steps = document["sweep"];
  REQUIRE(steps.size() == 10);
  CHECK(steps[0]["fits"] == false);
  CHECK_FALSE(steps[0].contains("cold_bytes"));
  CHECK(steps[9]["fits"] == true);
  CHECK(steps[9]["cold_bytes"] == 0);
  CHECK(steps[9]["committed_bytes"] == steps[9]["budget_bytes"]);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    CHECK(steps[i]["budget_bytes"] > steps[i - 1]["budget_bytes"]);
    if (!steps[i - 1]["fits"].get<bool>()) continue;
    REQUIRE(steps[i]["fits"] == true);
    CHECK(steps[i]["cold_bytes"] <= steps[i - 1]["cold_bytes"]);
    // One step of the sweep is what a plan of that budget says.
    const Json single =
        plan(path->string(), {"--gpu-budget", std::to_string(steps[i]["budget_bytes"].get<std::uint64_t>()) + "B",
                              "--weight-offload", "zerocopy"});
    CHECK(single["cold_bytes"] == steps[i]["cold_bytes"]);
    CHECK(single["step_bytes"] == steps[i]["step_bytes"]);
  }
  for (const char* wrong : {"1%..", "..5GiB", "auto..100%", "1GiB..fast"})
    CHECK(run_genai({"plan", "-m", path->string(), "--gpu-budget", wrong}).exit_code == 2);
}
