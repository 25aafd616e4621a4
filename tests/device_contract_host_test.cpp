// The host backend keeps the device contract: eagerly, and in every order of work that 200 seeds come up with.
#include "engine/host/host_device.h"
#include "tests/device_contract.h"

using namespace genai;
using namespace genai::test;

namespace {

constexpr std::uint64_t kSeeds = 200;

std::unique_ptr<Device> create_host_device(std::optional<std::uint64_t> seed, int threads = 1) {
  HostDeviceOptions options;
  options.granule_bytes = 16384;  // small ones keep 200 seeds of everything quick
  options.seed = seed;
  options.threads = threads;
  return std::make_unique<HostDevice>(options);
}

using Scenario = bool (*)(Device& device, bool waits);

std::uint64_t wrong_results(Scenario scenario, bool waits) {
  std::uint64_t wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) wrong += scenario(*create_host_device(seed), waits) ? 0 : 1;
  return wrong;
}

}  // namespace

TEST_CASE("host device keeps the device contract", "[device_contract]") {
  check_device_contract([] { return create_host_device(std::nullopt, 3); });
}

TEST_CASE("host device keeps the device contract in every order of work", "[device_contract]") {
  for (const ContractCase& contract_case : kContractCases) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      INFO("\"" << contract_case.fact << "\" with seed " << seed);
      contract_case.check(*create_host_device(seed));
    }
  }
}

TEST_CASE("a missing wait is a failing seed", "[device_contract]") {
  for (const Scenario scenario :
       {data_passes_through_three_streams, ring_slots_keep_their_data_until_read, graph_launch_is_ordered_by_events}) {
    CHECK(wrong_results(scenario, true) == 0);
    CHECK(wrong_results(scenario, false) > 0);
  }
}

TEST_CASE("host device says how many threads it uses", "[device_contract]") {
  REQUIRE(create_host_device(std::nullopt, 1)->name() == "host (1 thread)");
  REQUIRE(create_host_device(std::nullopt, 3)->name() == "host (3 threads)");
}
