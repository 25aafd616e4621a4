// residency_plan.h - which rows of which matrix live where. A pure function of sizes, budget and lane speeds: no
// device, no clock, no file. What it forecasts in bytes is what a step then counts, exactly.
//
// Matrices are split at strips of 8 rows. The strips of all matrices are ordered once, so that every prefix of the
// order holds about the same share of every large matrix, and more of small ones; the resident strips are the longest
// prefix that fits. So in one mode more budget never takes a strip out of device memory, and less than one strip of the
// budget stays unused. Small matrices come in early since a call costs the same whatever it reads: while little is
// cold, all of that is in few large matrices.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace genai {

// A lane is a memory and what reads it.
enum class Lane : std::uint8_t {
  resident,   // device memory, kernels
  ring,       // host memory, copied ahead into slots in device memory, kernels
  zero_copy,  // host memory, kernels over the link
  host,       // host memory, host cores
};
inline constexpr int kLaneCount = 4;
std::string_view lane_name(Lane lane);

enum class OffloadMode : std::uint8_t { automatic, off, stream, zero_copy, host, split };
std::string_view offload_mode_name(OffloadMode mode);

// Of activations, in the speeds with more than one row.
inline constexpr std::int32_t kManySpeedRows = 8;

// Bytes per second; all that the choice of lanes depends on besides sizes. 0: unknown. How they are measured:
// lane_probe.h, NOTE [Lane speeds].
struct LaneSpeeds {
  double resident = 0.0;
  double ring = 0.0;
  double zero_copy = 0.0;
  double host = 0.0;
  double ring_beside_host = 0.0;  // while both run: host memory is shared
  double host_beside_ring = 0.0;
  double host_8_rows = 0.0;              // with eight rows of activations; unknown: as with one
  double exchange_seconds = 0.0;         // of one matrix with host rows: vector out, results back, the slowest core
  double exchange_8_rows_seconds = 0.0;  // unknown: as with one
  double matrix_seconds = 0.0;           // of each matrix in a pass, beyond reading it
  double pass_seconds = 0.0;             // of a pass, beyond its matrices
  bool are_known() const { return resident > 0.0; }
  bool operator==(const LaneSpeeds&) const = default;
};

struct MatrixSize {
  std::string name;
  std::int64_t strips = 0;
  std::int64_t strip_bytes = 0;
  bool read_every_pass = true;  // false: a table of which a pass reads single rows (an embedding of its own)
  bool may_be_cold = true;
  bool one_cold_lane = false;  // cold rows must lie together: rows are also looked up one by one
  bool same_call = false;      // computed in one call with the matrix before it, for they read the same input
  std::int64_t total_bytes() const { return strips * strip_bytes; }
};

// Device memory that is not matrices, in bytes.
struct FixedBytes {
  std::uint64_t vectors = 0;    // norms and biases, in one range with the resident matrices
  std::uint64_t kv = 0;         // of the whole context, in whole granules
  std::uint64_t workspace = 0;  // in whole granules
  std::uint64_t graphs = 0;     // kept for what the backend takes for them
};

struct PlanRequest {
  std::vector<MatrixSize> matrices;  // in the order in which a pass reads them
  FixedBytes fixed;
  std::uint64_t granule_bytes = 1;
  std::optional<std::uint64_t> budget_bytes;  // nothing: no limit
  OffloadMode mode = OffloadMode::automatic;
  bool has_host_lane = true;      // host cores can compute rows for this device
  bool lanes_take_turns = false;  // the device is those host cores: all lanes are work of one processor
  // Passes of more rows than host cores take bring the host's rows in through the ring: no mode with such rows is
  // without one.
  bool wide_passes_stream = false;
  std::int32_t step_rows = 1;  // rows of the passes that are to be fast
  // One kernel serves many calls of one row, with what host cores compute of them, where no other lane comes between.
  bool calls_share_kernels = false;
  // Kernels of a pass that read no matrix. Each costs about what a call on a matrix costs beside reading.
  std::int32_t small_kernels = 0;
  std::uint64_t host_ahead_bytes = 0;  // what caches of host cores take of rows before they are asked for
  std::uint64_t host_cache_bytes = 0;  // what they hold of rows from pass to pass
  LaneSpeeds speeds;
  // Names of matrices that must be cold whatever the budget.
  std::vector<std::string> forced_cold;
};

// Consecutive strips: resident first, then ring, zero-copy and host.
struct MatrixPlan {
  std::int64_t strips[kLaneCount] = {};
  std::int64_t first_strip(Lane lane) const;
  std::int64_t of(Lane lane) const { return strips[static_cast<int>(lane)]; }
};

struct ResidencyPlan {
  OffloadMode mode = OffloadMode::automatic;  // as effective: never automatic
  std::vector<MatrixPlan> matrices;
  std::uint64_t lane_bytes[kLaneCount] = {};  // that live in the lane
  std::uint64_t pass_bytes[kLaneCount] = {};  // that a pass reads through it
  std::uint64_t ring_slot_bytes = 0;          // of one slot
  std::int32_t ring_slots = 0;
  bool wide_passes_stream = false;    // as requested, and there are rows of Lane::host
  std::uint64_t committed_bytes = 0;  // most device bytes that will ever be committed
  double pass_seconds = 0.0;          // predicted; 0 where the speed of a lane in use is unknown
  std::string bottleneck;             // the lane that takes the longest; empty where nothing is predicted

  std::uint64_t of(Lane lane) const { return lane_bytes[static_cast<int>(lane)]; }
  std::uint64_t pass_of(Lane lane) const { return pass_bytes[static_cast<int>(lane)]; }
  std::uint64_t cold_bytes() const { return of(Lane::ring) + of(Lane::zero_copy) + of(Lane::host); }
};

// Throws BudgetError where not even the smallest plan of this mode fits: with a byte ledger and the smallest budget
// that works. Throws UsageError for a mode that contradicts the rest.
ResidencyPlan make_residency_plan(const PlanRequest& request);

// The smallest budget with which make_residency_plan succeeds for this request's mode.
std::uint64_t smallest_budget(const PlanRequest& request);

}  // namespace genai
