#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/byte_size.h"
#include "cli/interrupt.h"
#include "cli/lane_speed_choice.h"
#include "cli/session.h"
#include "cli/version.h"
#include "engine/error.h"
#include "engine/residency/lane_bench.h"

namespace genai::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Lane kLanes[] = {Lane::resident, Lane::zero_copy, Lane::ring, Lane::host};
constexpr std::uint64_t kSizeStep = 4;

struct SizeResult {
  std::uint64_t bytes = 0;
  std::optional<LaneBenchResult> result;
  std::string reason;  // why there is none
};

// Each four times the one before, and the largest.
std::vector<std::uint64_t> sizes_up_to(std::uint64_t most) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = BenchOptions::kLeastBytes; bytes < most; bytes *= kSizeStep) sizes.push_back(bytes);
  sizes.push_back(most);
  return sizes;
}

SizeResult measure(OpenedDevice& opened, std::optional<std::uint64_t> budget_bytes, std::uint64_t bytes) {
  SizeResult size{.bytes = bytes, .result = {}, .reason = {}};
  // On the host device both matrices are in host memory. Others work here too: half of what is available is theirs.
  const std::uint64_t host_bytes = opened.backend == Backend::host ? 2 * bytes : bytes;
  if (opened.host_available_bytes && host_bytes > *opened.host_available_bytes / 2) {
    size.reason = fmt::format("it needs {} of host memory, more than half of the {} that are available",
                              byte_size_text(host_bytes), byte_size_text(*opened.host_available_bytes));
    return size;
  }
  ResidencyArena arena(opened.device->memory(), budget_bytes);
  std::optional<LaneBench> lanes;
  try {
    lanes.emplace(*opened.device, host_lane_device(opened), arena, bytes);
  } catch (const BudgetError& error) {
    size.reason = error.what();
  } catch (const DeviceError& error) {
    size.reason = error.what();
  }
  if (lanes) size.result = lanes->measure();
  return size;
}

Json document(const std::vector<SizeResult>& sizes, const OpenedDevice& opened) {
  Json json = {{"schema_version", kReportSchema}, {"genai_version", kVersion}, {"device", opened.device->name()}};
  json["threads"] = opened.threads;
  json["sizes"] = Json::array();
  for (const SizeResult& size : sizes) {
    Json entry = {{"bytes", size.bytes}, {"ran", size.result.has_value()}};
    if (!size.result) {
      entry["reason"] = size.reason;
    } else {
      entry["read_bytes"] = size.result->bytes;
      for (const Lane lane : kLanes)
        if (const auto rate = size.result->bytes_per_second[static_cast<std::size_t>(lane)])
          entry["gbps"][std::string(lane_name(lane))] = *rate / 1e9;
      entry["bits_equal"] = size.result->bits_equal;
    }
    json["sizes"].push_back(entry);
  }
  return json;
}

std::string table(const std::vector<SizeResult>& sizes, const OpenedDevice& opened) {
  std::string text = fmt::format("{}: GB/s of one product (M = 1, Q4_0), by where its weights are read\n{:>10}",
                                 opened.device->name(), "size");
  for (const Lane lane : kLanes) text += fmt::format(" {:>10}", lane_name(lane));
  text += "   bits\n";
  for (const SizeResult& size : sizes) {
    text += fmt::format("{:>10}", byte_size_text(size.bytes));
    if (!size.result) {
      text += fmt::format("   not run: {}\n", size.reason);
      continue;
    }
    for (const Lane lane : kLanes) {
      const auto rate = size.result->bytes_per_second[static_cast<std::size_t>(lane)];
      text += fmt::format(" {:>10}", rate ? fmt::format("{:.2f}", *rate / 1e9) : "-");
    }
    text += size.result->bits_equal ? "   equal\n" : "   DIFFERENT\n";
  }
  return text;
}

}  // namespace

int bench(const BenchOptions& options, Output& output, Console& console) {
  OpenedDevice opened = open_device(options.device);
  if (!opened.fallback_reason.empty()) console.warn(fmt::format("running on the host: {}", opened.fallback_reason));
  const std::optional<std::uint64_t> budget_bytes =
      budget_on(*opened.device, opened.device->memory().info(), options.budget);
  std::vector<SizeResult> sizes;
  const std::vector<std::uint64_t> wanted = sizes_up_to(options.max_bytes);
  console.begin_progress("measuring lanes");
  for (const std::uint64_t bytes : wanted) {
    throw_if_interrupted();
    sizes.push_back(measure(opened, budget_bytes, bytes));
    console.show_progress(sizes.size(), wanted.size(), "sizes");
  }
  console.end_progress();
  output.write(options.json ? document(sizes, opened).dump() + "\n" : table(sizes, opened));
  const bool all_equal = std::all_of(sizes.begin(), sizes.end(),
                                     [](const SizeResult& size) { return !size.result || size.result->bits_equal; });
  return all_equal ? 0 : 1;
}

}  // namespace genai::cli
