// plan_requests.h - small requests for a plan, in bytes that a person can add up.
#pragma once
#include <string>

#include "engine/residency/residency_plan.h"

namespace genai::test {

inline PlanRequest small_request() {
  PlanRequest request;
  request.matrices = {{.name = "embedding", .strips = 100, .strip_bytes = 544, .read_every_pass = false}};
  for (int layer = 0; layer < 4; ++layer) {
    request.matrices.push_back({.name = "blk." + std::to_string(layer) + ".q", .strips = 13, .strip_bytes = 576});
    request.matrices.push_back({.name = "blk." + std::to_string(layer) + ".up", .strips = 40, .strip_bytes = 1152});
  }
  request.matrices.push_back({.name = "output", .strips = 100, .strip_bytes = 1088});
  request.fixed = {.vectors = 3000, .kv = 8192, .workspace = 4096};
  request.granule_bytes = 1024;
  return request;
}

inline LaneSpeeds speeds() {
  return {.resident = 4000, .ring = 55, .zero_copy = 50, .host = 120, .ring_beside_host = 48, .host_beside_ring = 106};
}

}  // namespace genai::test
