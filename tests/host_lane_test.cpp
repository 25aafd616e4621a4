// Rows that host cores compute beside a device: the resident bits in every mode, budget and width, with exact counts of
// requests, and no device that waits for an answer in vain.
#include "engine/residency/host_lane.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "engine/error.h"
#include "tests/catch.h"
#include "tests/device_contract_support.h"
#include "tests/model_support.h"
#include "tests/shared_data.h"

namespace genai {
namespace {

using test::arbitrary_tokens;
using test::HostModel;
using test::HostModelOptions;

constexpr int kVocabulary = 320;  // of the tiny models

HostModelOptions small_options() {
  HostModelOptions options;
  options.device.granule_bytes = std::size_t{16} << 10;
  options.device.threads = 1;
  options.model.context = 320;
  options.model.max_rows = 16;
  return options;
}

// Three generations, one of 256 tokens.
std::vector<std::vector<std::uint64_t>> run_three(HostModel& model) {
  std::vector<std::vector<std::uint64_t>> hashes;
  hashes.push_back(model.generate(arbitrary_tokens(20, kVocabulary, 1), 20).step_hashes);
  hashes.push_back(model.generate(arbitrary_tokens(40, kVocabulary, 2), test::kSanitized ? 20 : 256).step_hashes);
  hashes.push_back(model.generate(arbitrary_tokens(3, kVocabulary, 3), 20).step_hashes);
  return hashes;
}

// Products of a step that have rows for the host; gate and up, and q, k and v, are one product each.
std::uint64_t products_with_host_rows(const Model& model) {
  std::set<std::string> products;
  for (const PlacedTensor& placed : model.weight_map().tensors) {
    if (!placed.packed || !placed.read_every_pass || placed.plan.of(Lane::host) == 0) continue;
    std::string name = placed.name;
    for (const char* part : {"attn_q", "attn_k", "attn_v"})
      if (const std::size_t at = name.find(std::string(part) + ".weight"); at != std::string::npos)
        name = name.substr(0, at) + "attn_qkv";
    if (const std::size_t at = name.find("ffn_up.weight"); at != std::string::npos)
      name = name.substr(0, at) + "ffn_gate.weight";
    products.insert(name);
  }
  return products.size();
}

}  // namespace

TEST_CASE("rows computed by host cores beside the device give the resident bits", "[host_lane]") {
  for (const char* name : {"tiny-llama-Q4_0.gguf", "tiny-gemma3-Q4_K_M.gguf", "tiny-qwen2-Q8_0.gguf"}) {
    const auto path = test::shared_data(std::string("reference/tiny/") + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    HostModel resident(*path, small_options());
    const auto expected = run_three(resident);
    const std::uint64_t whole = resident.model->plan().committed_bytes;
    for (const OffloadMode mode : {OffloadMode::host, OffloadMode::split}) {
      PlanRequest request = resident.model->plan_request();
      request.mode = mode;
      request.budget_bytes.reset();
      const std::uint64_t least = smallest_budget(request);
      for (const std::uint64_t budget : {whole - 1, std::max(least, whole / 2), least}) {
        for (const bool graph : {true, false}) {
          INFO(name << ", mode " << offload_mode_name(mode) << ", budget " << budget << " of " << whole << ", graph "
                    << graph);
          HostModelOptions options = small_options();
          options.separate_host = true;
          options.model.budget_bytes = budget;
          options.model.offload = mode;
          options.loop.graph = graph;
          HostModel model(*path, options);
          CHECK((model.model->host_lane() != nullptr) == (model.model->plan().of(Lane::host) > 0));
          CHECK(run_three(model) == expected);
          const DecodeCounters& counters = model.loop->counters();
          for (int lane = 0; lane < kLaneCount; ++lane)
            CHECK(counters.decode_traffic.read_bytes[static_cast<std::size_t>(lane)] ==
                  counters.decode_steps * model.model->plan().pass_bytes[lane]);
          // All of it only where the cache is filled to the last chunk of the context.
          const std::uint64_t peak = model.model->arena().committed_peak_bytes();
          CHECK((test::kSanitized ? peak <= model.model->plan().committed_bytes
                                  : peak == model.model->plan().committed_bytes));
        }
      }
      if (test::kSanitized) break;
    }
  }
}

TEST_CASE("a step asks the host once for each product with rows of its own", "[host_lane]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  options.separate_host = true;
  options.model.offload = OffloadMode::host;
  options.model.forced_cold = {"attn_k", "attn_v", "ffn_down"};
  HostModel model(*path, options);
  const std::uint64_t products = products_with_host_rows(*model.model);
  REQUIRE(products == 2 * static_cast<std::uint64_t>(model.model->config().layer_count));
  const auto asked_by = [&](std::int32_t prompt_tokens, std::int32_t new_tokens) {
    const std::uint32_t before = model.model->host_lane()->request_count();
    model.generate(arbitrary_tokens(prompt_tokens, kVocabulary, 1), new_tokens);
    return model.model->host_lane()->request_count() - before;
  };
  CHECK(asked_by(16, 1) == products);      // one pass over the prompt
  CHECK(asked_by(17, 1) == 2 * products);  // two
  CHECK(asked_by(16, 11) == (1 + 10) * products);
}

TEST_CASE("wide passes bring the host's rows in through the ring, and move what their chunks hold", "[host_lane]") {
  for (const char* name : {"tiny-llama-Q4_0.gguf", "tiny-gemma3-Q4_K_M.gguf", "tiny-llama-F16.gguf"}) {
    const auto path = test::shared_data(std::string("reference/tiny/") + name);
    if (!path) GENAI_SKIP("the tiny reference models are not there");
    HostModelOptions options = small_options();
    options.model.max_rows = 64;
    HostModel resident(*path, options);
    // Wide passes, steps, and both again: each finds the slots as it needs them.
    const auto prompt = arbitrary_tokens(64 + 40, kVocabulary, 4);
    const Generation expected = resident.generate(prompt, 10);
    for (const auto& [mode, seed] : std::vector<std::pair<OffloadMode, std::optional<std::uint64_t>>>{
             {OffloadMode::host, {}}, {OffloadMode::split, {}}, {OffloadMode::split, 1}, {OffloadMode::split, 2}}) {
      INFO(name << ", mode " << offload_mode_name(mode) << ", seed " << seed.value_or(0));
      options.separate_host = true;
      options.device.seed = seed;
      options.model.offload = mode;
      options.model.forced_cold = {"weight"};
      HostModel model(*path, options);
      const ResidencyPlan& plan = model.model->plan();
      REQUIRE(plan.of(Lane::host) > 0);
      REQUIRE(plan.wide_passes_stream);
      CHECK((plan.of(Lane::ring) > 0) == (mode == OffloadMode::split));
      const auto& narrow = model.model->weight_map().chunks(RingList::narrow);
      const auto& wide = model.model->weight_map().chunks(RingList::wide);
      const auto bytes_of = [](const std::vector<ColdSpan>& spans) {
        std::uint64_t bytes = 0;
        for (const ColdSpan& span : spans) bytes += span.size_bytes;
        return bytes;
      };
      // The layers of both passes, the output matrix of the last one, and each time what the slots hold between passes.
      std::uint64_t moved = 0;
      const auto move = [&](const ColdChunks& list, std::size_t first, std::size_t last, std::uint64_t times) {
        for (std::size_t chunk = first; chunk < last; ++chunk) moved += times * bytes_of(list.chunks[chunk]);
        for (std::size_t slot = 0; slot < narrow.chunks.size() && slot < 4 && slot < last - first; ++slot)
          moved += times * bytes_of(narrow.chunks[slot]);
      };
      move(wide, 0, static_cast<std::size_t>(wide.output_chunk), 2);
      move(narrow, static_cast<std::size_t>(narrow.output_chunk), narrow.chunks.size(), 1);

      CHECK(model.generate(prompt, 10).step_hashes == expected.step_hashes);
      const PassTraffic& prefill = model.loop->counters().prefill_traffic;
      CHECK(prefill.copied_bytes == moved);
      CHECK(prefill.read_bytes[static_cast<std::size_t>(Lane::zero_copy)] == 0);
      const PassTraffic& steps = model.loop->counters().decode_traffic;
      for (int lane = 0; lane < kLaneCount; ++lane)
        CHECK(steps.read_bytes[static_cast<std::size_t>(lane)] == 9 * plan.pass_bytes[lane]);
      CHECK(steps.copied_bytes == 9 * plan.pass_of(Lane::ring));
      CHECK(model.model->arena().committed_peak_bytes() <= plan.committed_bytes);
      CHECK(model.generate(prompt, 10).step_hashes == expected.step_hashes);
    }
  }
}

TEST_CASE("rows of a batch with rows computed by host cores equal their solo runs", "[host_lane]") {
  const auto path = test::shared_data("reference/tiny/tiny-qwen2-Q8_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  std::vector<GenerationRequest> requests;
  for (std::uint32_t seed = 0; seed < 6; ++seed)
    requests.push_back({.prompt = arbitrary_tokens(5 + static_cast<int>(seed), kVocabulary, seed),
                        .max_tokens = 20 + static_cast<int>(seed),
                        .sampler = {},
                        .end_ids = {}});
  HostModel resident(*path, small_options());
  for (const std::int32_t slots : {2, 4}) {
    HostModelOptions options = small_options();
    options.separate_host = true;
    options.model.sequence_count = slots;
    options.model.offload = OffloadMode::host;
    options.model.forced_cold = {"attn_output", "ffn_gate"};
    HostModel model(*path, options);
    const std::vector<Generation> batch = model.generate_all(requests);
    for (std::size_t i = 0; i < requests.size(); ++i)
      CHECK(batch[i].step_hashes == resident.generate(requests[i].prompt, requests[i].max_tokens).step_hashes);
  }
}

TEST_CASE("one changed byte of a row that host cores compute changes the logits", "[host_lane]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModelOptions options = small_options();
  options.separate_host = true;
  options.model.offload = OffloadMode::host;
  options.model.forced_cold = {"blk.1.ffn_down"};
  HostModel model(*path, options);
  const auto prompt = arbitrary_tokens(12, kVocabulary, 13);
  const std::uint64_t before = model.generate(prompt, 20).logits_hash;
  const PlacedTensor* placed = model.model->weight_map().find("blk.1.ffn_down.weight");
  REQUIRE(placed != nullptr);
  std::byte* byte = model.device.memory().host_view(model.model->weight_address(*placed, Lane::host));
  REQUIRE(byte != nullptr);
  *byte ^= std::byte{0x77};
  CHECK(model.generate(prompt, 20).logits_hash != before);
  *byte ^= std::byte{0x77};
  CHECK(model.generate(prompt, 20).logits_hash == before);
}

TEST_CASE("a request whose product fails is answered, and the failure is thrown afterwards", "[host_lane]") {
  HostDeviceOptions one_thread;
  one_thread.threads = 1;
  HostDevice device(one_thread);
  HostMath failing = kScalarMath;
  failing.matmul = [](const MatmulJob&, std::int64_t, std::int64_t, std::byte*) { throw Error("a product failed"); };
  one_thread.math = &failing;
  HostDevice host(one_thread);
  ResidencyArena arena(device.memory());
  MemoryRange local = arena.reserve(MemoryKind::workspace, 4096);
  local.commit(0, 4096);
  MemoryRange cold = arena.reserve(MemoryKind::cold, 4096, Placement::host);
  cold.commit(0, 4096);
  HostLane lane(device, host, arena, local.base().as<std::uint32_t>(), {1, 128, 16, 1});
  const auto stream = device.create_stream();
  const DevicePtr<float> floats = local.base().byte_offset(256).as<float>();
  MatmulArgs args{};
  args.input = floats;
  args.input_stride = 128;
  args.row_count = 1;
  args.outputs[0] = {.matrix = {.data = cold.base(), .dtype = DType::Q4_0, .rows = 1, .cols = 128},
                     .bias = {},
                     .out = floats + 128,
                     .out_stride = 1};
  args.output_count = 1;
  MatmulArgs no_product = args;
  no_product.epilogue = Epilogue::gated_silu;  // and no second row to gate
  CHECK_THROWS_AS(lane.ask(*stream, &no_product, no_product), Error);
  CHECK_NOTHROW(lane.rethrow_failure());
  lane.ask(*stream, &args, args);
  lane.take(*stream);
  stream->synchronize();
  CHECK(lane.request_count() == 1);
  CHECK_THROWS_AS(lane.rethrow_failure(), Error);
  CHECK_FALSE(lane.serves(2));
  args.row_count = 2;
  CHECK_THROWS_AS(lane.ask(*stream, &args, args), Error);
}

TEST_CASE("cores that sleep or come late answer every request with the resident bits", "[host_lane]") {
  const auto path = test::shared_data("reference/tiny/tiny-llama-Q4_0.gguf");
  if (!path) GENAI_SKIP("the tiny reference models are not there");
  HostModel resident(*path, small_options());
  const auto prompt = arbitrary_tokens(7, kVocabulary, 9);
  const auto expected = resident.generate(prompt, 8).step_hashes;
  HostModelOptions options = small_options();
  options.separate_host = true;
  options.host_threads = 5;  // more than there are cores, or units in some products
  options.model.offload = OffloadMode::host;
  options.model.forced_cold = {"weight"};
  HostModel model(*path, options);
  for (int generation = 0; generation < 3; ++generation) {
    CHECK(model.generate(prompt, 8).step_hashes == expected);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // long enough for the pool to be left
  }
}

}  // namespace genai
