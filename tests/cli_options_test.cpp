// Parts of the command line by themselves: sizes, suggestions, values, the table of flags, the report's arithmetic.
#include <nlohmann/json.hpp>
#include <set>

#include "cli/byte_size.h"
#include "cli/command_line.h"
#include "cli/content_hash.h"
#include "cli/flag_values.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/suggestion.h"
#include "engine/error.h"
#include "tests/catch.h"

using namespace genai;
using namespace genai::cli;

TEST_CASE("cli: sizes need a unit and are exact") {
  const auto bytes = [](const char* text) {
    const MemoryLimit limit = parse_memory_limit(text, "--gpu-budget");
    CHECK(limit.kind == MemoryLimit::Kind::bytes);
    return limit.bytes;
  };
  CHECK(bytes("0B") == 0);
  CHECK(bytes("300MiB") == 300u << 20);
  CHECK(bytes("6GiB") == std::uint64_t{6} << 30);
  CHECK(bytes("1.5 gib") == std::uint64_t{3} << 29);
  CHECK(bytes("8GB") == 8000000000u);
  CHECK(bytes("2TiB") == std::uint64_t{2} << 40);
  CHECK(parse_memory_limit("auto", "x").kind == MemoryLimit::Kind::automatic);
  CHECK(parse_memory_limit("60%", "x").kind == MemoryLimit::Kind::percent);
  CHECK(parse_memory_limit("60%", "x").percent == 60.0);
  for (const char* bad : {"", "6", "6G", "GiB", "-1GiB", "nan GiB", "inf", "101%", "-1%", "1e3MiB", "99999999TiB",
                          "6GiBs", "0x10MiB", "%"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_memory_limit(bad, "--gpu-budget"), UsageError);
  }
}

TEST_CASE("cli: sizes read back as people write them") {
  CHECK(byte_size_text(0) == "0 B");
  CHECK(byte_size_text(1023) == "1023 B");
  CHECK(byte_size_text(1536) == "1.50 KiB");
  CHECK(byte_size_text(std::uint64_t{6} << 30) == "6.00 GiB");
  CHECK(byte_size_text((std::uint64_t{1} << 30) - 1) == "1.00 GiB");
  CHECK(byte_size_text(105u << 20) == "105 MiB");
}

TEST_CASE("cli: the edit distance counts swaps of neighbours as one") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("temp", "temp") == 0);
  CHECK(edit_distance("tmep", "temp") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("cli: a suggestion is close or is not made") {
  const std::vector<std::string> names = {"temp", "top-k", "threads", "ubatch-size"};
  CHECK(closest_name("tmep", names) == "temp");
  CHECK(closest_name("temper", names) == "temp");
  CHECK(closest_name("topk", names) == "top-k");
  CHECK(closest_name("ubatch", names) == "ubatch-size");
  CHECK_FALSE(closest_name("xyzzy", names));
  CHECK_FALSE(closest_name("", names));
}

TEST_CASE("cli: escapes become bytes, and an unknown one is an error") {
  const auto replaced = [](const std::string& text) { return replace_escapes({text, "-p", false}); };
  CHECK(replaced("a\\nb\\t\\\\ \\\"\\'") == "a\nb\t\\ \"'");
  CHECK(replaced("\\x41\\xff\\r") == "A\xff\r");
  CHECK(replaced("\\0") == std::string(1, '\0'));
  for (const char* bad : {"\\q", "\\", "\\x4", "\\xgg"}) CHECK_THROWS_AS(replaced(bad), UsageError);
}

TEST_CASE("cli: every spelling belongs to one flag, and every flag is in the help of its verbs") {
  std::set<std::string> names;
  for (const FlagSpec& spec : flag_table()) {
    for (const std::string& name : spec.names) CHECK(names.insert(name).second);
    CHECK(spec.long_name().starts_with("--"));
    CHECK(spec.value_name.empty() == (spec.kind == FlagKind::toggle));
    for (const Verb verb : kVerbs) {
      const std::string help = help_text(verb);
      bool listed = false;
      for (const char* end : {",", " ", "\n"})  // -n is not -ngl
        listed = listed || help.find("  " + spec.names.front() + end) != std::string::npos;
      INFO(spec.names.front());
      CHECK(listed == spec.is_known_to(verb));
    }
  }
}

TEST_CASE("cli: no line of help is wider than a terminal of 120 columns") {
  for (const Verb verb : kVerbs) {
    const std::string help = help_text(verb);
    for (std::size_t begin = 0; begin < help.size();) {
      const std::size_t end = help.find('\n', begin);
      CHECK(end - begin <= 120);
      begin = end + 1;
    }
  }
}

TEST_CASE("cli: every flag with a long spelling has a twin in the environment, but for help and version") {
  CHECK(environment_twin("--top-k") == "GENAI_TOP_K");
  for (const FlagSpec& spec : flag_table()) {
    if (spec.flag == Flag::help || spec.flag == Flag::version || !spec.is_known_to(Verb::run)) continue;
    const RawCommandLine line = read_command_line({}, {{environment_twin(spec.long_name()), "1"}});
    REQUIRE(line.find(spec.flag) != nullptr);
    CHECK(line.find(spec.flag)->text == "1");
    CHECK(line.find(spec.flag)->from_environment);
    CHECK(line.warnings.empty());
  }
}

TEST_CASE("cli: the last of several values counts, and all of a repeated flag") {
  const RawCommandLine line = read_command_line({"-n", "1", "--predict", "2", "--stop", "a", "-r", "b"}, {});
  CHECK(line.find(Flag::predict)->text == "2");
  CHECK(line.values.at(Flag::stop).size() == 2);
  CHECK(line.values.at(Flag::stop)[1].text == "b");
}

TEST_CASE("cli: values reach CLI11 and come back untouched") {
  for (const std::string text : {"", "-", "--", "-n", "--temp", "[a,b]", "{}", "a b", "'q'", "%x", "\"", "a=b"}) {
    INFO(text);
    CHECK(read_command_line({"--prompt", text}, {}).find(Flag::prompt)->text == text);
    CHECK(read_command_line({"--prompt=" + text}, {}).find(Flag::prompt)->text == text);
  }
}

TEST_CASE("cli: a flag beats the environment, also when the two are opposites") {
  const auto graph = [](const std::vector<std::string>& words, const Environment& environment) {
    return choose_switch(read_command_line(words, environment), Flag::cuda_graph, Flag::no_cuda_graph, true);
  };
  CHECK(graph({}, {}));
  CHECK_FALSE(graph({"--no-cuda-graph"}, {}));
  CHECK_FALSE(graph({}, {{"GENAI_CUDA_GRAPH", "0"}}));
  CHECK_FALSE(graph({}, {{"GENAI_NO_CUDA_GRAPH", "yes"}}));
  CHECK(graph({}, {{"GENAI_NO_CUDA_GRAPH", "0"}}));
  CHECK(graph({"--cuda-graph"}, {{"GENAI_CUDA_GRAPH", "0"}}));
  CHECK(graph({"--cuda-graph"}, {{"GENAI_NO_CUDA_GRAPH", "1"}}));
  CHECK_FALSE(graph({"--no-cuda-graph"}, {{"GENAI_CUDA_GRAPH", "1"}}));
  CHECK_FALSE(graph({}, {{"GENAI_CUDA_GRAPH", "0"}, {"GENAI_NO_CUDA_GRAPH", "1"}}));
  CHECK_THROWS_AS(graph({}, {{"GENAI_CUDA_GRAPH", "1"}, {"GENAI_NO_CUDA_GRAPH", "1"}}), UsageError);
}

TEST_CASE("cli: sampling flags reach the settings they name") {
  std::vector<std::string> warnings;
  const RunOptions options = make_run_options(read_command_line({"-m",
                                                                 "m",
                                                                 "-p",
                                                                 "p",
                                                                 "--temp",
                                                                 "0.5",
                                                                 "--top-k",
                                                                 "3",
                                                                 "--top-p",
                                                                 "0.25",
                                                                 "--min-p",
                                                                 "0.125",
                                                                 "--typical",
                                                                 "0.75",
                                                                 "--repeat-penalty",
                                                                 "1.5",
                                                                 "--repeat-last-n",
                                                                 "7",
                                                                 "--presence-penalty",
                                                                 "-0.5",
                                                                 "--frequency-penalty",
                                                                 "0.0625",
                                                                 "--seed",
                                                                 "12"},
                                                                {}),
                                              {}, warnings);
  CHECK(warnings.empty());
  CHECK(options.row.sampler.temperature == 0.5);
  CHECK(options.row.sampler.top_k == 3);
  CHECK(options.row.sampler.top_p == 0.25);
  CHECK(options.row.sampler.min_p == 0.125);
  CHECK(options.row.sampler.typical_p == 0.75);
  CHECK(options.row.sampler.repeat_penalty == 1.5);
  CHECK(options.row.sampler.repeat_last_n == 7);
  CHECK(options.row.sampler.presence_penalty == -0.5);
  CHECK(options.row.sampler.frequency_penalty == 0.0625);
  CHECK(options.row.seed == 12u);
}

TEST_CASE("cli: percentiles are values that were measured") {
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(percentile(values, 0.5) == 5.0);
  CHECK(percentile(values, 0.9) == 9.0);
  CHECK(percentile(values, 0.99) == 10.0);
  CHECK(percentile({7.0}, 0.5) == 7.0);
}

TEST_CASE("cli: the report leaves out what is empty and prints what is zero") {
  Report report;
  const auto bare = nlohmann::json::parse(report_json(report, ReportDetail::steps));
  for (const char* name : {"budget_bytes", "captures", "segments", "kv_bytes_moved", "time_to_first_token_ms",
                           "inter_token_ms", "logits_hash", "step_logits_hashes", "rss_peak_bytes", "fallback_reason",
                           "committed_bytes", "weight_gbps", "hbm_gbps", "read_peak_gbps", "roofline_fraction"})
    CHECK_FALSE(bare.contains(name));
  CHECK_FALSE(bare.at("device").contains("driver"));
  report.budget_bytes = 0;
  report.captures = 0;
  report.logits_hash = 0;
  report.texts.resize(1);
  report.texts[0].logits_hash = 0;
  report.texts[0].step_logits_hashes = {0};
  report.inter_token_seconds = {0.5, 0.25};
  report.decode_seconds = 0.75;
  report.step_weight_bytes = 3'000'000'000;
  report.hbm_gbps = 3000.0;
  CHECK_FALSE(nlohmann::json::parse(report_json(report, ReportDetail::run)).contains("roofline_fraction"));
  report.read_peak_gbps = 4000.0;
  report.device_driver = "13.0";
  report.committed_bytes = {{"weights", 5}, {"kv", 0}};
  const auto full = nlohmann::json::parse(report_json(report, ReportDetail::steps));
  CHECK(full.at("budget_bytes") == 0);
  CHECK(full.at("captures") == 0);
  CHECK(full.at("logits_hash") == "0000000000000000");
  CHECK(full.at("step_logits_hashes") == std::vector<std::string>{"0000000000000000"});
  CHECK_FALSE(nlohmann::json::parse(report_json(report, ReportDetail::run)).contains("step_logits_hashes"));
  CHECK(full.at("inter_token_ms").at("p50") == 250.0);
  CHECK(full.at("weight_gbps") == 12.0);
  CHECK(full.at("hbm_gbps") == 3000.0);
  CHECK(full.at("read_peak_gbps") == 4000.0);
  CHECK(full.at("roofline_fraction") == 0.75);
  CHECK(full.at("device").at("driver") == "13.0");
  CHECK(full.at("committed_bytes") == nlohmann::json{{"weights", 5}, {"kv", 0}});
  CHECK(full.at("inter_token_ms").at("max") == 500.0);
  CHECK(full.at("decode_tokens_per_second") == 2.667);
}

TEST_CASE("cli: the content hash is FNV-1a") {
  ContentHash hash;
  CHECK(hash.value() == 0xcbf29ce484222325ull);
  hash.add("foobar");
  CHECK(hash.value() == 0x85944171f73967e8ull);
  CHECK(hash_text(0xabc) == "0000000000000abc");
}
