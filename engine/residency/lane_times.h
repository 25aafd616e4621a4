// lane_times.h - how long each lane is busy in a pass of a plan, and what that says of the pass. Lanes work at once, so
// the longest decides:
//   ring        its bytes over the link, slower while host cores read the same memory
//   zero-copy   its bytes over the link
//   host cores  their bytes, slower with many rows of activations, and an exchange for each call with rows there
//   device      resident bytes, what each call, each small kernel and the pass cost besides, and the same exchanges,
//   for
//               it waits
// A call is what one kernel reads: matrices with the same input, of one lane; in the ring, of one chunk.
// Attention reads a cache that the plan does not know, so a long context takes longer than predicted.
#pragma once
#include "engine/residency/residency_plan.h"

namespace genai {

// Bytes per second of host cores for steps of `row_count` rows; 0: unknown.
double host_speed(const LaneSpeeds& speeds, std::int32_t row_count, bool beside_ring);

class LaneTimes {
 public:
  LaneTimes(const PlanRequest& request, const ResidencyPlan& plan);

  // False where a lane in use has no known speed.
  bool is_known() const { return is_known_; }
  double ring_seconds() const { return ring_; }
  double host_seconds() const { return host_; }      // with exchanges
  double device_seconds() const { return device_; }  // with exchanges

  // Sets the plan's pass_seconds and bottleneck.
  void predict(ResidencyPlan& plan) const;

 private:
  double seconds(const ResidencyPlan& plan, Lane lane, double speed);

  bool is_known_ = true;
  bool reads_cold_rows_ = false;
  double ring_ = 0.0;
  double zero_copy_ = 0.0;
  double host_ = 0.0;
  double device_ = 0.0;
};

}  // namespace genai
