// Every counter of a report, moved by an amount that is known beforehand: from the file's tensors, the length of the
// texts and the size of a granule, not from the plan.
#include <numeric>

#include "engine/packed_layout.h"
#include "tests/catch.h"
#include "tests/model_support.h"
#include "tests/session_support.h"
#include "tests/shared_data.h"

namespace genai {
namespace {

using namespace test;
using nlohmann::json;

constexpr std::uint64_t kGranule = 8192;
constexpr std::uint64_t kParts = 256;  // parts of a range begin at multiples of it

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

SessionRun small_run(OffloadMode mode) {
  SessionRun run;
  run.device.granule_bytes = kGranule;
  run.placement.offload = mode;
  if (mode != OffloadMode::off) run.placement.cold = {"ffn_down"};
  return run;
}

struct Sizes {
  std::uint64_t all = 0;       // of packed weights
  std::uint64_t cold = 0;      // of them, of ffn_down
  std::uint64_t lookup = 0;    // of them, of which a step reads single rows
  std::uint64_t resident = 0;  // all but the cold ones, each at a place of its own
  CacheShape cache;
};

Sizes sizes_of(const std::string& path) {
  const GgufFile file(path);
  const ModelConfig config = read_model_config(file);
  Sizes sizes;
  for (const TensorInfo& tensor : file.tensors()) {
    const bool is_matrix = tensor.shape.size() > 1;
    const std::uint64_t bytes =
        is_matrix ? static_cast<std::uint64_t>(packed_bytes(tensor.dtype, static_cast<std::int64_t>(tensor.shape[1]),
                                                            static_cast<std::int64_t>(tensor.shape[0])))
                  : 4 * tensor.shape[0];
    sizes.all += bytes;
    if (tensor.name.find("ffn_down") != std::string::npos)
      sizes.cold += bytes;
    else
      sizes.resident += rounded(bytes, kParts);
    if (tensor.name == "token_embd.weight") sizes.lookup = bytes;
  }
  sizes.cache = {.type = CacheType::f16,
                 .layer_count = config.layer_count,
                 .kv_head_count = config.kv_head_count,
                 .head_dim = config.head_dim};
  return sizes;
}

}  // namespace

TEST_CASE("counters of traffic move by the bytes of the cold matrices, step by step", "[report_counters]") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const Sizes sizes = sizes_of(path->string());
  REQUIRE(sizes.cold > 0);
  struct Expected {
    OffloadMode mode;
    const char* counter;
    bool is_traffic;  // over the link, which is what the floor is of
  };
  for (const Expected& expected :
       {Expected{OffloadMode::stream, "htod_bytes", true}, Expected{OffloadMode::zero_copy, "zero_copy_bytes", true},
        Expected{OffloadMode::host, "host_computed_bytes", false}}) {
    INFO(expected.counter);
    SessionRun run = small_run(expected.mode);
    const json shorter = run_session(path->string(), run).report;
    run.max_tokens = {16};
    const json longer = run_session(path->string(), run).report;
    for (const char* counter : {"htod_bytes", "zero_copy_bytes", "host_computed_bytes"}) {
      const std::uint64_t a_step = counter == std::string(expected.counter) ? sizes.cold : 0;
      CHECK(shorter[counter] == 8 * a_step);
      CHECK(longer[counter] == 15 * a_step);
    }
    CHECK(shorter["htod_bytes_per_token"] == (expected.mode == OffloadMode::stream ? sizes.cold : 0));
    CHECK(shorter["floor_bytes_per_step"] == (expected.is_traffic ? sizes.cold : 0));
    CHECK(shorter.contains("traffic_over_floor") == expected.is_traffic);
    if (expected.is_traffic) CHECK(shorter["traffic_over_floor"] == 1.0);
    for (const char* counter : {"decode_steps", "replays"}) {
      CHECK(shorter[counter] == 8);
      CHECK(longer[counter] == 15);
    }
    CHECK(shorter["generated_tokens"] == 9);
    CHECK(longer["generated_tokens"] == 16);
    // A chunk of the ring is at most a slot, and the matrices of two layers do not share one with anything else.
    const std::uint64_t page_ins = shorter["page_ins"];
    CHECK((page_ins > 0) == (expected.mode == OffloadMode::stream));
    CHECK(page_ins % 8 == 0);
    CHECK(longer["page_ins"] == page_ins / 8 * 15);
    for (const json& report : {shorter, longer}) CHECK(report["evictions"] == report["page_ins"]);
    CHECK(shorter["cold_bytes"] == sizes.cold);
    CHECK(shorter["resident_bytes"] == sizes.all - sizes.cold);
    CHECK(shorter["step_weight_bytes"] == sizes.all - sizes.lookup);

    run.placement.parallel = 2;
    run.prompts.resize(2, run.prompts.front());
    run.max_tokens = {9, 9};
    const json both = run_session(path->string(), run).report;
    for (const char* counter : {"htod_bytes", "zero_copy_bytes", "host_computed_bytes", "page_ins", "decode_steps"})
      CHECK(both[counter] == shorter[counter]);
    CHECK(both["htod_bytes_per_token"] == shorter["htod_bytes_per_token"].get<std::uint64_t>() / 2);
    CHECK(both["batch"] == 2);
    CHECK(both["generated_tokens"] == 18);
    CHECK(both["prompt_tokens"] == 2 * shorter["prompt_tokens"].get<int>());
  }
}

TEST_CASE("counters of memory are whole granules of what is there, kind by kind", "[report_counters]") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const Sizes sizes = sizes_of(path->string());
  for (const bool separate_host : {false, true}) {
    SessionRun run = small_run(OffloadMode::host);
    run.separate_host = separate_host;
    const json report = run_session(path->string(), run).report;
    const json& kinds = report["committed_bytes"];
    CHECK(kinds["weights"] == rounded(sizes.resident, kGranule));
    CHECK(kinds["cold"] == rounded(sizes.cold, kGranule));
    CHECK(kinds["kv"] == report["kv_committed_bytes"]);
    CHECK(kinds["graphs"] == 0);  // they lie in host memory
    CHECK((kinds["exchange"] > 0) == separate_host);
    CHECK(report["pinned_bytes"] == kinds["cold"].get<std::uint64_t>() + kinds["exchange"].get<std::uint64_t>());
    std::uint64_t device_bytes = 0;
    for (const char* kind : {"weights", "ring", "kv", "workspace"}) device_bytes += kinds[kind].get<std::uint64_t>();
    CHECK(report["committed_peak_bytes"] == device_bytes);
  }
  SessionRun run = small_run(OffloadMode::off);
  const json resident = run_session(path->string(), run).report;
  CHECK(resident["committed_bytes"]["cold"] == 0);
  CHECK(resident["pinned_bytes"] == 0);
  CHECK(resident["resident_bytes"] == sizes.all);
  CHECK_FALSE(resident.contains("budget_bytes"));
  run.placement.budget = {.kind = cli::MemoryLimit::Kind::bytes, .bytes = std::uint64_t{1} << 30};
  CHECK(run_session(path->string(), run).report["budget_bytes"] == std::uint64_t{1} << 30);
}

TEST_CASE("counters of the cache follow the positions that a text has reached", "[report_counters]") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  const Sizes sizes = sizes_of(path->string());
  const auto granules = [&](std::int32_t positions) {
    return rounded(cache_bytes(sizes.cache, positions), kGranule) / kGranule;
  };
  SessionRun run = small_run(OffloadMode::off);
  for (const std::int32_t new_tokens : {9, 100}) {
    run.max_tokens = {new_tokens};
    const json report = run_session(path->string(), run).report;
    const std::int32_t prompt_tokens = report["prompt_tokens"];
    const std::int32_t end = prompt_tokens + new_tokens - 1;  // the last token is not read
    CHECK(report["kv_committed_bytes"] == granules(end) * kGranule);
    std::uint64_t growth = 1;  // the prompt is one pass
    for (std::int32_t positions = prompt_tokens; positions < end; ++positions)
      growth += granules(positions + 1) > granules(positions) ? 1 : 0;
    CHECK(report["kv_growth_events"] == growth);
    CHECK((growth > 1) == (new_tokens == 100));
    CHECK(report["kv_bytes_moved"] == 0);
  }
  run.placement.context = 192;
  run.placement.pass_rows = 7;
  const json other = run_session(path->string(), run).report;
  CHECK(other["context_tokens"] == 192);
  CHECK(other["ubatch_tokens"] == 7);
}

TEST_CASE("counters of graphs count widths, launches and what kept a step from being one graph", "[report_counters]") {
  const auto path = shared_data("reference/tiny/tiny-llama-F16.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  SessionRun run = small_run(OffloadMode::off);
  run.placement.parallel = 2;
  run.prompts.resize(2, run.prompts.front());
  run.max_tokens = {5, 9};
  const json report = run_session(path->string(), run).report;
  CHECK(report["captures"] == 2);  // of two texts, then of the one that goes on
  CHECK(report["replays"] == 8);
  CHECK(report["segments"] == 1);
  for (const char* none : {"invalidations", "fallbacks", "eager_nodes", "graph_bytes"}) CHECK(report[none] == 0);
  run.graph = false;
  const json eager = run_session(path->string(), run).report;
  for (const char* none : {"captures", "replays"}) CHECK(eager[none] == 0);
  for (const char* absent : {"invalidations", "fallbacks", "eager_nodes", "segments", "graph_bytes"})
    CHECK_FALSE(eager.contains(absent));
  CHECK(eager["logits_hash"] == report["logits_hash"]);

  // What cannot happen in a run.
  DecodeCounters counters;
  counters.decode_steps = 8;
  counters.replays = 6;
  counters.eager_steps = 2;
  counters.captures = 5;
  cli::Report odd;
  cli::put_graph_counters(counters, true, 3, odd);
  CHECK(odd.invalidations == 2);
  CHECK(odd.fallbacks == 2);
  CHECK_FALSE(odd.eager_nodes.has_value());
  CHECK(odd.segments == 0);
}

}  // namespace genai
