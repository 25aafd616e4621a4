// lane_check.h - does each lane of a plan give back what was put there? Before weights are loaded, a pattern goes
// through every lane in use: it is written as weights are, read as weights are, by the product of a decode step, and
// what comes out is compared with what the pattern must give. Takes a few granules of the arena and milliseconds, and
// has given all of it back when it returns.
//
// The pattern is a strip of Q8_0 weights, the input a row of small integers: every sum is an exact integer, in whatever
// order it is taken, and each byte of the pattern counts in one of its eight rows.
#pragma once
#include "engine/device/device.h"
#include "engine/residency/residency_arena.h"
#include "engine/residency/residency_plan.h"

namespace genai {

// `host` computes rows of Lane::host; null: the device does, over the link. Cold rows live in memory of `cold`. Throws
// DeviceError that names the lane whose bytes are wrong; BudgetError, PinnedMemoryError or DeviceError where the memory
// is not to be had. REQUIRES: no other work on the devices.
void check_lanes(const ResidencyPlan& plan, Device& device, Device* host, ResidencyArena& arena, Placement cold);

}  // namespace genai
