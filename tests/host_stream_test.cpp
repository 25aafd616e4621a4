// What host streams promise beyond the device contract: when queued work runs, what happens when it fails.
#include "engine/host/host_stream.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "tests/catch.h"

using namespace genai;

namespace {

constexpr std::size_t kGranuleBytes = 65536;
constexpr std::uint64_t kSeeds = 200;

struct Fixture {
  explicit Fixture(std::optional<std::uint64_t> seed = std::nullopt)
      : schedule(std::make_shared<HostSchedule>(seed)),
        memory({kGranuleBytes, std::nullopt}, schedule->open_captures()),
        base(memory.reserve(kGranuleBytes)) {
    memory.map(base, memory.create(Placement::device).value());
  }
  std::shared_ptr<HostSchedule> schedule;
  HostMemory memory;
  DevicePtr<std::byte> base;
};

}  // namespace

TEST_CASE("without a seed work runs at once, in the calling thread", "[host_stream]") {
  Fixture fixture;
  HostStream stream(fixture.schedule, fixture.memory);
  std::thread::id runner;
  stream.enqueue([&] { runner = std::this_thread::get_id(); });
  REQUIRE(runner == std::this_thread::get_id());
  REQUIRE_THROWS_WITH(stream.enqueue([] { throw std::runtime_error("broken"); }), "broken");
  stream.synchronize();
}

TEST_CASE("with a seed nothing runs before somebody waits", "[host_stream]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream stream(fixture.schedule, fixture.memory);
    bool ran = false;
    stream.enqueue([&] { ran = true; });
    REQUIRE_FALSE(ran);
    stream.synchronize();
    REQUIRE(ran);
  }
}

TEST_CASE("an upload reads its source when it runs", "[host_stream]") {
  Fixture fixture(1);
  HostStream stream(fixture.schedule, fixture.memory);
  int source = 1;
  int result = 0;
  stream.upload(fixture.base, &source, sizeof source);
  source = 2;  // the contract forbids this: the copy has not been passed
  stream.download(&result, fixture.base, sizeof result);
  stream.synchronize();
  REQUIRE(result == 2);
}

TEST_CASE("waiting for one stream says nothing about another", "[host_stream]") {
  std::set<int> done_counts;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream waited(fixture.schedule, fixture.memory);
    HostStream other(fixture.schedule, fixture.memory);
    int done = 0;
    waited.enqueue([] {});
    for (int i = 0; i < 3; ++i) other.enqueue([&] { ++done; });
    waited.synchronize();
    done_counts.insert(done);
    other.synchronize();
    REQUIRE(done == 3);
  }
  REQUIRE(done_counts == std::set<int>{0, 1, 2, 3});
}

TEST_CASE("waiting for an event leaves later work of its stream open", "[host_stream]") {
  std::set<int> done_counts;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream stream(fixture.schedule, fixture.memory);
    HostEvent event(fixture.schedule);
    int done = 0;
    stream.enqueue([&] { ++done; });
    stream.record(event);
    stream.enqueue([&] { ++done; });
    event.synchronize();
    done_counts.insert(done);
    stream.synchronize();
    REQUIRE(done == 2);
  }
  REQUIRE(done_counts == std::set<int>{1, 2});
}

TEST_CASE("independent work runs in every order", "[host_stream]") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream first(fixture.schedule, fixture.memory);
    HostStream second(fixture.schedule, fixture.memory);
    std::string order;
    for (const char* const work : {"a", "b"}) first.enqueue([&order, work] { order += work; });
    for (const char* const work : {"x", "y"}) second.enqueue([&order, work] { order += work; });
    first.synchronize();
    second.synchronize();
    REQUIRE(order.find('a') < order.find('b'));
    REQUIRE(order.find('x') < order.find('y'));
    orders.insert(order);
  }
  REQUIRE(orders == std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb", "xyab"});
}

TEST_CASE("branches of a graph run in every order that joins allow", "[host_stream]") {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream main(fixture.schedule, fixture.memory);
    HostStream branch(fixture.schedule, fixture.memory);
    HostEvent fork(fixture.schedule);
    HostEvent join(fixture.schedule);
    std::string order;
    const auto append = [&order](char name) { return [&order, name] { order += name; }; };
    main.begin_capture();
    main.enqueue(append('a'));
    main.record(fork);
    branch.wait(fork);
    branch.enqueue(append('x'));
    branch.enqueue(append('y'));
    branch.record(join);
    main.enqueue(append('b'));
    main.wait(join);
    main.enqueue(append('c'));
    const std::unique_ptr<Graph> graph = main.end_capture();
    REQUIRE(graph->node_count() == 5);
    REQUIRE(order.empty());
    main.launch(*graph);
    main.synchronize();
    orders.insert(order);
  }
  REQUIRE(orders == std::set<std::string>{"abxyc", "axbyc", "axybc"});
}

TEST_CASE("one seed is one order", "[host_stream]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::string> orders;
    for (int repetition = 0; repetition < 2; ++repetition) {
      Fixture fixture(seed);
      HostStream first(fixture.schedule, fixture.memory);
      HostStream second(fixture.schedule, fixture.memory);
      std::string order;
      for (int i = 0; i < 20; ++i) {
        first.enqueue([&] { order += 'a'; });
        second.enqueue([&] { order += 'b'; });
      }
      first.synchronize();
      second.synchronize();
      orders.push_back(order);
    }
    REQUIRE(orders[0] == orders[1]);
  }
}

TEST_CASE("failed work surfaces once as a device error, and what was queued is dropped", "[host_stream]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Fixture fixture(seed);
    HostStream stream(fixture.schedule, fixture.memory);
    HostEvent event(fixture.schedule);
    bool ran = false;
    stream.enqueue([] { throw std::runtime_error("broken"); });
    stream.enqueue([&] { ran = true; });
    stream.record(event);
    if (seed % 2 == 0) {
      REQUIRE_THROWS_AS(stream.synchronize(), DeviceError);
    } else {
      REQUIRE_THROWS_AS(event.synchronize(), DeviceError);
    }
    REQUIRE_FALSE(ran);
    stream.enqueue([&] { ran = true; });
    stream.synchronize();
    REQUIRE(ran);
  }
}

TEST_CASE("failed work of a destroyed stream surfaces at the next wait", "[host_stream]") {
  Fixture fixture(3);
  HostStream stream(fixture.schedule, fixture.memory);
  {
    HostStream failing(fixture.schedule, fixture.memory);
    failing.enqueue([] { throw DeviceError("broken", "a hint"); });
  }
  try {
    stream.synchronize();
    FAIL("no exception");
  } catch (const DeviceError& error) {
    REQUIRE(error.what() == std::string("broken"));
    REQUIRE(error.hint() == "a hint");
  }
}

TEST_CASE("a failing node ends its graph, and the graph can run again", "[host_stream]") {
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(5)}) {
    Fixture fixture(seed);
    HostStream stream(fixture.schedule, fixture.memory);
    bool fails = true;
    int done = 0;
    stream.begin_capture();
    stream.enqueue([&] {
      if (fails) throw DeviceError("broken");
    });
    stream.enqueue([&] { ++done; });
    const std::unique_ptr<Graph> graph = stream.end_capture();
    const auto run = [&] {
      stream.launch(*graph);
      stream.synchronize();
    };
    REQUIRE_THROWS_AS(run(), DeviceError);
    REQUIRE(done == 0);
    fails = false;
    run();
    REQUIRE(done == 1);
  }
}

TEST_CASE("a reader that was not waited for meets unmapped memory in some seed", "[host_stream]") {
  int caught = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const bool waits : {true, false}) {
      Fixture fixture(seed);
      HostStream reader(fixture.schedule, fixture.memory);
      HostStream other(fixture.schedule, fixture.memory);
      HostEvent read(fixture.schedule);
      char byte = 0;
      reader.download(&byte, fixture.base, 1);
      reader.record(read);
      other.fill_zero(fixture.base, 1);
      other.synchronize();  // what looks like a wait, and is none for the reader
      if (waits) read.synchronize();
      fixture.memory.unmap(fixture.base);
      try {
        reader.synchronize();
      } catch (const DeviceError&) {
        REQUIRE_FALSE(waits);
        ++caught;
      }
    }
  }
  REQUIRE(caught > 0);
}

TEST_CASE("a stream that goes away while capturing takes its capture along", "[host_stream]") {
  Fixture fixture;
  HostStream joined(fixture.schedule, fixture.memory);
  HostEvent fork(fixture.schedule);
  {
    HostStream capturing(fixture.schedule, fixture.memory);
    capturing.begin_capture();
    capturing.record(fork);
    joined.wait(fork);
    REQUIRE(fixture.schedule->open_captures() == 1);
  }
  REQUIRE(fixture.schedule->open_captures() == 0);
  bool ran = false;
  joined.enqueue([&] { ran = true; });
  REQUIRE(ran);
  REQUIRE_THROWS_AS(joined.wait(fork), Error);
}

TEST_CASE("a joined stream that goes away before it is joined back leaves the capture unfinished", "[host_stream]") {
  Fixture fixture;
  HostStream capturing(fixture.schedule, fixture.memory);
  HostEvent fork(fixture.schedule);
  capturing.begin_capture();
  capturing.record(fork);
  {
    HostStream joined(fixture.schedule, fixture.memory);
    joined.wait(fork);
  }
  REQUIRE_THROWS_AS(capturing.end_capture(), Error);
  REQUIRE(fixture.schedule->open_captures() == 0);
}

TEST_CASE("two captures do not mix", "[host_stream]") {
  Fixture fixture;
  HostStream first(fixture.schedule, fixture.memory);
  HostStream second(fixture.schedule, fixture.memory);
  HostEvent event(fixture.schedule);
  first.begin_capture();
  second.begin_capture();
  REQUIRE(fixture.schedule->open_captures() == 2);
  first.record(event);
  REQUIRE_THROWS_AS(second.wait(event), Error);
  second.end_capture();
  REQUIRE_THROWS_AS(fixture.memory.create(Placement::device), Error);
  first.end_capture();
  REQUIRE(fixture.memory.create(Placement::device).has_value());
}

TEST_CASE("events and graphs of another device are refused", "[host_stream]") {
  Fixture fixture;
  Fixture other;
  HostStream stream(fixture.schedule, fixture.memory);
  HostStream foreign_stream(other.schedule, other.memory);
  HostEvent foreign_event(other.schedule);
  foreign_stream.begin_capture();
  const std::unique_ptr<Graph> foreign_graph = foreign_stream.end_capture();
  REQUIRE_THROWS_AS(stream.record(foreign_event), Error);
  REQUIRE_THROWS_AS(stream.wait(foreign_event), Error);
  REQUIRE_THROWS_AS(stream.launch(*foreign_graph), Error);
}

TEST_CASE("streams of several threads do not disturb each other", "[host_stream]") {
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(7)}) {
    Fixture fixture(seed);
    std::vector<int> results(3, 0);
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < results.size(); ++index) {
      threads.emplace_back([&, index] {
        HostStream stream(fixture.schedule, fixture.memory);
        HostEvent event(fixture.schedule);
        const auto place = fixture.base.byte_offset(static_cast<std::int64_t>(index * 64));
        int value = 0;
        for (int round = 0; round < 50; ++round) {
          stream.upload(place, &round, sizeof round);
          stream.record(event);
          stream.wait(event);
          stream.download(&value, place, sizeof value);
          stream.enqueue([&] { results[index] += value; });
          event.synchronize();
          stream.synchronize();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(results == std::vector<int>(3, 49 * 50 / 2));
  }
}
