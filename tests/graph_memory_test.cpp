// Memory that a backend takes for graphs: kept free by the plan, on the ledger, inside the budget.
#include "cli/run_report.h"
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/faulty_device.h"
#include "tests/generation_cases.h"

namespace genai {
namespace {

using namespace test;

constexpr std::size_t kGranule = 4096;
constexpr std::uint64_t kGraph = 3 * kGranule + 1;  // of one graph, as the device says

HostDeviceOptions device_options() {
  HostDeviceOptions options;
  options.granule_bytes = kGranule;
  options.threads = 1;
  return options;
}

ModelOptions model_options(std::int32_t sequence_count) {
  ModelOptions options;
  options.context = 64;
  options.max_rows = 16;
  options.sequence_count = sequence_count;
  return options;
}

std::uint64_t whole_granules(std::uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

const GgufImage& image() {
  static const GgufImage kImage =
      synthetic_model({.layer_count = 2, .width = 128, .head_count = 2, .feed_forward_width = 256, .quantised = true})
          .build();
  return kImage;
}

}  // namespace

TEST_CASE("memory of graphs is kept for every width of a step, and is committed memory", "[graph_memory]") {
  struct Widths {
    std::int32_t sequences;
    std::uint64_t graphs;
  };
  for (const auto& [sequences, graphs] : {Widths{1, 1}, Widths{2, 2}, Widths{3, 3}, Widths{8, 4}, Widths{12, 5}}) {
    INFO(sequences << " sequences");
    FaultyDevice without(device_options());
    FaultyDevice with(device_options(), kGraph);
    const DeviceModel free_graphs(without, image(), model_options(sequences));
    const DeviceModel model(with, image(), model_options(sequences));
    const std::uint64_t kept = whole_granules(graphs * kGraph);
    const ResidencyArena& arena = model.model->arena();
    CHECK(arena.committed_bytes(MemoryKind::graphs) == kept);
    CHECK(arena.committed_device_bytes() == free_graphs.model->arena().committed_device_bytes() + kept);
    CHECK(model.model->plan().committed_bytes == free_graphs.model->plan().committed_bytes + kept);
    CHECK(with.memory().live_granules() == without.memory().live_granules());
  }
}

TEST_CASE("a budget holds graphs too: rows make room for them, and the smallest grows by them", "[graph_memory]") {
  FaultyDevice without(device_options());
  FaultyDevice with(device_options(), kGraph);
  const std::uint64_t kept = whole_granules(kGraph);
  ModelOptions options = model_options(1);
  DeviceModel resident(without, image(), options);
  const auto expected = resident.generate(prompt_of(9, 96), 20).step_hashes;
  const std::uint64_t whole = resident.model->plan().committed_bytes;
  options.budget_bytes = whole;
  DeviceModel model(with, image(), options);
  CHECK(model.model->plan().cold_bytes() > kept / 2);
  CHECK(model.generate(prompt_of(9, 96), 20).step_hashes == expected);
  CHECK(model.model->arena().committed_peak_bytes() <= whole);
  options.budget_bytes = whole + kept;
  CHECK(DeviceModel(with, image(), options).model->plan().cold_bytes() == 0);

  options.offload = OffloadMode::stream;
  PlanRequest request = resident.model->plan_request();
  request.mode = options.offload;
  const std::uint64_t least = smallest_budget(request) + kept;
  options.budget_bytes = least;
  CHECK(DeviceModel(with, image(), options).generate(prompt_of(9, 96), 20).step_hashes == expected);
  options.budget_bytes = least - 1;
  CHECK_THROWS_AS(DeviceModel(with, image(), options), BudgetError);
}

TEST_CASE("the arena keeps memory free inside its budget", "[graph_memory]") {
  HostDevice device(device_options());
  ResidencyArena arena(device.memory(), 4 * kGranule);
  arena.keep_free(MemoryKind::graphs, 3 * kGranule);
  CHECK(arena.committed_device_bytes() == 3 * kGranule);
  MemoryRange range = arena.reserve(MemoryKind::weights, 2 * kGranule);
  CHECK_THROWS_AS(range.commit(0, 2 * kGranule), BudgetError);
  CHECK(range.committed_bytes() == kGranule);
  CHECK_THROWS_AS(arena.keep_free(MemoryKind::graphs, 1), BudgetError);
  CHECK(arena.committed_peak_bytes() == 4 * kGranule);
  ResidencyArena plain(device.memory(), std::nullopt, Allocator::plain);
  plain.keep_free(MemoryKind::graphs, kGranule);
  CHECK(plain.committed_device_bytes() == 0);
}

TEST_CASE("graphs that took more than was kept for them are told, and only those", "[graph_memory]") {
  cli::Report report;
  report.committed_bytes = {{"kv", 1}, {"graphs", 100}};
  CHECK(cli::graph_memory_warning(report).empty());  // not measured
  report.graph_bytes = 100;
  CHECK(cli::graph_memory_warning(report).empty());
  report.graph_bytes = 101;
  CHECK(cli::graph_memory_warning(report).find("101 bytes") == 0);
  report.committed_bytes.clear();  // nothing was kept: plain allocations
  CHECK(cli::graph_memory_warning(report).empty());
}

}  // namespace genai
