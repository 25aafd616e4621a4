// lane_times.h - how long each lane is busy in a pass of a plan, and what that says of the pass. Lanes work at once, so
// the longest decides:
//   ring        its bytes over the link, slower while host cores read the same memory
//   zero-copy   its bytes over the link
//   host cores  their bytes, and an exchange for each matrix that has rows there
//   device      resident bytes, what each matrix and the pass cost besides, and the same exchanges, for it waits
// Attention is in none of them: the plan knows the weights alone, so a long context takes longer than predicted.
#pragma once
#include "engine/residency/residency_plan.h"

namespace genai {

class LaneTimes {
 public:
  LaneTimes(const ResidencyPlan& plan, const LaneSpeeds& speeds);

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
