// device_contract_capture.h - the part of device_contract.h about captures and graphs.
#pragma once
#include "tests/device_contract_support.h"

namespace genai::test {

inline void captured_operations_run_at_launch_only(Device& device) {
  StepCounter counter(device);
  const auto stream = device.create_stream();
  stream->begin_capture();
  counter.advance(*stream);
  counter.advance(*stream);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  REQUIRE(graph->node_count() == 2);
  REQUIRE(graph->device_bytes().value_or(0) <= device.graph_reserve_bytes(1, 2));
  REQUIRE(counter.row(*stream).position == 0);
  for (int launch = 1; launch <= 3; ++launch) {
    stream->launch(*graph);
    REQUIRE(counter.row(*stream).position == 2 * launch);
  }
  stream->launch(*graph);
  counter.advance(*stream);
  stream->launch(*graph);
  REQUIRE(counter.row(*stream).position == 11);
}

inline void graph_holds_its_arguments_by_value(Device& device) {
  StepCounter counter(device);
  const auto stream = device.create_stream();
  AdvanceArgs args = counter.args();
  stream->begin_capture();
  device.kernels().advance_step(*stream, args);
  args.row_count = 0;
  args.rows = {};
  args.tokens = {};
  const std::unique_ptr<Graph> graph = stream->end_capture();
  args = {};
  stream->launch(*graph);
  REQUIRE(counter.row(*stream).position == 1);
}

inline void graph_sees_device_data_as_it_is_at_launch(Device& device) {
  StepCounter counter(device);
  const auto stream = device.create_stream();
  stream->begin_capture();
  counter.advance(*stream);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  for (const std::int32_t token : {7, 1 << 20, 3}) {
    stream->upload(counter.tokens(), &token, sizeof token);
    stream->launch(*graph);
    REQUIRE(counter.row(*stream).token == token);
  }
  REQUIRE(counter.row(*stream).position == 3);
}

inline void graph_copies_host_granules_as_they_are_at_launch(Device& device) {
  constexpr std::size_t kBytes = 512;
  Region cold(device, 1, Placement::host);
  Region warm(device, 1, Placement::device);
  std::byte* const view = device.memory().host_view(cold.at());
  REQUIRE(view != nullptr);
  const auto stream = device.create_stream();
  stream->begin_capture();
  stream->copy(warm.at(), cold.at(), kBytes);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  for (unsigned kind = 0; kind < 3; ++kind) {
    const Bytes data = pattern(kBytes, kind);
    std::memcpy(view, data.data(), kBytes);
    stream->launch(*graph);
    REQUIRE(read(*stream, warm.at(), kBytes) == data);
  }
}

// a -> b, a -> c, (b, c) -> d over three streams; each copy writes a place of its own.
inline void forked_streams_become_one_graph(Device& device) {
  constexpr std::size_t kBytes = 256;
  Region region(device, 1, Placement::device);
  const auto place = [&](std::size_t index) { return region.at(index * kBytes); };
  const auto main = device.create_stream();
  const auto left = device.create_stream();
  const auto right = device.create_stream();
  const auto forked = device.create_event();
  const auto left_done = device.create_event();
  const auto right_done = device.create_event();
  main->begin_capture();
  main->copy(place(1), place(0), kBytes);
  main->record(*forked);
  left->wait(*forked);
  right->wait(*forked);
  left->copy(place(2), place(1), kBytes);
  right->copy(place(3), place(1), kBytes);
  right->copy(place(4), place(3), kBytes);
  left->record(*left_done);
  right->wait(*left_done);  // joined back through the other one
  right->record(*right_done);
  main->wait(*right_done);
  main->copy(place(5), place(2), kBytes / 2);
  main->copy(place(5).byte_offset(kBytes / 2), place(4).byte_offset(kBytes / 2), kBytes / 2);
  main->fill_zero(place(1), kBytes);
  const std::unique_ptr<Graph> graph = main->end_capture();
  REQUIRE(graph->node_count() == 7);
  for (unsigned kind = 0; kind < 3; ++kind) {
    const Bytes data = pattern(kBytes, kind);
    write(*main, place(0), data);
    main->launch(*graph);
    REQUIRE(read(*main, place(5), kBytes) == data);
    REQUIRE(all_zero(read(*main, place(1), kBytes)));
  }
}

inline void capture_leaves_its_streams_usable(Device& device) {
  StepCounter counter(device);
  const auto main = device.create_stream();
  const auto joined = device.create_stream();
  const auto fork = device.create_event();
  const auto join = device.create_event();
  for (int round = 1; round <= 2; ++round) {
    main->begin_capture();
    main->record(*fork);
    joined->wait(*fork);
    counter.advance(*joined);
    joined->record(*join);
    main->wait(*join);
    const std::unique_ptr<Graph> graph = main->end_capture();
    REQUIRE(graph->node_count() == 1);
    main->launch(*graph);
    main->record(*fork);
    joined->wait(*fork);
    counter.advance(*joined);  // runs: the capture is over
    REQUIRE(counter.row(*joined).position == 2 * round);
  }
}

inline void graph_outlives_its_stream(Device& device) {
  StepCounter counter(device);
  std::unique_ptr<Graph> graph;
  {
    const auto stream = device.create_stream();
    stream->begin_capture();
    counter.advance(*stream);
    graph = stream->end_capture();
  }
  const auto other = device.create_stream();
  other->launch(*graph);
  REQUIRE(counter.row(*other).position == 1);
}

inline void empty_graph_can_be_launched(Device& device) {
  const auto stream = device.create_stream();
  stream->begin_capture();
  const std::unique_ptr<Graph> graph = stream->end_capture();
  REQUIRE(graph->node_count() == 0);
  stream->launch(*graph);
  stream->synchronize();
}

inline void graph_launch_keeps_event_order(Device& device) { REQUIRE(graph_launch_is_ordered_by_events(device, true)); }

inline void launches_of_one_graph_do_not_overlap(Device& device) {
  StepCounter counter(device);
  const auto first = device.create_stream();
  const auto second = device.create_stream();
  first->begin_capture();
  for (int i = 0; i < 8; ++i) counter.advance(*first);
  const std::unique_ptr<Graph> graph = first->end_capture();
  first->launch(*graph);
  second->launch(*graph);
  second->synchronize();
  REQUIRE(counter.row(*second).position == 16);
  first->synchronize();
}

inline void graph_reads_new_data_when_its_address_is_mapped_anew(Device& device) {
  constexpr std::size_t kBytes = 512;
  VirtualMemory& memory = device.memory();
  const auto stream = device.create_stream();
  Region source(device, 1, Placement::device);
  Region result(device, 1, Placement::device);
  const Bytes first = pattern(kBytes, 1);
  const Bytes second = pattern(kBytes, 2);
  write(*stream, source.at(), first);
  stream->begin_capture();
  stream->copy(result.at(), source.at(), kBytes);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  stream->launch(*graph);
  REQUIRE(read(*stream, result.at(), kBytes) == first);

  const GranuleId granule_of_first = source.unmap(0);
  const GranuleId granule_of_second = memory.create(Placement::device).value();
  source.map(0, granule_of_second);
  write(*stream, source.at(), second);
  stream->launch(*graph);
  REQUIRE(read(*stream, result.at(), kBytes) == second);

  source.unmap(0);
  source.map(0, granule_of_first);
  stream->launch(*graph);
  REQUIRE(read(*stream, result.at(), kBytes) == first);
  memory.destroy(granule_of_second);
}

inline void forbidden_calls_in_a_capture_throw(Device& device) {
  VirtualMemory& memory = device.memory();
  Region region(device, 1, Placement::device);
  Region empty(memory, 1);
  const GranuleId spare = memory.create(Placement::device).value();
  StepCounter counter(device);
  const auto main = device.create_stream();
  const auto joined = device.create_stream();
  const auto fork = device.create_event();
  const auto join = device.create_event();
  main->begin_capture();
  const std::unique_ptr<Graph> nothing = main->end_capture();

  main->begin_capture();
  main->record(*fork);
  joined->wait(*fork);
  for (Stream* const stream : {main.get(), joined.get()}) {
    REQUIRE_THROWS_AS(stream->synchronize(), Error);
    REQUIRE_THROWS_AS(stream->begin_capture(), Error);
    REQUIRE_THROWS_AS(stream->launch(*nothing), Error);
  }
  REQUIRE_THROWS_AS(joined->end_capture(), Error);
  REQUIRE_THROWS_AS(fork->synchronize(), Error);
  REQUIRE_THROWS_AS(memory.create(Placement::device), Error);
  REQUIRE_THROWS_AS(memory.create(Placement::host), Error);
  REQUIRE_THROWS_AS(memory.destroy(spare), Error);
  REQUIRE_THROWS_AS(memory.map(empty.at(), spare), Error);
  REQUIRE_THROWS_AS(memory.unmap(region.at()), Error);
  counter.advance(*joined);
  joined->record(*join);
  main->wait(*join);
  counter.advance(*main);
  const std::unique_ptr<Graph> graph = main->end_capture();
  REQUIRE(graph->node_count() == 2);
  main->launch(*graph);
  REQUIRE(counter.row(*main).position == 2);
  memory.destroy(spare);  // memory calls are allowed again
}

inline void capture_ends_only_where_it_should(Device& device) {
  StepCounter counter(device);
  const auto main = device.create_stream();
  const auto joined = device.create_stream();
  const auto fork = device.create_event();
  REQUIRE_THROWS_AS(main->end_capture(), Error);
  main->begin_capture();
  counter.advance(*main);
  main->record(*fork);
  joined->wait(*fork);
  counter.advance(*joined);
  REQUIRE_THROWS_AS(main->end_capture(), Error);  // nobody waits for `joined`
  REQUIRE_THROWS_AS(main->end_capture(), Error);  // and that capture is over
  counter.advance(*main);
  main->synchronize();
  counter.advance(*joined);
  REQUIRE(counter.row(*joined).position == 2);
}

inline void capture_does_not_depend_on_work_outside(Device& device) {
  const auto outside = device.create_stream();
  const auto event = device.create_event();
  outside->record(*event);
  const auto captured = device.create_stream();
  captured->begin_capture();
  REQUIRE_THROWS_AS(captured->wait(*event), Error);
}

inline void event_of_a_capture_is_nothing_to_wait_for_outside(Device& device) {
  const auto stream = device.create_stream();
  const auto event = device.create_event();
  stream->begin_capture();
  stream->record(*event);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  stream->launch(*graph);
  REQUIRE_THROWS_AS(event->synchronize(), Error);
  REQUIRE_THROWS_AS(stream->wait(*event), Error);
  stream->record(*event);
  event->synchronize();
  stream->wait(*event);
  stream->synchronize();
}

}  // namespace genai::test
