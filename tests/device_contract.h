// device_contract.h - what engine/device promises, as one suite that every backend passes. A backend's test is a
// factory and one call of check_device_contract. Data goes in and out through the interfaces only; of the kernels only
// advance_step, ask_host and take_answer are used.
#pragma once
#include "tests/device_contract_capture.h"
#include "tests/device_contract_exchange.h"
#include "tests/device_contract_support.h"
#include "tests/device_contract_time.h"

namespace genai::test {

// ---- memory --------------------------------------------------------------------------------------------------------

inline void granule_size_is_a_power_of_two(Device& device) {
  const std::size_t bytes = device.memory().granule_bytes();
  REQUIRE(bytes >= 4096);
  REQUIRE((bytes & (bytes - 1)) == 0);
  const Region region(device.memory(), 3);
  REQUIRE(region.at().address() != 0);
  REQUIRE(region.at().address() % bytes == 0);
}

inline void free_memory_is_part_of_total(Device& device) {
  const MemoryInfo info = device.memory().info();
  if (info.total_bytes && info.free_bytes) REQUIRE(*info.free_bytes <= *info.total_bytes);
}

inline void new_granule_reads_as_zeros(Device& device) {
  VirtualMemory& memory = device.memory();
  const auto stream = device.create_stream();
  for (const Placement placement : {Placement::device, Placement::host}) {
    for (int round = 0; round < 3; ++round) {  // the second and third may get the memory of the first
      Region region(device, 1, placement);
      REQUIRE(all_zero(read(*stream, region.at(), memory.granule_bytes())));
      write(*stream, region.at(), pattern(memory.granule_bytes(), 1));
    }
  }
}

inline void data_stays_with_the_granule(Device& device) {
  const std::size_t bytes = device.memory().granule_bytes();
  const auto stream = device.create_stream();
  Region region(device, 2, Placement::device);
  const Bytes first = pattern(bytes, 1);
  const Bytes second = pattern(bytes, 2);
  write(*stream, region.slot(0), first);
  write(*stream, region.slot(1), second);
  const GranuleId granule_of_first = region.unmap(0);
  const GranuleId granule_of_second = region.unmap(1);
  region.map(0, granule_of_first);  // the same address again
  REQUIRE(read(*stream, region.slot(0), bytes) == first);
  region.unmap(0);
  region.map(1, granule_of_first);  // the other one's address
  region.map(0, granule_of_second);
  REQUIRE(read(*stream, region.slot(0), bytes) == second);
  REQUIRE(read(*stream, region.slot(1), bytes) == first);
}

inline void many_granules_in_any_order_form_one_range(Device& device) {
  constexpr std::size_t kSlots = 24;
  constexpr std::size_t kStride = 7;  // coprime to kSlots
  VirtualMemory& memory = device.memory();
  const std::size_t bytes = memory.granule_bytes();
  const auto stream = device.create_stream();
  Region region(memory, kSlots);
  for (std::size_t i = 0; i < kSlots; ++i) {
    const auto granule = memory.create(Placement::device);
    REQUIRE(granule.has_value());
    region.map(i * kStride % kSlots, *granule);
  }
  const Bytes data = pattern(kSlots * bytes, 9);
  write(*stream, region.at(), data);
  REQUIRE(read(*stream, region.at(), data.size()) == data);
  for (std::size_t slot = 0; slot < kSlots; slot += 2) {  // and with holes in it
    const GranuleId granule = region.unmap(slot);
    memory.destroy(granule);
  }
  for (std::size_t slot = 1; slot < kSlots; slot += 2) {
    const Bytes expected(data.begin() + static_cast<std::ptrdiff_t>(slot * bytes),
                         data.begin() + static_cast<std::ptrdiff_t>((slot + 1) * bytes));
    REQUIRE(read(*stream, region.slot(slot), bytes) == expected);
  }
}

inline void host_granule_is_shared_with_the_host(Device& device) {
  const std::size_t bytes = device.memory().granule_bytes();
  const auto stream = device.create_stream();
  Region host(device, 2, Placement::host);
  Region near_device(device, 1, Placement::device);
  const Bytes data = pattern(bytes, 4);
  std::byte* const view = device.memory().host_view(host.slot(1));
  REQUIRE(view != nullptr);
  REQUIRE(device.memory().host_view(host.slot(1).byte_offset(100)) == view + 100);
  std::memcpy(view, data.data(), bytes);
  stream->copy(near_device.at(), host.slot(1), bytes);
  stream->fill_zero(host.slot(1), bytes);
  stream->copy(host.slot(0), near_device.at(), bytes);
  stream->synchronize();
  REQUIRE(all_zero(Bytes(view, view + bytes)));
  const std::byte* const other_view = device.memory().host_view(host.slot(0));
  REQUIRE(other_view != nullptr);
  REQUIRE(std::memcmp(other_view, data.data(), bytes) == 0);
}

// Not for kernels: the host and copies see one content, wherever the granule is mapped.
inline void pageable_granule_is_shared_with_the_host(Device& device) {
  const std::size_t bytes = device.memory().granule_bytes();
  const auto stream = device.create_stream();
  Region pageable(device, 3, Placement::pageable);
  Region near_device(device, 3, Placement::device);
  REQUIRE(all_zero(read(*stream, pageable.at(), 3 * bytes)));
  const Bytes data = pattern(2 * bytes, 4);
  std::byte* const view = device.memory().host_view(pageable.slot(1));
  REQUIRE(view != nullptr);
  REQUIRE(device.memory().host_view(pageable.slot(2)) == view + bytes);  // slots side by side, bytes side by side
  std::memcpy(view, data.data(), data.size());
  stream->copy(near_device.slot(1), pageable.slot(1), data.size());
  REQUIRE(read(*stream, near_device.slot(1), data.size()) == data);
  const GranuleId second = pageable.unmap(2);
  const GranuleId first = pageable.unmap(1);
  REQUIRE(device.memory().host_view(pageable.slot(1)) == nullptr);
  pageable.map(1, second);
  pageable.map(2, first);
  stream->copy(near_device.slot(1), pageable.slot(2), bytes);
  stream->copy(near_device.slot(2), pageable.slot(1), bytes);
  REQUIRE(read(*stream, near_device.slot(1), data.size()) == data);
}

inline void plain_allocation_is_backed_and_zero(Device& device) {
  VirtualMemory& memory = device.memory();
  const auto stream = device.create_stream();
  const std::size_t bytes = 3 * memory.granule_bytes() + 100;
  const Bytes data = pattern(bytes, 6);
  for (const Placement placement : {Placement::device, Placement::host, Placement::pageable}) {
    const std::optional<Address> begin = memory.allocate(placement, bytes);
    REQUIRE(begin.has_value());
    REQUIRE(begin->address() % 256 == 0);
    REQUIRE(all_zero(read(*stream, *begin, bytes)));
    if (placement == Placement::device) {
      write(*stream, *begin, data);
    } else {
      std::byte* const view = memory.host_view(begin->byte_offset(10));
      REQUIRE(view != nullptr);
      std::memcpy(view - 10, data.data(), bytes);
    }
    const std::optional<Address> other = memory.allocate(Placement::device, bytes);
    REQUIRE(other.has_value());
    stream->copy(*other, *begin, bytes);
    REQUIRE(read(*stream, *other, bytes) == data);
    memory.free(*other);
    memory.free(*begin);
    REQUIRE_THROWS_AS(memory.free(*begin), Error);
  }
}

inline void misuse_of_memory_is_refused(Device& device) {
  VirtualMemory& memory = device.memory();
  const std::size_t bytes = memory.granule_bytes();
  REQUIRE_THROWS_AS(memory.reserve(0), Error);
  REQUIRE_THROWS_AS(memory.reserve(bytes + 1), Error);
  const Address range = memory.reserve(2 * bytes);
  const GranuleId first = memory.create(Placement::device).value();
  const GranuleId second = memory.create(Placement::device).value();
  const Address slot = range.byte_offset(static_cast<std::int64_t>(bytes));
  REQUIRE_THROWS_AS(memory.unmap(slot), Error);                       // empty
  REQUIRE_THROWS_AS(memory.map(slot.byte_offset(64), first), Error);  // inside a slot
  REQUIRE_THROWS_AS(memory.map(range.byte_offset(static_cast<std::int64_t>(2 * bytes)), first), Error);  // past the end
  REQUIRE_THROWS_AS(memory.map(slot, GranuleId{~std::uint64_t{0}}), Error);  // no such granule
  memory.map(slot, first);
  REQUIRE_THROWS_AS(memory.map(slot, second), Error);  // the slot is taken
  REQUIRE_THROWS_AS(memory.map(range, first), Error);  // the granule is elsewhere
  REQUIRE_THROWS_AS(memory.destroy(first), Error);     // in use
  REQUIRE_THROWS_AS(memory.release(range, 2 * bytes), Error);
  memory.unmap(slot);
  REQUIRE(memory.host_view(slot) == nullptr);
  memory.destroy(first);
  REQUIRE_THROWS_AS(memory.destroy(first), Error);    // twice
  REQUIRE_THROWS_AS(memory.map(slot, first), Error);  // gone
  REQUIRE_THROWS_AS(memory.release(range, bytes), Error);
  memory.map(slot, second);  // what was refused left no trace
  memory.unmap(slot);
  memory.destroy(second);
  memory.release(range, 2 * bytes);
  REQUIRE_THROWS_AS(memory.release(range, 2 * bytes), Error);
}

// ---- streams and events --------------------------------------------------------------------------------------------

inline void transfers_touch_exactly_their_bytes(Device& device) {
  const auto stream = device.create_stream();
  Region region(device, 1, Placement::device);
  const Bytes background = pattern(4096, 1);
  const Bytes data = pattern(1000, 2);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{3096}}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{1000}}) {
      Bytes expected = background;
      write(*stream, region.at(), background);
      stream->upload(region.at(offset), data.data(), count);
      std::copy_n(data.begin(), count, expected.begin() + static_cast<std::ptrdiff_t>(offset));
      REQUIRE(read(*stream, region.at(), expected.size()) == expected);
      stream->fill_zero(region.at(offset), count);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), count, std::byte{0});
      REQUIRE(read(*stream, region.at(), expected.size()) == expected);
      stream->fill_zero(region.at(8192), expected.size());
      stream->copy(region.at(8192 + offset), region.at(4096 - count), count);
      Bytes copied(expected.size());
      std::copy_n(expected.end() - static_cast<std::ptrdiff_t>(count), count,
                  copied.begin() + static_cast<std::ptrdiff_t>(offset));
      REQUIRE(read(*stream, region.at(8192), copied.size()) == copied);
    }
  }
}

inline void one_stream_keeps_its_order(Device& device) {
  constexpr std::size_t kBytes = 64;
  const auto stream = device.create_stream();
  Region region(device, 1, Placement::device);
  const Bytes data = pattern(kBytes, 1);
  stream->upload(region.at(), data.data(), kBytes);
  for (std::size_t step = 0; step < 20; ++step)
    stream->copy(region.at((step + 1) * kBytes), region.at(step * kBytes), kBytes);
  stream->fill_zero(region.at(), 20 * kBytes);
  REQUIRE(read(*stream, region.at(20 * kBytes), kBytes) == data);
  REQUIRE(all_zero(read(*stream, region.at(), 20 * kBytes)));
}

inline void wait_orders_streams(Device& device) { REQUIRE(data_passes_through_three_streams(device, true)); }
inline void ring_slots_are_safe_behind_events(Device& device) {
  REQUIRE(ring_slots_keep_their_data_until_read(device, true));
}

// `first` goes on to overwrite the data, behind `second`, and records the same event again.
inline void wait_means_the_latest_record_before_it(Device& device) {
  constexpr std::size_t kBytes = 64;
  Region region(device, 1, Placement::device);
  const auto first = device.create_stream();
  const auto second = device.create_stream();
  const auto written = device.create_event();
  const auto taken = device.create_event();
  const Bytes early = pattern(kBytes, 1);
  const Bytes wanted = pattern(kBytes, 2);
  const Bytes late = pattern(kBytes, 3);
  Bytes result(kBytes);
  first->upload(region.at(), early.data(), kBytes);
  first->record(*written);
  first->upload(region.at(), wanted.data(), kBytes);
  first->record(*written);
  second->wait(*written);
  second->copy(region.at(kBytes), region.at(), kBytes);
  second->record(*taken);
  first->wait(*taken);
  first->upload(region.at(), late.data(), kBytes);
  first->record(*written);
  second->download(result.data(), region.at(kBytes), kBytes);
  second->synchronize();
  REQUIRE(result == wanted);
  written->synchronize();
  REQUIRE(read(*second, region.at(), kBytes) == late);
}

inline void unrecorded_event_holds_nobody_up(Device& device) {
  const auto stream = device.create_stream();
  const auto event = device.create_event();
  event->synchronize();
  stream->wait(*event);
  Region region(device, 1, Placement::device);
  REQUIRE(all_zero(read(*stream, region.at(), 16)));
}

inline void synchronised_event_has_everything_before_it_done(Device& device) {
  constexpr std::size_t kBytes = 128;
  Region region(device, 1, Placement::device);
  const auto stream = device.create_stream();
  const auto event = device.create_event();
  const Bytes first = pattern(kBytes, 1);
  const Bytes second = pattern(kBytes, 2);
  Bytes result(kBytes);
  stream->upload(region.at(), first.data(), kBytes);
  stream->download(result.data(), region.at(), kBytes);
  stream->record(*event);
  stream->upload(region.at(), second.data(), kBytes);
  event->synchronize();
  REQUIRE(result == first);
  stream->synchronize();
}

inline void stream_may_go_before_its_event(Device& device) {
  constexpr std::size_t kBytes = 128;
  Region region(device, 1, Placement::device);
  const auto event = device.create_event();
  const Bytes data = pattern(kBytes, 1);
  {
    const auto stream = device.create_stream();
    stream->upload(region.at(), data.data(), kBytes);
    stream->record(*event);
  }
  event->synchronize();
  const auto reader = device.create_stream();
  reader->wait(*event);
  REQUIRE(read(*reader, region.at(), kBytes) == data);
}

// ---- the suite -----------------------------------------------------------------------------------------------------

struct ContractCase {
  const char* fact;
  void (*check)(Device& device);
};

inline constexpr ContractCase kContractCases[] = {
    {"granule size is a power of two and ranges are aligned to it", granule_size_is_a_power_of_two},
    {"free memory is part of total memory", free_memory_is_part_of_total},
    {"new granule reads as zeros", new_granule_reads_as_zeros},
    {"data stays with the granule, whatever its address", data_stays_with_the_granule},
    {"many granules in any order form one range", many_granules_in_any_order_form_one_range},
    {"host granule is shared with the host", host_granule_is_shared_with_the_host},
    {"pageable granule is shared with the host and with copies", pageable_granule_is_shared_with_the_host},
    {"plain allocation is backed and zero", plain_allocation_is_backed_and_zero},
    {"misuse of memory is refused and changes nothing", misuse_of_memory_is_refused},
    {"transfers touch exactly their bytes", transfers_touch_exactly_their_bytes},
    {"one stream keeps its order", one_stream_keeps_its_order},
    {"wait orders streams", wait_orders_streams},
    {"ring slots are safe behind events", ring_slots_are_safe_behind_events},
    {"wait means the latest record before it", wait_means_the_latest_record_before_it},
    {"unrecorded event holds nobody up", unrecorded_event_holds_nobody_up},
    {"synchronised event has everything before it done", synchronised_event_has_everything_before_it_done},
    {"stream may go before its event", stream_may_go_before_its_event},
    {"captured operations run at launch only, each time", captured_operations_run_at_launch_only},
    {"graph holds its arguments by value", graph_holds_its_arguments_by_value},
    {"graph sees device data as it is at launch", graph_sees_device_data_as_it_is_at_launch},
    {"graph copies host granules as they are at launch", graph_copies_host_granules_as_they_are_at_launch},
    {"forked streams become one graph", forked_streams_become_one_graph},
    {"capture that used a stream leaves it usable", capture_leaves_its_streams_usable},
    {"graph outlives its stream and runs on another", graph_outlives_its_stream},
    {"empty graph can be launched", empty_graph_can_be_launched},
    {"graph launch is ordered by events", graph_launch_keeps_event_order},
    {"launches of one graph do not overlap", launches_of_one_graph_do_not_overlap},
    {"graph reads new data when its address is mapped anew", graph_reads_new_data_when_its_address_is_mapped_anew},
    {"forbidden calls in a capture throw and leave it intact", forbidden_calls_in_a_capture_throw},
    {"capture refuses to end where it should not", capture_ends_only_where_it_should},
    {"capture does not depend on work outside of it", capture_does_not_depend_on_work_outside},
    {"event of a capture is nothing to wait for outside", event_of_a_capture_is_nothing_to_wait_for_outside},
    {"answers of the host arrive in order, in a graph and without one", host_answers_arrive_in_order},
    {"requests hold rows as the host prepares them", requests_hold_rows_as_the_host_prepares_them},
    {"time between events is that of the device", time_between_events_is_that_of_the_device},
    {"time between events holds the work between them", time_holds_the_work_between_events},
    {"recording again moves the time", recording_again_moves_the_time},
    {"time needs two recorded points", time_needs_two_recorded_points},
};

inline void check_device_contract(const DeviceFactory& create_device) {
  for (const ContractCase& contract_case : kContractCases) {
    DYNAMIC_SECTION(contract_case.fact) {
      const std::unique_ptr<Device> device = create_device();
      contract_case.check(*device);
    }
  }
}

}  // namespace genai::test
