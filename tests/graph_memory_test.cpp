// Memory that a backend takes for graphs: kept free by the plan, on the ledger, inside the budget.
#include "cli/run_report.h"
#include "engine/error.h"
#include "tests/catch.h"
#include "tests/faulty_device.h"
#include "tests/generation_cases.h"
#include "tests/wrapped_device.h"

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

class SizedGraph final : public Graph {
 public:
  SizedGraph(std::unique_ptr<Graph> inner, std::optional<std::uint64_t> bytes)
      : inner_(std::move(inner)), bytes_(bytes) {}
  Graph& inner() { return *inner_; }
  std::size_t node_count() const override { return inner_->node_count(); }
  std::optional<std::uint64_t> device_bytes() const override { return bytes_; }

 private:
  std::unique_ptr<Graph> inner_;
  const std::optional<std::uint64_t> bytes_;
};

class SizedGraphStream final : public WrappedStream {
 public:
  SizedGraphStream(std::unique_ptr<Stream> inner, const std::optional<std::uint64_t>& bytes)
      : WrappedStream(std::move(inner)), bytes_(bytes) {}
  std::unique_ptr<Graph> end_capture() override {
    return std::make_unique<SizedGraph>(WrappedStream::end_capture(), bytes_);
  }
  void launch(Graph& graph) override { WrappedStream::launch(static_cast<SizedGraph&>(graph).inner()); }

 private:
  const std::optional<std::uint64_t>& bytes_;
};

// Every graph of this device says that it takes so many bytes.
class SizedGraphDevice final : public Device {
 public:
  SizedGraphDevice() : device_(device_options()), kernels_(device_.kernels()) {}
  std::string name() const override { return device_.name(); }
  VirtualMemory& memory() override { return device_.memory(); }
  Kernels& kernels() override { return kernels_; }
  std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<SizedGraphStream>(device_.create_stream(), bytes_of_a_graph);
  }
  std::unique_ptr<Event> create_event() override { return device_.create_event(); }
  std::uint64_t graph_reserve_bytes(std::size_t, std::size_t) const override { return 0; }

  std::optional<std::uint64_t> bytes_of_a_graph;

 private:
  HostDevice device_;
  WrappedKernels kernels_;
};

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

TEST_CASE("no step has more operations than graph memory is kept for, wherever its rows are", "[graph_memory]") {
  FaultyDevice device(device_options());
  HostDevice host(device_options());
  for (const bool whole : {true, false}) {
    for (const OffloadMode mode :
         {OffloadMode::off, OffloadMode::stream, OffloadMode::zero_copy, OffloadMode::host, OffloadMode::split}) {
      INFO(offload_mode_name(mode) << (whole ? ", all cold" : ", as much as fits"));
      ModelOptions options = model_options(2);
      options.offload = mode;
      options.host_device = &host;
      if (mode != OffloadMode::off && whole) options.forced_cold = {"weight"};
      if (mode != OffloadMode::off && !whole) {
        PlanRequest request = DeviceModel(device, image(), options).model->plan_request();
        options.budget_bytes = make_residency_plan(request).committed_bytes - kGranule;
      }
      DeviceModel model(device, image(), options);
      const std::atomic<bool> interrupted{false};
      const GenerationRequest request{.prompt = prompt_of(3, 96), .max_tokens = 4, .sampler = {}, .end_ids = {}};
      model.loop->generate_all(std::vector{request, request}, {}, interrupted);
      CHECK(model.loop->counters().graph_nodes > 10);
      CHECK(model.loop->counters().graph_nodes <= device.expected_operations());
    }
  }
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

TEST_CASE("memory of graphs is measured width by width, and not known where it is not of one", "[graph_memory]") {
  SizedGraphDevice device;
  DeviceModel model(device, image(), model_options(2));
  CHECK(model.loop->graph_bytes() == 0);
  device.bytes_of_a_graph = 1000;
  model.generate(prompt_of(3, 96), 4);
  CHECK(model.loop->graph_bytes() == 1000);
  model.generate(prompt_of(3, 96), 4);  // by the same graph
  CHECK(model.loop->graph_bytes() == 1000);
  device.bytes_of_a_graph = 700;
  const std::atomic<bool> interrupted{false};
  const GenerationRequest request{.prompt = prompt_of(3, 96), .max_tokens = 4, .sampler = {}, .end_ids = {}};
  model.loop->generate_all(std::vector{request, request}, {}, interrupted);
  CHECK(model.loop->graph_bytes() == 1700);

  DeviceModel unknown(device, image(), model_options(1));
  device.bytes_of_a_graph.reset();
  unknown.generate(prompt_of(3, 96), 4);
  CHECK_FALSE(unknown.loop->graph_bytes().has_value());
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
