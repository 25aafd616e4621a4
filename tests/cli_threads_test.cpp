// How many threads a run takes when nobody says, and that their number changes no byte.
#include <sched.h>

#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/cli_process.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"

using namespace genai::test;
using Json = nlohmann::json;

namespace {

// Confines this process, and those that it starts, to its lowest `count` processors for a while.
class Confined {
 public:
  explicit Confined(int count) {
    REQUIRE(sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t fewer;
    CPU_ZERO(&fewer);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&fewer) < count; ++core)
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &fewer);
    REQUIRE(sched_setaffinity(0, sizeof fewer, &fewer) == 0);
  }
  ~Confined() { sched_setaffinity(0, sizeof before_, &before_); }
  Confined(const Confined&) = delete;
  Confined& operator=(const Confined&) = delete;

  int count_before() const { return CPU_COUNT(&before_); }

 private:
  cpu_set_t before_{};
};

ProcessResult run_tiny(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"-m", model, "-p", "hello there", "-n", "12", "-c", "64", "--ignore-eos"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  ProcessResult result = run_genai(arguments);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return result;
}

}  // namespace

TEST_CASE("cli: threads are as many as the affinity mask has cores, and both reports say why") {
  const auto path = shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  const std::vector<std::string> cold = {"--cold", "ffn", "--weight-offload", "split"};
  for (const std::vector<std::string>& mode : {std::vector<std::string>{}, cold}) {
    const Confined confined(1);
    const Json host = Json::parse(run_tiny(model, mode).err).at("host");
    CHECK(host.at("threads") == 1);
    const std::string reason = host.at("threads_reason");
    CHECK_FALSE(reason.empty());
    if (confined.count_before() > 1) CHECK(reason.find("the affinity mask allows 1 of ") == 0);
    std::vector<std::string> in_words = mode;
    for (const char* word : {"--report", "human"}) in_words.emplace_back(word);
    const std::string line = run_tiny(model, in_words).err;
    CHECK(line.find("host (1 thread), " + reason) != std::string::npos);
    const Json asked = Json::parse(run_genai({"-m", model, "-p", "a", "-n", "1", "-t", "3"}).err).at("host");
    CHECK(asked.at("threads") == 3);  // who asks is obeyed
    CHECK(asked.at("threads_reason") == "asked for");
  }
}

TEST_CASE("cli: every number of threads up to 32 writes the same text, rows computed by host cores included") {
  const auto path = shared_data("reference/tiny/tiny-gemma3-Q4_K_M.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const std::string model = path->string();
  const ProcessResult expected = run_tiny(model, {"-t", "1"});
  const Json hash = Json::parse(expected.err).at("logits_hash");
  for (int threads = 1; threads <= 32; threads += kSanitized ? 10 : 1) {
    INFO(threads);
    const ProcessResult plain = run_tiny(model, {"-t", std::to_string(threads)});
    CHECK(plain.out == expected.out);
    CHECK(Json::parse(plain.err).at("logits_hash") == hash);
    const ProcessResult split =
        run_tiny(model, {"-t", std::to_string(threads), "--cold", "ffn", "--weight-offload", "split"});
    CHECK(split.out == expected.out);
    CHECK(Json::parse(split.err).at("logits_hash") == hash);
    CHECK(Json::parse(split.err).at("host_computed_bytes") > 0);
  }
}
