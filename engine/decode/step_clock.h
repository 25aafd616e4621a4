// step_clock.h - how long steps take by the device's own clock, and what they read meanwhile: an event before each step
// and one behind it. The time of a step is read when the next one has been launched, so that no step waits for it.
// Events stand outside of graphs: they add no node. On an H200 a step of 286 us takes as long with them as without
// (tests/bench/runs/2026-11-30-h200/whole_models.log). One thread.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/decode/counters.h"
#include "engine/device/device.h"

namespace genai {

class StepClock {
 public:
  explicit StepClock(Device& device);

  // Around the call that enqueues a step. `read_bytes`: what it reads from device memory.
  void begin(Stream& stream);
  void end(Stream& stream, std::uint64_t read_bytes, DeviceTime& total);
  // Adds the step whose time was not read yet, if there is one; waits for it.
  void finish(DeviceTime& total);

 private:
  struct Step {
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
    std::uint64_t read_bytes = 0;
    bool is_pending = false;
  };

  static void read(Step& step, DeviceTime& total);
  Step& current() { return steps_[current_]; }
  Step& previous() { return steps_[1 - current_]; }

  Step steps_[2];
  int current_ = 0;
};

}  // namespace genai
