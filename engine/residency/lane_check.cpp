#include "engine/residency/lane_check.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/exact_math.h"
#include "engine/packed_layout.h"
#include "engine/residency/host_lane.h"

namespace genai {
namespace {

constexpr std::int32_t kWidth = 256;
constexpr std::int64_t kPartAlignment = 256;
constexpr std::size_t kPatternBytes = static_cast<std::size_t>(strip_bytes(DType::Q8_0, kWidth));

constexpr std::int64_t aligned(std::size_t bytes) { return round_up(static_cast<std::int64_t>(bytes), kPartAlignment); }

using Row = std::array<float, kWidth>;
using Results = std::array<float, kStripRows>;

// Integers, none of them 0; 127 in each block, so that the block's quantised form is these very numbers.
Row make_input() {
  Row input;
  for (std::int32_t k = 0; k < kWidth; ++k) {
    const float size = static_cast<float>(1 + k * 7 % 15);
    input[static_cast<std::size_t>(k)] = k % kBlockWidth == 5 ? 127.0f : k % 3 == 0 ? -size : size;
  }
  return input;
}

struct Pattern {
  std::vector<std::byte> bytes;
  Results expected{};
};

Pattern make_pattern(const Row& input) {
  Pattern pattern{.bytes = std::vector<std::byte>(kPatternBytes), .expected = {}};
  constexpr TileLayout layout = tile_layout(DType::Q8_0);
  const std::uint16_t scale = float_to_half(1.0f);
  std::uint32_t state = 1;
  for (std::int32_t row = 0; row < kStripRows; ++row) {
    for (std::int32_t k = 0; k < kWidth; ++k) {
      state = state * 1664525u + 1013904223u;
      const auto weight = static_cast<std::int8_t>(static_cast<std::int32_t>(state >> 24) - 128);
      // engine/packed_layout.h, byte plane: block j, weight i = 16h + 4c + e of the block.
      const std::int32_t j = k % kTileWidth / kBlockWidth;
      const std::int32_t i = k % kBlockWidth;
      std::byte* const tile = &pattern.bytes[static_cast<std::size_t>(k / kTileWidth * layout.tile_bytes)];
      tile[512 * (i / 16) + 16 * (4 * row + i % 16 / 4) + 4 * j + i % 4] = static_cast<std::byte>(weight);
      std::memcpy(&tile[layout.scale + 2 * (kTileBlocks * row + j)], &scale, sizeof scale);
      pattern.expected[static_cast<std::size_t>(row)] +=
          static_cast<float>(weight) * input[static_cast<std::size_t>(k)];
    }
  }
  return pattern;
}

class LaneCheck {
 public:
  LaneCheck(Device& device, ResidencyArena& arena)
      : device_(device),
        arena_(arena),
        input_(make_input()),
        pattern_(make_pattern(input_)),
        stream_(device.create_stream()) {
    const std::size_t scratch_bytes = device.kernels().scratch_bytes(
        {.row_count = 1, .input_width = kWidth, .head_count = 1, .head_dim = 8, .max_positions = 1});
    const std::int64_t output_offset = aligned(sizeof(Row));
    const std::int64_t finished_offset = output_offset + aligned(sizeof(Results));
    const std::int64_t weights_offset = finished_offset + aligned(sizeof(std::uint32_t));
    const std::int64_t scratch_offset = weights_offset + aligned(kPatternBytes);
    const std::size_t bytes = static_cast<std::size_t>(scratch_offset) + scratch_bytes;
    local_ = arena.reserve(MemoryKind::workspace, bytes);
    local_.commit(0, bytes);
    output_ = local_.base().byte_offset(output_offset);
    finished_ = local_.base().byte_offset(finished_offset);
    weights_ = local_.base().byte_offset(weights_offset);
    scratch_ = local_.base().byte_offset(scratch_offset);
    stream_->upload(local_.base(), input_.data(), sizeof(Row));
    stream_->synchronize();
  }

  void check_resident() {
    stream_->upload(weights_, pattern_.bytes.data(), kPatternBytes);
    compare(Lane::resident, product(weights_));
  }

  // What check_ring, check_zero_copy and check_host read.
  void write_cold(Placement placement) {
    cold_ = arena_.reserve(MemoryKind::cold, kPatternBytes, placement);
    cold_.commit(0, kPatternBytes);
    std::byte* const view = arena_.memory().host_view(cold_.base());
    GENAI_EXPECT(view != nullptr, "host memory that the host cannot write");
    std::memcpy(view, pattern_.bytes.data(), kPatternBytes);
  }

  void check_ring() {
    stream_->fill_zero(weights_, kPatternBytes);
    stream_->copy(weights_, cold_.base(), kPatternBytes);
    compare(Lane::ring, product(weights_));
  }

  void check_zero_copy() { compare(Lane::zero_copy, product(cold_.base())); }

  void check_host(Device* host) {
    if (host == nullptr) return compare(Lane::host, product(cold_.base()));
    clear_output();
    HostLane lane(device_, *host, arena_, finished_.as<std::uint32_t>(),
                  {.max_rows = 1, .input_width = kWidth, .result_width = kStripRows});
    const MatmulArgs args = product_args(cold_.base());
    lane.ask(*stream_, &args, args);
    lane.take(*stream_);
    lane.end_pass(*stream_);
    const Results results = read_output();
    lane.rethrow_failure();
    compare(Lane::host, results);
  }

 private:
  MatmulArgs product_args(DevicePtr<const std::byte> weights) const {
    MatmulArgs args{};
    args.input = local_.base().as<float>();
    args.input_stride = kWidth;
    args.row_count = 1;
    args.outputs[0] = {.matrix = {.data = weights, .dtype = DType::Q8_0, .rows = kStripRows, .cols = kWidth},
                       .bias = {},
                       .out = output_.as<float>(),
                       .out_stride = kStripRows};
    args.output_count = 1;
    args.scratch = scratch_;
    return args;
  }

  // So that a product that was not computed shows.
  void clear_output() { stream_->fill_zero(output_, sizeof(Results)); }

  Results read_output() {
    Results results;
    stream_->download(results.data(), output_, sizeof results);
    stream_->synchronize();
    return results;
  }

  Results product(DevicePtr<const std::byte> weights) {
    clear_output();
    device_.kernels().matmul(*stream_, product_args(weights));
    return read_output();
  }

  void compare(Lane lane, const Results& results) const {
    for (std::size_t row = 0; row < results.size(); ++row)
      if (results[row] != pattern_.expected[row])
        throw DeviceError(
            fmt::format("the {} lane of {} returns wrong bytes: row {} of a pattern of {} bytes gave {} and not {}",
                        lane_name(lane), device_.name(), row, kPatternBytes, results[row], pattern_.expected[row]),
            lane == Lane::resident ? "its memory, driver or processor is not to be trusted: use another --device"
                                   : "choose another --weight-offload, and have the machine checked");
  }

  Device& device_;
  ResidencyArena& arena_;
  const Row input_;
  const Pattern pattern_;
  std::unique_ptr<Stream> stream_;
  MemoryRange local_;
  MemoryRange cold_;
  DevicePtr<std::byte> output_, finished_, weights_, scratch_;
};

}  // namespace

void check_lanes(const ResidencyPlan& plan, Device& device, Device* host_device, ResidencyArena& arena,
                 Placement cold) {
  LaneCheck check(device, arena);
  check.check_resident();
  if (plan.cold_bytes() == 0) return;
  check.write_cold(cold);
  // Passes of many rows bring the host's rows in through the ring, or read them over the link.
  const bool host = plan.of(Lane::host) > 0;
  if (plan.of(Lane::ring) > 0 || plan.wide_passes_stream) check.check_ring();
  if (plan.of(Lane::zero_copy) > 0 || (host && !plan.wide_passes_stream)) check.check_zero_copy();
  if (host) check.check_host(host_device);
}

}  // namespace genai
