// device_contract_time.h - the part of the device contract about time between events: bounds that hold on any machine,
// however slow or busy it is.
#pragma once
#include <chrono>
#include <thread>

#include "tests/device_contract_support.h"

namespace genai::test {

inline constexpr std::chrono::microseconds kPause{500};
inline constexpr double kPauseSeconds = 500e-6;
// The device's clock and the host's need not tick alike to the last digit, nor be read at one instant.
inline constexpr double kClockTolerance = 0.02;
inline constexpr double kClockSlackSeconds = 20e-6;

inline void time_between_events_is_that_of_the_device(Device& device) {
  const auto stream = device.create_stream();
  const auto begin = device.create_event();
  const auto end = device.create_event();
  const auto host_begin = std::chrono::steady_clock::now();
  stream->record(*begin);
  begin->synchronize();
  std::this_thread::sleep_for(kPause);
  stream->record(*end);
  const double seconds = end->seconds_since(*begin);
  const double host_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - host_begin).count();
  REQUIRE(seconds >= kPauseSeconds * (1.0 - kClockTolerance) - kClockSlackSeconds);
  REQUIRE(seconds <= host_seconds * (1.0 + kClockTolerance) + kClockSlackSeconds);
}

inline void time_holds_the_work_between_events(Device& device) {
  StepCounter counter(device);
  const auto stream = device.create_stream();
  stream->begin_capture();
  for (int step = 0; step < 20; ++step) counter.advance(*stream);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  const auto before = device.create_event();
  const auto between = device.create_event();
  const auto behind = device.create_event();
  stream->record(*before);
  stream->launch(*graph);
  stream->record(*between);
  stream->launch(*graph);
  stream->record(*behind);
  const double whole = behind->seconds_since(*before);  // waits for all of it
  REQUIRE(counter.row(*stream).position == 40);
  REQUIRE(whole > 0.0);
  REQUIRE(between->seconds_since(*before) >= 0.0);
  REQUIRE(behind->seconds_since(*between) >= 0.0);
  REQUIRE(between->seconds_since(*before) + behind->seconds_since(*between) <= whole + kClockSlackSeconds);
  REQUIRE(behind->seconds_since(*behind) == 0.0);
}

inline void recording_again_moves_the_time(Device& device) {
  const auto stream = device.create_stream();
  const auto begin = device.create_event();
  const auto end = device.create_event();
  stream->record(*begin);
  stream->record(*end);
  const double first = end->seconds_since(*begin);
  std::this_thread::sleep_for(kPause);
  stream->record(*end);
  const double second = end->seconds_since(*begin);
  REQUIRE(second - first >= kPauseSeconds * (1.0 - kClockTolerance) - kClockSlackSeconds);
}

inline void time_needs_two_recorded_points(Device& device) {
  const auto stream = device.create_stream();
  const auto recorded = device.create_event();
  const auto never = device.create_event();
  const auto captured = device.create_event();
  stream->record(*recorded);
  REQUIRE_THROWS_AS(recorded->seconds_since(*never), Error);
  REQUIRE_THROWS_AS(never->seconds_since(*recorded), Error);
  stream->begin_capture();
  stream->record(*captured);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  stream->launch(*graph);
  REQUIRE_THROWS_AS(captured->seconds_since(*recorded), Error);
  REQUIRE_THROWS_AS(recorded->seconds_since(*captured), Error);
  REQUIRE(recorded->seconds_since(*recorded) == 0.0);
}

}  // namespace genai::test
