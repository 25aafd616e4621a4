// Speeds of lanes on the command line: given ones are what auto plans by, measured ones are kept in a file, reports and
// plans say what they predict, and genai bench --lanes compares bits. No test asks how fast anything is.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/lane_speed_store.h"
#include "cli/lane_speed_values.h"
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai;
using namespace genai::cli;
using namespace genai::test;
using Json = nlohmann::json;

namespace {

constexpr const char* kFastHost = "resident=100,ring=1,zero_copy=2,host=50,ring_beside_host=1,host_beside_ring=2";
constexpr const char* kFastLink = "resident=100,ring=10,zero_copy=50,host=1,ring_beside_host=9,host_beside_ring=1";

LaneSpeedSource parse(const std::string& text) { return parse_lane_speeds({text, "--lane-speeds", false}); }

LaneSpeedKey key_of_threads(int threads) {
  return {.device = "a device", .driver = "13.0", .cpu = "a processor", .instruction_set = "avx2", .threads = threads};
}

LaneSpeeds some_speeds(double ring) {
  return {.resident = 4600.5e9, .ring = ring, .exchange_seconds = 3e-6, .pass_seconds = 0.25e-6};
}

std::vector<std::string> words(std::vector<std::string> first, const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

Json json_of(const std::vector<std::string>& arguments, const ProcessOptions& options = {}) {
  const ProcessResult result = run_genai(arguments, options);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return Json::parse(result.out);
}

Json report_of(const std::string& model, const std::vector<std::string>& more) {
  const ProcessResult result = run_genai(words({"-m", model, "-c", "128", "-t", "1", "-p", "hello", "-n", "8",
                                                "--ignore-eos", "--report", "json", "--log-level", "error"},
                                               more));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return Json::parse(result.err);
}

}  // namespace

TEST_CASE("cli: speeds of lanes are read in GB/s and microseconds") {
  using Kind = LaneSpeedSource::Kind;
  CHECK(parse("auto").kind == Kind::automatic);
  CHECK(parse("probe").kind == Kind::probe);
  CHECK(parse("none").kind == Kind::none);
  CHECK(parse("some/file").kind == Kind::file);
  CHECK(parse("some/file").path == "some/file");
  const LaneSpeedSource given = parse("resident=4600.5,ring=55,exchange_us=3,pass_us=0.25");
  CHECK(given.kind == Kind::values);
  CHECK(given.values.resident == 4600.5 * 1e9);
  CHECK(given.values.ring == 55.0 * 1e9);
  CHECK(given.values.exchange_seconds == Approx(3e-6));
  CHECK(given.values.pass_seconds == Approx(0.25e-6));
  CHECK(given.values.host == 0.0);
  for (const char* bad :
       {"", "resident=", "resident=fast", "resident=0", "resident=-1", "resident=nan", "resident=1e9", "ring=55",
        "resident=1,speed=2", "resident=1,ring", "resident=1,,ring=1", "=1", "resident=1,pass_us=-1"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse(bad), UsageError);
  }
}

TEST_CASE("cli: speeds of lanes written as JSON read back as the same numbers") {
  const LaneSpeeds given =
      parse("resident=4600.123,ring=55.001,zero_copy=0.1,host=7,matrix_us=2.345,pass_us=310").values;
  CHECK(read_lane_speeds(lane_speeds_json(given), "here") == given);
  CHECK_FALSE(lane_speeds_json(given).contains("host_beside_ring"));
  CHECK_THROWS_AS(read_lane_speeds({{"resident", "fast"}}, "here"), UsageError);
  CHECK_THROWS_AS(read_lane_speeds({{"resident", 1}, {"rings", 2}}, "here"), UsageError);
  CHECK_THROWS_AS(read_lane_speeds({{"ring", 1}}, "here"), UsageError);
  CHECK_THROWS_AS(read_lane_speeds(Json::array(), "here"), UsageError);
}

TEST_CASE("cli: measured speeds are kept by machine, device and threads") {
  const TemporaryFolder folder;
  const LaneSpeedStore store(folder.path() / "genai" / "lane-speeds.json");
  std::vector<std::string> warnings;
  CHECK_FALSE(store.find(key_of_threads(1), warnings));
  store.put(key_of_threads(1), some_speeds(55e9), warnings);
  store.put(key_of_threads(2), some_speeds(44e9), warnings);
  store.put(key_of_threads(1), some_speeds(33e9), warnings);
  CHECK(store.find(key_of_threads(1), warnings) == some_speeds(33e9));
  CHECK(store.find(key_of_threads(2), warnings) == some_speeds(44e9));
  CHECK_FALSE(store.find(key_of_threads(3), warnings));
  LaneSpeedKey other = key_of_threads(1);
  other.driver = "12.0";
  CHECK_FALSE(store.find(other, warnings));
  CHECK(warnings.empty());
  // Nothing is left beside the file.
  const std::filesystem::directory_iterator files(folder.path() / "genai");
  CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("cli: a file of speeds that is damaged or foreign is a warning, and is written anew") {
  const TemporaryFolder folder;
  for (const char* text : {"", "{", "[]", "{\"entries\": 3}", R"({"lane_speeds_version": 2, "entries": []})",
                           R"({"entries": [{"key": 1}]})", "\xff\xfe"}) {
    INFO(text);
    const LaneSpeedStore store(folder.write("lane-speeds.json", text));
    std::vector<std::string> warnings;
    CHECK_FALSE(store.find(key_of_threads(1), warnings));
    CHECK(warnings.size() == 1);
    store.put(key_of_threads(1), some_speeds(55e9), warnings);
    CHECK(warnings.size() == 1);
    CHECK(store.find(key_of_threads(1), warnings) == some_speeds(55e9));
  }
  // An entry without sense is measured anew, the others stay.
  const LaneSpeedStore store(folder / "lane-speeds.json");
  std::vector<std::string> warnings;
  store.put(key_of_threads(2), some_speeds(44e9), warnings);
  std::string text = read_whole_file(folder / "lane-speeds.json");
  text.replace(text.find("55.0"), 4, "-5.0");
  folder.write("lane-speeds.json", text);
  CHECK_FALSE(store.find(key_of_threads(1), warnings));
  CHECK(warnings.size() == 1);
  CHECK(store.find(key_of_threads(2), warnings) == some_speeds(44e9));
}

TEST_CASE("cli: speeds that cannot be kept are a warning") {
  const TemporaryFolder folder;
  folder.write("file", "no folder");
  std::vector<std::string> warnings;
  LaneSpeedStore(folder.path() / "file" / "lane-speeds.json").put(key_of_threads(1), some_speeds(55e9), warnings);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("cannot be kept") != std::string::npos);
}

TEST_CASE("cli: auto plans by the speeds that are given, and the plan says what they predict") {
  const auto path = shared_data("reference/tiny/tiny-llama-F32.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  // What is free of the machine's memory, which is the budget otherwise, changes.
  const std::vector<std::string> base{"plan", "-m", path->string(), "-c",           "128",
                                      "-t",   "1",  "--json",       "--gpu-budget", "1GiB"};
  const auto plan = [&](const std::vector<std::string>& more) { return json_of(words(base, more)); };
  const Json by_host = plan({"--cold", "ffn", "--lane-speeds", kFastHost});
  CHECK(by_host["mode"] == "host");
  CHECK(by_host["bottleneck"] == "host cores");
  CHECK(by_host["lane_speeds"]["host"] == 50.0);
  const Json by_link = plan({"--cold", "ffn", "--lane-speeds", kFastLink});
  CHECK(by_link["mode"] == "zerocopy");
  CHECK(by_link["bottleneck"] == "link (zero-copy)");
  const Json& step = by_link["step_bytes"];
  const double resident_speed = by_link["lane_speeds"]["resident"].get<double>() * 1e9;
  // One processor reads both, one after the other.
  CHECK(by_link["predicted_tokens_per_second"].get<double>() ==
        Approx(1.0 / (step["zero_copy"].get<double>() / 50e9 + step["resident"].get<double>() / resident_speed)));
  CHECK_FALSE(by_link.contains("next_gib"));  // what is cold was asked to be

  const TemporaryFolder folder;
  const std::string file = folder.write("speeds.json", by_link["lane_speeds"].dump());
  CHECK(plan({"--cold", "ffn", "--lane-speeds", file}) == by_link);
  ProcessOptions twin;
  twin.environment = {{"GENAI_LANE_SPEEDS", kFastLink}};
  CHECK(json_of(words(base, {"--cold", "ffn"}), twin) == by_link);

  const Json blind = plan({"--cold", "ffn", "--lane-speeds", "none"});
  CHECK(blind["mode"] == "stream");
  for (const char* absent : {"predicted_tokens_per_second", "bottleneck", "lane_speeds"})
    CHECK_FALSE(blind.contains(absent));
}

TEST_CASE("cli: the plan says what a GiB more would buy, and a sweep what each budget does") {
  const auto path = shared_data("reference/tiny/tiny-llama-F32.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::vector<std::string> base{"plan", "-m", path->string(), "-c", "128", "-t", "1", "--lane-speeds", kFastLink};
  const Json whole = json_of(words(base, {"--json", "--gpu-budget", "1GiB"}));
  CHECK(whole["mode"] == "off");
  CHECK(whole["bottleneck"] == "device memory");
  CHECK_FALSE(whole.contains("next_gib"));
  const std::string smallest = std::to_string(whole["smallest_budget_bytes"].get<std::uint64_t>()) + "B";

  const Json tight = json_of(words(base, {"--json", "--gpu-budget", smallest}));
  CHECK(tight["cold_bytes"] > 0);
  REQUIRE(tight.contains("next_gib"));
  CHECK(tight["next_gib"]["mode"] == "off");
  CHECK(tight["next_gib"]["cold_bytes"] == 0);
  CHECK(tight["next_gib"]["predicted_tokens_per_second"] == whole["predicted_tokens_per_second"]);
  CHECK(whole["predicted_tokens_per_second"] > tight["predicted_tokens_per_second"]);

  const ProcessResult text = run_genai(words(base, {"--gpu-budget", smallest}));
  CHECK(text.out.find("tok/s without attention, bounded by link (zero-copy)") != std::string::npos);
  CHECK(text.out.find("one GiB more leaves 0 B cold: predicted") != std::string::npos);
  const Json sweep = json_of(words(base, {"--json", "--gpu-budget", "50%..100%"}))["sweep"];
  CHECK(sweep.back().at("predicted_tokens_per_second") == whole["predicted_tokens_per_second"]);
}

TEST_CASE("cli: a report says what was predicted where speeds are known, and a replay plans by the same") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const TemporaryFolder folder;
  const Json known =
      report_of(path->string(), {"--cold", "ffn", "--lane-speeds", kFastHost, "--report-file", folder / "report.json"});
  CHECK(known["mode"] == "host");
  CHECK(known["bottleneck"] == "host cores");
  CHECK(known["predicted_tokens_per_second"] > 0.0);
  CHECK(known["predicted_over_measured"].get<double>() ==
        Approx(known["predicted_tokens_per_second"].get<double>() / known["decode_tokens_per_second"].get<double>())
            .epsilon(0.01));
  const Json unknown = report_of(path->string(), {"--cold", "ffn"});
  CHECK(unknown["mode"] == "stream");
  CHECK(unknown["logits_hash"] == known["logits_hash"]);
  for (const char* absent : {"predicted_tokens_per_second", "predicted_over_measured", "bottleneck"})
    CHECK_FALSE(unknown.contains(absent));

  // In every mode, and where nothing is cold.
  for (const char* mode : {"off", "auto", "stream", "zerocopy", "host", "split"}) {
    INFO(mode);
    std::vector<std::string> flags{"--lane-speeds", kFastHost, "--weight-offload", mode};
    if (mode != std::string("off")) flags = words(flags, {"--cold", "ffn"});
    const Json report = report_of(path->string(), flags);
    REQUIRE(report.contains("predicted_tokens_per_second"));
    CHECK(report["predicted_over_measured"].get<double>() ==
          Approx(report["predicted_tokens_per_second"].get<double>() / report["decode_tokens_per_second"].get<double>())
              .epsilon(0.01));
    CHECK_FALSE(report["bottleneck"].get<std::string>().empty());
  }

  const Json file = Json::parse(read_whole_file(folder / "report.json"));
  CHECK(file["replay"]["lane_speeds"]["host"] == 50.0);
  const ProcessResult same =
      run_genai({"verify", folder / "report.json"}, {.environment = {{"GENAI_LANE_SPEEDS", ""}}});
  INFO(same.out << same.err);
  CHECK(same.exit_code == 0);
  CHECK(same.out.find("lane_speeds") == std::string::npos);
  const ProcessResult other = run_genai({"verify", folder / "report.json", "--lane-speeds", kFastLink});
  CHECK(other.exit_code == 0);
}

TEST_CASE("cli: what a probe found is used the next time, and probe measures again") {
  if (kSanitized)
    GENAI_SKIP("reading a GiB for each probe takes minutes under a sanitizer; lane_speeds_test.cpp probes less");
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const TemporaryFolder folder;
  ProcessOptions options;
  options.environment = {{"GENAI_LANE_SPEEDS", "auto"}, {"XDG_CACHE_HOME", folder.path().string()}};
  const std::vector<std::string> arguments{"plan", "--gpu-budget", "1GiB", "-m",     path->string(), "-c",
                                           "128",  "-t",           "1",    "--json", "--cold",       "ffn"};
  const std::filesystem::path file = folder.path() / "genai" / "lane-speeds.json";

  // A model that does not fit is refused before anything is measured.
  CHECK(run_genai(words(arguments, {"--gpu-budget", "4KiB"}), options).exit_code == 5);
  CHECK_FALSE(std::filesystem::exists(file));

  const Json measured = json_of(arguments, options);
  if (!measured.contains("lane_speeds")) GENAI_SKIP("too little memory to probe");
  CHECK(measured["predicted_tokens_per_second"] > 0.0);
  REQUIRE(std::filesystem::exists(file));
  CHECK(json_of(arguments, options) == measured);

  Json kept = Json::parse(read_whole_file(file));
  REQUIRE(kept["entries"].size() == 1);
  kept["entries"][0]["speeds"]["resident"] = 123456.789;
  std::ofstream(file) << kept.dump();
  CHECK(json_of(arguments, options)["lane_speeds"]["resident"] == 123456.789);
  CHECK(json_of(words(arguments, {"--lane-speeds", "probe"}), options)["lane_speeds"]["resident"] != 123456.789);
  kept = Json::parse(read_whole_file(file));
  CHECK(kept["entries"].size() == 1);
  CHECK(kept["entries"][0]["speeds"]["resident"] != 123456.789);
}

TEST_CASE("cli: speeds without sense are exit 2") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const TemporaryFolder folder;
  for (const std::string& wrong : {std::string("ring=1"), std::string("resident=1,rings=2"), std::string("resident=-1"),
                                   folder / "absent.json", folder.write("list.json", "[1]"),
                                   folder.write("damaged.json", "{"), folder.write("rings.json", R"({"rings": 1})")}) {
    const ProcessResult result = run_genai({"plan", "-m", path->string(), "--lane-speeds", wrong});
    INFO(wrong << ": " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
  }
}

TEST_CASE("cli: bench --lanes reads one matrix through every lane and says that the bits are equal") {
  const Json document = json_of({"bench", "--lanes", "--max-bytes", "5MiB", "-t", "1", "--json"});
  CHECK(document["threads"] == 1);
  REQUIRE(document["sizes"].size() == 2);
  for (const Json& size : document["sizes"]) {
    CHECK(size["ran"] == true);
    CHECK(size["bits_equal"] == true);
    for (const char* lane : {"resident", "zero_copy", "ring", "host"}) CHECK(size["gbps"][lane] > 0.0);
  }
  CHECK(document["sizes"][0]["bytes"] == 4 << 20);
  CHECK(document["sizes"][1]["bytes"] == 5 << 20);
  const ProcessResult text = run_genai({"bench", "--lanes", "--max-bytes", "4MiB", "-t", "1"});
  CHECK(text.exit_code == 0);
  CHECK(text.out.find("equal") != std::string::npos);
}

TEST_CASE("cli: bench lists what does not fit as not run, with the reason") {
  const Json document =
      json_of({"bench", "--lanes", "--max-bytes", "64MiB", "--gpu-budget", "20MiB", "-t", "1", "--json"});
  REQUIRE(document["sizes"].size() == 3);
  CHECK(document["sizes"][0]["ran"] == true);
  CHECK(document["sizes"][2]["ran"] == false);
  CHECK(document["sizes"][2]["reason"].get<std::string>().find("budget") != std::string::npos);
  CHECK_FALSE(document["sizes"][2].contains("bits_equal"));
}

TEST_CASE("cli: bench refuses all but --lanes") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"bench"},
                                                {"bench", "-m", "model.gguf"},
                                                {"bench", "--lanes", "-p", "512"},
                                                {"bench", "--lanes", "--max-bytes", "1MiB"},
                                                {"bench", "--lanes", "--max-bytes", "50%"},
                                                {"bench", "lanes"}}) {
    const ProcessResult result = run_genai(wrong);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
  }
  CHECK(run_genai({"bench"}).err.find("--lanes") != std::string::npos);
}
