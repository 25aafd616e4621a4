// genai verify: a report replayed agrees, in the same memory and in any other; what was tampered with, or computed from
// other weights, is found and named.
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/scripted_model.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using Json = nlohmann::ordered_json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A model copied to a folder of its own, and reports of it.
class Recorded {
 public:
  explicit Recorded(const std::filesystem::path& model) : model_(folder_ / "model.gguf") {
    std::filesystem::copy_file(model, model_);
  }
  const std::string& model() const { return model_; }
  const std::string& report() const { return report_; }

  void record(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"-m", model_, "-c", "128", "-ub", "16", "-t", "2", "-q", "--report-file", report_});
    const ProcessResult result = run_genai(flags);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
  }
  ProcessResult verify(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"verify", report_});
    return run_genai(flags);
  }
  Json read() const { return Json::parse(read_whole_file(report_)); }
  void change(const std::function<void(Json&)>& edit) const {
    Json report = read();
    edit(report);
    folder_.write("report.json", report.dump());
  }

 private:
  TemporaryFolder folder_;
  std::string model_;
  std::string report_ = folder_ / "report.json";
};

void check_agrees(const ProcessResult& result, bool with_counters) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(contains(result.out, with_counters ? "all hashes and counters agree\n" : "all hashes agree\n"));
  CHECK(contains(result.out, "counters are not compared") == !with_counters);
}

void check_differs(const ProcessResult& result, const std::string& part) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 1);
  CHECK(contains(result.out, "differs: " + part));
  CHECK_FALSE(contains(result.out, "agree"));
}

void check_refused(const ProcessResult& result, const std::string& part) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(contains(result.err, part));
}

}  // namespace

TEST_CASE("cli: verify replays a report in the memory it names, and in any other, to the same hashes") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  const std::vector<std::vector<std::string>> runs = {
      {"-p", "hello there", "-n", "40"},
      {"-p", "hello there", "-n", "40", "--temp", "0.9", "--top-p", "0.7", "--repeat-penalty", "1.1", "--stop", "qq"},
      {"-p", "Once", "-n", "30", "--ignore-eos", "--special", "--cold", "ffn", "--weight-offload", "stream"},
      {"-p", "Once", "-n", "30", "--temp", "1", "-np", "3", "-s", "18446744073709551615"},
      {"-p", "Once", "-ctk", "f32", "-ctv", "f32", "--no-cuda-graph"}};
  for (const std::vector<std::string>& run : runs) {
    INFO(run[1] << " " << run.size());
    recorded.record(run);
    check_agrees(recorded.verify(), true);
    const bool is_stream = recorded.read().at("mode") == "stream";
    check_agrees(recorded.verify({"--cold", "weight", "--weight-offload", "zerocopy"}), false);
    check_agrees(recorded.verify({"--cold", "ffn", "--weight-offload", "stream"}), is_stream);
    check_agrees(recorded.verify({"--weight-offload", "off"}), !is_stream);
    check_agrees(recorded.verify({"-t", "1", "-ub", "5"}), false);
    const bool graph = recorded.read().at("replay").at("graph");
    check_agrees(recorded.verify({"--no-cuda-graph"}), !graph);
  }
  // A budget, in which the plan decides what is cold.
  recorded.record({"-p", "Once", "-n", "20"});
  const std::uint64_t peak = recorded.read().at("committed_peak_bytes");
  recorded.record({"-p", "Once", "-n", "20", "--gpu-budget", std::to_string(peak) + "B"});
  check_agrees(recorded.verify(), true);
  check_agrees(recorded.verify({"--gpu-budget", "100%"}), false);
}

TEST_CASE("cli: verify replays a batch, at any width, and names the row that differs") {
  const auto path = shared_data("reference/tiny/tiny-qwen2-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  const TemporaryFolder folder;
  const std::string file = folder.write("prompts.jsonl",
                                        "{\"prompt\": \"a\", \"n\": 20}\n"
                                        "{\"prompt\": \"hello there\", \"n\": 9, \"temperature\": 1}\n"
                                        "{\"prompt\": \"b\", \"n\": 0}\n"
                                        "{\"prompt\": \"the\", \"n\": 14, \"stop\": \"e\"}\n");
  recorded.record({"--batch-file", file, "-np", "2", "--cold", "ffn", "--weight-offload", "stream"});
  check_agrees(recorded.verify(), true);
  check_agrees(recorded.verify({"-np", "1"}), false);
  check_agrees(recorded.verify({"-np", "8", "--weight-offload", "split"}), false);
  const Json report = recorded.read();
  CHECK_FALSE(report.contains("step_logits_hashes"));
  recorded.change([](Json& changed) { changed["rows"][1]["step_logits_hashes"][4] = "0123456789abcdef"; });
  check_differs(recorded.verify(), "logits_hash of step 4 of row 1 is ");
  recorded.change([&](Json& changed) {
    changed = report;
    changed["logits_hash"] = "0123456789abcdef";
  });
  check_differs(recorded.verify(), "logits_hash is ");
}

TEST_CASE("cli: verify finds each thing that was changed in a report") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  recorded.record({"-p", "hello there", "-n", "20", "--cold", "ffn", "--weight-offload", "stream"});
  const Json report = recorded.read();
  const auto after = [&](const std::function<void(Json&)>& edit) {
    recorded.change([&](Json& changed) {
      changed = report;
      edit(changed);
    });
    return recorded.verify();
  };
  check_differs(after([](Json& json) { json["step_logits_hashes"][7] = "0123456789abcdef"; }),
                "logits_hash of step 7 is ");
  check_differs(after([](Json& json) { json["step_logits_hashes"].erase(19); }), "logits_hash of step 19 is ");
  check_differs(after([](Json& json) { json["logits_hash"] = "0123456789abcdef"; }), "logits_hash is ");
  check_differs(after([](Json& json) { json["output_hash"] = "0123456789abcdef"; }), "output_hash is ");
  check_differs(after([](Json& json) { json["prompt_hash"] = "0123456789abcdef"; }), "prompt_hash is ");
  check_differs(after([](Json& json) { json["generated_tokens"] = 19; }), "generated_tokens is 20");
  check_differs(after([](Json& json) { json["replay"]["rows"][0]["prompt_ids"][0] = 1; }), "logits_hash of step 0 is ");
  check_differs(after([](Json& json) { json["replay"]["rows"][0]["max_tokens"] = 21; }), "logits_hash of step 20 is ");
  for (const char* counter : {"htod_bytes", "page_ins", "resident_bytes", "cold_bytes", "captures", "kv_growth_events",
                              "floor_bytes_per_step", "committed_peak_bytes", "decode_steps"})
    check_differs(after([&](Json& json) { json[counter] = json[counter].get<std::uint64_t>() + 1; }),
                  std::string(counter) + " is ");
  // What does not bear on the bytes may change.
  check_agrees(after([](Json& json) { json["load_ms"] = 1; }), true);

  const ProcessResult document = recorded.verify({"--json"});
  CHECK(Json::parse(document.out).at("agrees") == true);
  recorded.change([](Json& json) { json["step_logits_hashes"][7] = "0123456789abcdef"; });
  const Json found = Json::parse(recorded.verify({"--json"}).out);
  CHECK(found.at("agrees") == false);
  CHECK(found.at("differences").at(0).at("step") == 7);
  CHECK(found.at("differences").at(0).at("expected") == "\"0123456789abcdef\"");
}

TEST_CASE("cli: verify refuses another model, and one that was renamed is found with -m") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  const auto other = shared_data("reference/tiny/tiny-llama-Q8_0.gguf");
  if (!path || !other) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  recorded.record({"-p", "hello there", "-n", "5"});
  check_refused(recorded.verify({"-m", other->string()}), "is another model");
  check_agrees(recorded.verify({"-m", path->string()}), true);
  std::filesystem::remove(recorded.model());
  CHECK(recorded.verify().exit_code == 3);
  // A model in the environment is that of other verbs.
  CHECK(run_genai({"verify", recorded.report()}, {.environment = {{"GENAI_MODEL", path->string()}}}).exit_code == 3);
  check_agrees(recorded.verify({"-m", path->string()}), true);
}

TEST_CASE("cli: verify finds one byte of the weights that the model's hash does not see") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  recorded.record({"-p", "hello there", "-n", "20"});
  const Json inspected = Json::parse(run_genai({"inspect", "--json", recorded.model()}).out);
  std::uint64_t offset = 0;
  for (const Json& tensor : inspected.at("tensors"))
    if (tensor.at("name") == "blk.1.ffn_down.weight")
      offset = tensor.at("offset").get<std::uint64_t>() + tensor.at("bytes").get<std::uint64_t>() / 4;
  REQUIRE(offset > 0);
  std::string bytes = read_whole_file(recorded.model());
  bytes[offset] = static_cast<char>(bytes[offset] ^ 0x55);
  std::ofstream(recorded.model(), std::ios::binary) << bytes;
  check_differs(recorded.verify(), "logits_hash of step 0 is ");
}

TEST_CASE("cli: verify replays a run that was interrupted as far as it went") {
  ScriptedModel model;
  const auto ids = model.add_line({"a", "xx"});
  model.says({ids[1], ids[1]});
  const TemporaryFolder folder;
  const std::string path = folder / "endless.gguf", report = folder / "report.json";
  model.writer().build().write(path);
  Process process({"-m", path, "-p", "a", "-c", "1000000", "-q", "--report-file", report});
  REQUIRE(process.wait_until([&] { return process.out().size() >= 10; }));
  process.signal(SIGINT);
  REQUIRE(process.finish().exit_code == 130);
  REQUIRE(Json::parse(read_whole_file(report)).at("finish_reason") == "interrupted");
  check_agrees(run_genai({"verify", report}), true);
}

TEST_CASE("cli: verify refuses what is no whole report") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  Recorded recorded(*path);
  recorded.record({"-p", "hello there", "-n", "5"});
  const std::string whole = read_whole_file(recorded.report());
  const Json report = recorded.read();
  const TemporaryFolder folder;
  for (std::size_t tenth = 0; tenth < 10; ++tenth)
    check_refused(run_genai({"verify", folder.write("cut.json", whole.substr(0, whole.size() * tenth / 10))}),
                  "cut.json: not JSON");
  const auto refused = [&](const std::string& part, const std::function<void(Json&)>& edit) {
    recorded.change([&](Json& changed) {
      changed = report;
      edit(changed);
    });
    INFO(part);
    check_refused(recorded.verify(), part);
  };
  refused("does not say what was asked for", [](Json& json) { json.erase("replay"); });
  refused("schema_version", [](Json& json) { json = Json::array(); });
  refused("arithmetic is 2", [](Json& json) { json["arithmetic"] = 2; });
  refused("is another model", [](Json& json) { json["model"]["hash"] = "0123456789abcdef"; });
  refused("there is no path", [](Json& json) { json["model"] = 3; });
  refused("has the token 320", [](Json& json) { json["replay"]["rows"][0]["prompt_ids"][0] = 320; });
  refused("not as many results", [](Json& json) { json["replay"]["rows"].push_back(json["replay"]["rows"][0]); });
  refused("no text in it", [](Json& json) { json["replay"]["rows"] = Json::array(); });
  refused("temperature", [](Json& json) { json["replay"]["rows"][0]["temperature"] = -1; });
  refused("temperature", [](Json& json) { json["replay"]["rows"][0].erase("temperature"); });
  refused("batch is 17", [](Json& json) { json["batch"] = 17; });
  refused("no device", [](Json& json) { json["replay"]["device"] = "tpu"; });
  refused("no list", [](Json& json) { json["step_logits_hashes"] = "none"; });
  check_refused(run_genai({"verify", folder / "absent"}), "cannot read");
  check_refused(run_genai({"verify"}), "no report is given");
  check_refused(recorded.verify({"--gpu-budget", "6"}), "no unit");
  check_refused(recorded.verify({"--temp", "1"}), "belongs to genai run");
}
