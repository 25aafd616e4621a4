// What loading costs: a model's bytes are in memory once, packed, and never a second time as pages of its file.
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/real_models.h"
#include "tests/scripted_model.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

using namespace genai::test;
using Json = nlohmann::json;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Runs one short step in a process of its own; the peak includes cache, workspace and code.
void check_peak(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"-m",       model,  "-p", "a", "-n",  "2", "-c",          "64",
                                        "--report", "json", "-t", "2", "-ub", "1", "--log-level", "error"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult result = run_genai(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const Json report = Json::parse(result.err);
  const std::uint64_t packed_bytes =
      report.at("resident_bytes").get<std::uint64_t>() + report.at("cold_bytes").get<std::uint64_t>();
  INFO(packed_bytes);
  CHECK(report.at("rss_peak_bytes") <= packed_bytes + packed_bytes / 10 + 64 * kMiB);
  CHECK(report.at("load_gbps") > 0.0);
}

}  // namespace

TEST_CASE("cli: loading a model takes the memory of its packed weights once") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GENAI_SKIP("a sanitizer needs memory of its own");
#endif
  // 384 MiB of matrices: a file that stays in memory cannot hide in the allowance.
  ScriptedModel model;
  model.says({model.add("a"), model.add("b")});
  GgufWriter writer = model.writer();
  constexpr std::uint32_t kFeedForwardWidth = 512 * 1024;
  writer.u32("llama.feed_forward_length", kFeedForwardWidth);
  for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"})
    writer.remove_tensor(std::string("blk.0.") + name + ".weight");
  for (const char* name : {"ffn_gate", "ffn_up"})
    writer.tensor(std::string("blk.0.") + name + ".weight", {ScriptedModel::kWidth, kFeedForwardWidth}, 0);
  writer.tensor("blk.0.ffn_down.weight", {kFeedForwardWidth, ScriptedModel::kWidth}, 0);
  TemporaryFolder folder;
  const std::string path = folder / "large.gguf";
  writer.build().write(path);
  check_peak(path, {});
  check_peak(path, {"--cold", "ffn", "--weight-offload", "zerocopy"});
}

TEST_CASE("Gemma 3 is loaded in the memory of its packed weights") {
  const auto model = gemma3();
  if (!model) GENAI_SKIP("the model is not there");
  check_peak(model->string(), {});
}

TEST_CASE("SmolLM2 is loaded in the memory of its packed weights") {
  const auto model = smollm2();
  if (!model) GENAI_SKIP("the model is not there");
  check_peak(model->string(), {});
}
