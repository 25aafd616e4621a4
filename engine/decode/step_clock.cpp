#include "engine/decode/step_clock.h"

namespace genai {

StepClock::StepClock(Device& device) {
  for (Step& step : steps_) {
    step.begin = device.create_event();
    step.end = device.create_event();
  }
}

void StepClock::begin(Stream& stream) {
  current_ = 1 - current_;
  current().is_pending = false;
  stream.record(*current().begin);
}

void StepClock::end(Stream& stream, std::uint64_t read_bytes, DeviceTime& total) {
  stream.record(*current().end);
  current().read_bytes = read_bytes;
  current().is_pending = true;
  read(previous(), total);
}

void StepClock::finish(DeviceTime& total) {
  read(previous(), total);
  read(current(), total);
}

void StepClock::read(Step& step, DeviceTime& total) {
  if (!step.is_pending) return;
  step.is_pending = false;
  total.seconds += step.end->seconds_since(*step.begin);
  total.read_bytes += step.read_bytes;
  ++total.steps;
}

}  // namespace genai
