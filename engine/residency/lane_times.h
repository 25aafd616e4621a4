// lane_times.h - how long a pass of a plan takes. Lanes work at once, so the longest decides:
//   link        bytes of the ring, slower while host cores read the same memory
//   computing   call by call, the longer one of
//                 device      resident bytes, and what a kernel costs besides; zero-copy bytes, or what that costs
//                 host cores  their bytes, slower with many rows of activations, and the exchange; while nothing is
//                             asked of them they fetch what comes next into their caches, and read that faster, as
//                             they do with what is still there from the pass before
// Where the lanes take turns, all of that is added up, and what the ring brought is read once more.
// A call is what one kernel a lane reads: matrices with the same input; in the ring, a kernel reads of one chunk only,
// and chunks are filled across calls. Where one kernel serves many calls, beginning one hides a part of its reading,
// and an exchange costs the device nothing but waiting. Attention reads a cache that the plan does not know, so a long
// context takes longer than predicted.
#pragma once
#include "engine/residency/residency_plan.h"

namespace genai {

// Bytes per second of host cores for steps of `row_count` rows; 0: unknown.
double host_speed(const LaneSpeeds& speeds, std::int32_t row_count, bool beside_ring);

// Sets the plan's pass_seconds and bottleneck: 0 and empty where a lane in use has no known speed.
void predict_pass(const PlanRequest& request, ResidencyPlan& plan);

}  // namespace genai
